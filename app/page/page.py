"""The page at "/": its components in order, their events, and a table of the caches' costs; and how
it is mounted on a server, with its login, its files and its shutdown.

Importing this module imports Gradio, which takes seconds; only a server with a page does so.
"""

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from fastapi import FastAPI
from fastapi.responses import Response
from gradio.components import Component
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from slimwhisper.app.page.files import FILES, PageResults, make_results_router
from slimwhisper.app.page.gradio_guard import (
    MAX_TEXT,
    Blocks,
    Gradio,
    GradioBodyCheck,
    Uploads,
    login_check,
    login_message,
    make_login_router,
    make_uploads_router,
)
from slimwhisper.app.page.handlers import MOST_BEAMS, Handlers
from slimwhisper.app.page.posts import MakeKey, make_edit_router, make_live_router
from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.host import Models, ServerHost
from slimwhisper.audio_formats.names import AUDIO_SUFFIXES
from slimwhisper.cache.forms import PRESETS, brief
from slimwhisper.devices import free_bytes
from slimwhisper.outputs import formats_for
from slimwhisper.speakers.choice import BACKENDS, MOST_SPEAKERS, missing
from slimwhisper.text import human_size
from slimwhisper.tokens.encoding import LANGUAGES

ASSETS = Path(__file__).with_name("assets")
SUBTITLE = "Speech to text on this server. Nothing you upload leaves it."
MEMORY = Path("/proc/meminfo")
TEMPERATURES = ("0", "0.2", "0.4", "0.6", "0.8", "1")
QUICK: dict[str, Any] = {  # through Gradio's queue, the only route for calls in `api.access`
    "api_visibility": "private",
    "show_progress": "hidden",
    "concurrency_limit": None,
}

Arguments = dict[str, Component]  # by the names of the parameters of `Handlers.transcribe`


