"""The page at "/": what is on it, and what its buttons do.

Gradio is imported here and nowhere else; it takes seconds, so that whoever imports this module does
so when a server begins.
"""

import secrets
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio_client.utils import is_http_url_like
from whisper.tokenizer import LANGUAGES

from slimwhisper.app.api.request import display_name
from slimwhisper.app.page.cache_costs import costs_of, panel
from slimwhisper.app.page.results import KEEP, Results
from slimwhisper.app.page.run import Run, Runs
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from slimwhisper.cache.forms import PRESETS
from slimwhisper.errors import SlimWhisperError

ASSETS = Path(__file__).with_name("assets")
SUBTITLE = "Speech to text, on this server: nothing you add leaves it."
TEMPERATURES = ("0", "0.2", "0.4", "0.6", "0.8", "1")
PANEL_SECONDS = 3.0  # between two looks at the caches, while they are shown
HIDDEN: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


def make_page(
    service: Service, models: Models, results: Results, runs: Runs, settings: Settings
) -> gr.Blocks:
    """The components, and what happens when."""
    assert settings.page is not None
    uploads = (settings.page / FILES).resolve()

    async def transcribe(
        request: gr.Request,
        files: list[dict[str, Any]] | None = None,
        recording: dict[str, Any] | None = None,
        language: str | None = "",
        task: str | None = "transcribe",
        words: bool | None = False,
        prompt: str | None = None,
        model: str | None = None,
        cache: str | None = "",
        beams: float | None = 1,
        temperature: str | float | None = "",
        vad: bool | None = False,
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Recordings -> their text, and all that the page shows of them, as it comes."""
        given = files or []
        found = [_recording(file, uploads, str(file.get("orig_name"))) for file in given]
        if recording:
            found.append(_recording(recording, uploads, "recording.wav"))
        if not found:
            raise gr.Error("Add a file, or record something, first.", print_exception=False)
        try:
            name = models.resolve(model)
        except SlimWhisperError as error:
            raise gr.Error(str(error), print_exception=False) from error
        if cache and cache not in PRESETS:
            raise gr.Error(f"There is no cache form {cache[:100]!r}.", print_exception=False)
        choice = ModelChoice(name, None if cache in ("", settings.cache) else cache)
        options: dict[str, Any] = {
            "task": task or "transcribe",
            "language": language or None,
            "initial_prompt": prompt or None,
            "word_timestamps": bool(words),
            "beam_size": int(_number("beams", beams)) if beams and beams != 1 else None,
            "vad_filter": bool(vad),
        }
        if temperature not in (None, ""):
            options["temperature"] = _number("temperature", temperature)
        session = request.session_hash or secrets.token_hex(8)
        host = request.client.host if request.client else ""
        run = Run(service, results, found, choice, options, f"{host} {session}")
        runs.add(session, run)
        try:
            async for view in run.updates():
                yield run.text, view
        finally:
            run.stop()
            runs.remove(session, run)

    def stop(request: gr.Request) -> None:
        runs.stop(request.session_hash or "")

    def look() -> str:
        loaded = service.loaded
        name = models.shown if loaded is None or loaded.name == models.default else loaded.name
        return panel(costs_of(service, name))

    with gr.Blocks(
        title="slimwhisper",
        analytics_enabled=False,
        delete_cache=(600, round(KEEP)),
        fill_width=True,
    ) as blocks:
        gr.HTML(
            f"<h1>{_asset('icon.svg')}slimwhisper</h1><p>{SUBTITLE}</p>",
            elem_id="sw-title",
            apply_default_css=False,
        )
        with gr.Row(elem_id="sw-inputs", equal_height=True):
            files = gr.File(
                label="Audio or video files",
                file_count="multiple",
                file_types=["audio", "video"],
                height=168,
                elem_id="sw-files",
                scale=3,
                min_width=260,
            )
            recording = gr.Audio(
                label="Or record",
                sources=["microphone"],
                type="filepath",
                editable=False,
                buttons=[],
                elem_id="sw-record",
                scale=2,
                min_width=260,
            )
        for component in (files, recording):
            _take_no_addresses(component)
        with gr.Row(elem_id="sw-options", equal_height=True):
            language = gr.Dropdown(
                [("Detect it", ""), *((n.title(), code) for code, n in LANGUAGES.items())],
                value="",
                label="Language",
                min_width=150,
            )
            task = gr.Dropdown(
                [("Transcribe", "transcribe"), ("Translate into English", "translate")],
                value="transcribe",
                label="Task",
                filterable=False,
                min_width=150,
            )
            prompt = gr.Textbox(
                label="Prompt",
                placeholder="names and words to expect",
                max_lines=1,
                scale=2,
                min_width=200,
            )
            words = gr.Checkbox(label="Word times", elem_classes="sw-check", min_width=130)
        with gr.Accordion("More options", open=False, elem_id="sw-more"):
            with gr.Row():
                model = gr.Dropdown(
                    models.choices(), value=models.shown, label="Model", min_width=140
                )
                own = settings.cache or "as the server was started"
                cache = gr.Dropdown(
                    [(own, ""), *((p, p) for p in reversed(PRESETS) if p != settings.cache)],
                    value="",
                    label="Cache form",
                    filterable=False,
                    min_width=140,
                )
                beams = gr.Slider(1, 10, value=1, step=1, label="Beams", min_width=140)
                temperature = gr.Dropdown(
                    [("Automatic", ""), *TEMPERATURES],
                    value="",
                    label="Temperature",
                    filterable=False,
                    min_width=140,
                )
                vad = gr.Checkbox(label="Skip silence", elem_classes="sw-check", min_width=140)
        with gr.Row(elem_id="sw-buttons"):
            go = gr.Button("Transcribe", variant="primary", elem_id="sw-go", scale=3)
            halt = gr.Button("Stop", visible=False, elem_id="sw-stop", scale=1)
        view = gr.HTML(
            value=None,
            html_template=_asset("player.html"),
            js_on_load=_asset("player.js"),
            apply_default_css=False,
            elem_id="sw-results",
        )
        with gr.Accordion("What the cache costs", open=False, elem_id="sw-costs") as costs:
            chart = gr.HTML(elem_id="sw-chart", apply_default_css=False)
        text = gr.Textbox(label="Text", visible=False)
        clock = gr.Timer(PANEL_SECONDS, active=False)

        inputs = [
            *(files, recording, language, task, words, prompt),
            *(model, cache, beams, temperature, vad),
        ]
        quick: dict[str, Any] = {**HIDDEN, "queue": False}
        go.click(lambda: gr.update(visible=True), None, halt, **quick)
        event = go.click(
            transcribe,
            inputs,
            [text, view],
            api_name="transcribe",
            preprocess=False,
            show_progress="hidden",
            concurrency_limit=None,
            trigger_mode="once",
        )
        event.then(lambda: gr.update(visible=False), None, halt, **quick)
        halt.click(stop, None, None, **quick)
        costs.expand(lambda: (look(), gr.Timer(active=True)), None, [chart, clock], **quick)
        costs.collapse(lambda: gr.Timer(active=False), None, clock, **quick)
        clock.tick(look, None, chart, **quick)
        blocks.unload(stop)
    blocks.max_threads = service.limits.queue
    blocks.queue(default_concurrency_limit=None)
    return blocks


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _recording(file: dict[str, Any], uploads: Path, name: str) -> tuple[Path, str]:
    """An upload's path, and its name as it may be shown."""
    path = Path(str(file.get("path"))).resolve()
    if not path.is_relative_to(uploads) or not path.is_file():
        raise gr.Error("A file is not here any more: add it again.", print_exception=False)
    return path, display_name(name)


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        message = f"{what} {str(value)[:100]!r} is not a number"
        raise gr.Error(message, print_exception=False) from None


def _take_no_addresses(component: Component) -> None:
    """Let a component refuse URLs, which Gradio would fetch for whoever asks."""
    move: Callable[..., Any] = component.async_move_resource_to_block_cache

    async def local_alone(path: str | Path | None) -> str | None:
        if path is not None and is_http_url_like(str(path)):
            raise gr.Error("Give a file, not an address.", print_exception=False)
        return await move(path)

    component.async_move_resource_to_block_cache = local_alone  # type: ignore[method-assign, assignment]