def make_page(handlers: Handlers, preset: str | None, live: bool) -> Blocks:
    """The whole page. preset: of the server; None: not a preset. live: whether the server has live
    streams.
    """
    title = f"<h1>{asset('icon.svg')}slimwhisper</h1><p>{SUBTITLE}</p>"
    with Blocks(title="slimwhisper", analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(title, elem_id="sw-title", apply_default_css=False)
        with gr.Tabs(elem_id="sw-tabs"):
            with gr.Tab("Files", elem_id="sw-tab-files"):
                _lay_out_files(handlers, preset)
            if live:
                with gr.Tab("Live", elem_id="sw-tab-live"):
                    _lay_out_live()
        blocks.unload(handlers.stop)
    blocks.max_threads = handlers.service.limits.queue
    blocks.queue(default_concurrency_limit=None)
    return blocks


def _lay_out_files(handlers: Handlers, preset: str | None) -> None:
    arguments, examples = _inputs(), list[gr.Button]()
    if handlers.examples:
        with gr.Row(elem_id="sw-examples"):
            gr.HTML("Or try an example:", apply_default_css=False)
            examples = [gr.Button(name, size="sm", min_width=60) for name in handlers.examples]
    arguments |= _options("sw-options") | _script() | _more_options(handlers.models, preset)
    with gr.Row(elem_id="sw-buttons"):
        transcribe = gr.Button("Transcribe", variant="primary", elem_id="sw-go", scale=3)
        stop = gr.Button("Stop", visible=False, elem_id="sw-stop", scale=1)
    view = _scripted("sw-results", "player", asset("player.html"))
    with gr.Accordion("What the cache costs", open=False, elem_id="sw-costs") as costs:
        table = gr.Markdown()
    text = gr.Textbox(label="Text", visible=False)

    _, *names = inspect.signature(handlers.transcribe).parameters  # after the request
    values = [arguments[name] for name in names]
    shown = [stop, transcribe, *examples]  # one run at a time: all starts share its view

    def running(on: bool) -> str:
        updates = [gr.update(visible=on), *[gr.update(interactive=not on)] * len(shown[1:])]
        return f"() => {json.dumps(updates)}"

    def start(button: gr.Button, run: Callable[..., Any], inputs: list[Any], **api: str) -> None:
        button.click(None, None, shown, js=running(True))
        how = {**QUICK, "preprocess": False, "trigger_mode": "once", **api}
        event = button.click(run, inputs, [text, view], **how)
        for after in (event.then, event.failure):  # Gradio calls one of them
            after(None, None, shown, js=running(False))

    start(transcribe, handlers.transcribe, values, api_name="transcribe", api_visibility="public")
    for example in examples:
        start(example, handlers.try_example, [example])
    stop.click(handlers.stop, None, None, **QUICK)
    costs.expand(lambda: cost_table(handlers.service.engines), None, table, **QUICK)


def _lay_out_live() -> None:
    """The Live tab's frame. The rest runs in the browser: assets/live.js."""
    options = _options("sw-live-options")
    html = asset("live.html").replace("FORMATS", " ".join(formats_for(speakers=False)))
    view = _scripted("sw-live", "live", html)
    names, fields = ", ".join(options), list(options.values())
    changes = [field.change for field in fields]  # type: ignore[attr-defined]
    js = f"({names}) => ({{{names}}})"
    gr.on(changes, None, fields, view, js=js, show_progress="hidden")


def _inputs() -> Arguments:
    """The recordings to transcribe."""
    with gr.Row(elem_id="sw-inputs", equal_height=True):
        files = gr.File(
            label="Audio or video files",
            file_count="multiple",
            file_types=["audio", "video", *sorted(AUDIO_SUFFIXES)],
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
    return {"files": files, "recording": recording}


def _options(elem_id: str) -> Arguments:
    """The options that recordings and live streams share, in a row."""
    fields: Arguments = {}
    languages = [("Detect", ""), *((name.title(), code) for code, name in LANGUAGES.items())]
    tasks = [("Transcribe", "transcribe"), ("Translate into English", "translate")]
    with gr.Row(elem_id=elem_id, equal_height=True):
        fields["language"] = _choice("Language", languages, filterable=True, min_width=150)
        fields["task"] = _choice("Task", tasks, value="transcribe", min_width=150)
        fields["prompt"] = gr.Textbox(
            label="Prompt",
            placeholder="names and words to expect",
            max_lines=1,
            scale=2,
            min_width=200,
        )
        fields["words"] = _checkbox("Word times", min_width=130)
    return fields


def _script() -> Arguments:
    """A text whose times are wanted."""
    with gr.Accordion("I have the text: find its times", open=False, elem_id="sw-script"):
        text = gr.Textbox(
            label="Text of the recording",
            placeholder="one line for each subtitle, or the content of an .srt or .vtt file",
            lines=4,
            max_lines=12,
            max_length=MAX_TEXT,
        )
    return {"script": text}


def _more_options(models: Models, preset: str | None) -> Arguments:
    fields: Arguments = {}
    speakers = [name for name in BACKENDS if not missing(name)]  # if empty, the options are hidden
    backends = [("Yes" if len(speakers) == 1 else f"Yes, by {name}", name) for name in speakers]
    who = [("No", ""), *backends]
    presets = [(p, p) for p in reversed(PRESETS) if p != preset]
    caches = [(preset or "the server's default", ""), *presets]
    temperatures = [("Automatic", ""), *((t, t) for t in TEMPERATURES)]
    with gr.Accordion("More options", open=False, elem_id="sw-more"):
        with gr.Row():
            fields["diarize"] = _choice("Identify speakers", who, visible=bool(speakers))
            fields["speakers"] = gr.Number(
                label="Number of speakers (0: detect)",
                precision=0,
                minimum=0,
                maximum=MOST_SPEAKERS,
                visible=bool(speakers),
                min_width=140,
            )
            fields["channels"] = _choice("Channels", [("Mixed", ""), ("One speaker each", "split")])
            fields["sentences"] = _checkbox("Sentences as subtitles")
        with gr.Row():
            names, default = models.choices(), models.display_name
            fields["model"] = _choice("Model", names, default, filterable=True)
            fields["cache"] = _choice("Cache form", caches)
            fields["beams"] = gr.Slider(1, MOST_BEAMS, 1, step=1, label="Beams", min_width=140)
            fields["temperature"] = _choice("Temperature", temperatures)
            fields["vad"] = _checkbox("Skip silence")
        hint = "names and words that are hard to hear, one a line"
        fields["hot_words"] = gr.Textbox(label="Hot words", placeholder=hint, lines=2, max_lines=8)
    return fields


def asset(name: str) -> str:
    """The text of one of the page's assets."""
    return (ASSETS / name).read_text(encoding="utf-8")


def _choice(label: str, choices: Sequence[Any], value: str = "", **more: Any) -> gr.Dropdown:
    """choices: values, or (label, value). more: of `gr.Dropdown`."""
    options = {"filterable": False, "min_width": 140, **more}
    return gr.Dropdown(choices, value=value, label=label, **options)


def _checkbox(label: str, min_width: int = 140) -> gr.Checkbox:
    return gr.Checkbox(label=label, elem_classes="sw-check", min_width=min_width)


def _scripted(elem_id: str, name: str, html: str) -> gr.HTML:
    """An element that one of the page's scripts draws."""
    script = asset("load.js").replace("SCRIPT", name)
    return gr.HTML(html_template=html, js_on_load=script, apply_default_css=False, elem_id=elem_id)


def cost_table(engines: Engines) -> str:
    """The table for the loaded model, in Markdown."""
    model, loaded = engines.model, engines.loaded
    if model is None or loaded is None:
        return "No model is loaded. The next recording loads one."
    presets = {pair: preset for preset, pair in PRESETS.items()}
    form = presets.get(model.forms, "+".join(map(brief, model.forms)))
    slim, baseline = model.bytes_per_window(), model.baseline_bytes_per_window()
    allocated, free = engines.cache_bytes(), free_memory(model.device)
    baseline_bytes = allocated * baseline // slim
    return f"""Model `{loaded.display_name}`: {baseline / slim:.1f} times smaller than the baseline.

| | {form} | baseline |
|---|--:|--:|
| One window, 30 s of audio | {human_size(slim)} | {human_size(baseline)} |
| Allocated now | {human_size(allocated)} | {human_size(baseline_bytes)} |
| Windows that fit in the {human_size(free)} free | {free // slim:,} | {free // baseline:,} |
"""


def free_memory(device: torch.device) -> int:
    """Free bytes on a device."""
    if device.type == "cuda":
        return free_bytes(device)
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")


# -- on a server ---------------------------------------------------------------------------------

STYLES = ("page.css", "player.css", "editing.css", "live.css")
SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
OFF = ("show_error", "run_history", "enable_monitoring", "ssr_mode", "mcp_server", "pwa")
TIDY_SECONDS = 600.0  # between two removals of old results
LAST_UPDATES = 5.0  # seconds for browsers to receive the end of their runs


class Page:
    """The page, from the server's side."""

    def __init__(self, handlers: Handlers, uploads: Uploads, gradio: Gradio) -> None:
        self.results, self.uploads = handlers.results, uploads
        self.signed_in = gradio.signed_in
        self._runs, self._gradio = handlers.runs, gradio

    async def tidy(self) -> None:
        """Remove old results and uploads from time to time. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.results.remove_old()
            self.uploads.remove_old()
            self._gradio.discard_files()

    async def shutdown(self) -> None:
        """Wait until browsers have received the end of their runs, then disconnect them."""
        deadline = time.monotonic() + LAST_UPDATES
        while self._runs and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self._gradio.disconnect()


def mount_page(app: FastAPI, host: ServerHost, make_key: MakeKey | None = None) -> Page:
    """Mount the page on a server's app. Routes added before take precedence.

    `settings.page` is a `page_folder`. make_key: makes the key of a live stream's websocket; None:
    the server has no live streams. Must not be called in a running event loop.
    """
    settings = host.settings
    assert settings.page is not None
    total = 16 * settings.max_bytes
    results = PageResults(settings.page / "results", total)
    uploads = Uploads(settings.page / FILES, total)
    check = login_check(settings)
    handlers = Handlers(host, results)

    async def mount() -> Blocks:  # without a running loop, Gradio makes loops and leaks them
        page = make_page(handlers, settings.cache, live=make_key is not None)
        gr.mount_gradio_app(
            app,
            page,
            "/",
            auth=check,
            auth_message=login_message(settings),
            root_path=settings.root_path or None,
            favicon_path=str(ASSETS / "icon.svg"),
            max_file_size=settings.max_bytes,
            footer_links=[],
            **dict.fromkeys(OFF, False),
            theme=gr.themes.Base(
                primary_hue="indigo",
                neutral_hue="slate",
                font=SANS,
                font_mono=MONO,
                radius_size="lg",
            ),
            # passed as `css`, Gradio would rewrite it and break some selectors
            head=f"<style>{''.join(map(asset, STYLES))}</style>",
        )
        return page

    fns, gradio = asyncio.run(mount()).fns, Gradio(app)
    functions = [index for index, function in fns.items() if function.fn]  # not only a script
    gradio.app.add_middleware(GradioBodyCheck, functions=functions, is_stored=uploads.has)
    app.include_router(make_results_router(results))
    app.include_router(make_edit_router(results))
    app.include_router(make_uploads_router(uploads, settings.max_bytes))
    if check is not None:
        app.include_router(make_login_router(gradio, check))
    if make_key is not None:
        app.include_router(make_live_router(make_key))
    app.mount("/page/assets", Assets(directory=ASSETS))
    app.routes.append(gradio.route)  # last: it matches all other paths
    return Page(handlers, uploads, gradio)


class Assets(StaticFiles):
    """GET /page/assets/NAME, without a login: the assets hold no secrets."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, which the browser must revalidate at each use."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response
