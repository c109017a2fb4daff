"""What the page's buttons do."""

import math
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import gradio as gr

from slimwhisper.app.api.request import display_name
from slimwhisper.app.page.cache_costs import costs_of, panel
from slimwhisper.app.page.run import Run
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.page.transcripts.results import Results
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from slimwhisper.cache.forms import PRESETS
from slimwhisper.errors import SlimWhisperError
from slimwhisper.speakers.choice import BACKENDS

EXAMPLES = Path(__file__).with_name("samples")
MOST_BEAMS = 10
EXAMPLES_MODEL = "digits"  # bundled; it understands little else

Shown = tuple[str, dict[str, Any]]  # a run's text, and its view


class Handlers:
    """The functions behind the page's events."""

    def __init__(
        self, service: Service, models: Models, results: Results, settings: Settings
    ) -> None:
        assert settings.page is not None
        self.service, self.models, self.results = service, models, results
        self.runs: dict[Run, str] = {}  # those that run, with their browsers' sessions
        self._preset = settings.cache
        self._uploads = (settings.page / FILES).resolve()
        some = models.default == EXAMPLES_MODEL
        found = sorted(EXAMPLES.iterdir()) if some else []
        self.examples = {path.stem.replace("-", " ").capitalize(): path for path in found}

    # Gradio passes the values of `Layout.arguments`. Its API shows these names and the docstring.
    async def transcribe(
        self,
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
        diarize: str | None = "",
        speakers: float | None = None,
        sentences: bool | None = False,
    ) -> AsyncGenerator[Shown, None]:
        """Recordings -> (their text, all that the page shows), at each update."""
        _check_texts(language=language, task=task, prompt=prompt)
        _check_texts(model=model, cache=cache, diarize=diarize)
        choice = self._choice(model, cache)
        if diarize and diarize not in BACKENDS:  # a path, too, would do for `slimwhisper.Options`
            raise _error(f"diarize {diarize[:100]!r} is not one of: {', '.join(BACKENDS)}")
        options: dict[str, Any] = {
            "task": task or "transcribe",
            "language": language or None,
            "initial_prompt": prompt or None,
            "word_timestamps": bool(words),
            "beam_size": _beams(beams) if beams and beams != 1 else None,
            "vad_filter": bool(vad),
            "diarize": diarize or None,
            "speakers": int(_number("speakers", speakers)) if diarize and speakers else None,
            "sentences": bool(sentences),
        }
        if temperature not in (None, ""):
            options["temperature"] = _number("temperature", temperature)
        recordings = self._recordings(files, recording)
        async for shown in self._run(request, recordings, choice, options):
            yield shown

    async def try_example(self, request: gr.Request, name: str) -> AsyncGenerator[Shown, None]:
        """An example's name -> what `transcribe` gives, with times of words."""
        _check_texts(name=name)
        path = self.examples.get(name)
        if path is None:
            raise _error(f"There is no example {str(name)[:100]!r}.")
        choice, options = self._choice(None, None), {"word_timestamps": True}
        async for shown in self._run(request, [(path, path.name)], choice, options):
            yield shown

    async def _run(
        self,
        request: gr.Request,
        recordings: list[tuple[Path, str]],
        choice: ModelChoice,
        options: dict[str, Any],
    ) -> AsyncGenerator[Shown, None]:
        """(text, view) at each update of a run."""
        session = request.session_hash or secrets.token_hex(8)
        user = f"{request.client.host if request.client else ''} {session}"
        run = Run(self.service, self.results, recordings, choice, options, user)
        self.runs[run] = session
        try:
            async for view in run.updates():
                yield run.text, view
        finally:
            run.stop()
            del self.runs[run]

    def stop(self, request: gr.Request) -> None:
        """Stop everything that the page runs."""
        for run, session in list(self.runs.items()):
            if session == request.session_hash:
                run.stop()

    def costs(self) -> str:
        """The chart of the cache costs, in HTML."""
        loaded = self.service.engines.loaded
        name = self.models.shown
        if loaded is not None and loaded.name != self.models.default:
            name = loaded.name
        return panel(costs_of(self.service.engines, name))

    def _recordings(
        self, files: list[dict[str, Any]] | None, recording: dict[str, Any] | None
    ) -> list[tuple[Path, str]]:
        """(path, name to show) of each file, then of the recording."""
        found = [self._upload(file, str(file.get("orig_name"))) for file in files or []]
        if recording:
            found.append(self._upload(recording, "recording.wav"))
        if not found:
            raise _error("Add a file or record something first.")
        return found

    def _upload(self, file: dict[str, Any], name: str) -> tuple[Path, str]:
        """An upload's path and its name to show. Any other file of the server is refused."""
        path = Path(str(file.get("path"))).resolve()
        if not path.is_relative_to(self._uploads) or not path.is_file():
            raise _error("A file is no longer on the server. Add it again.")
        return path, display_name(name)

    def _choice(self, model: str | None, cache: str | None) -> ModelChoice:
        try:
            name = self.models.resolve(model)
        except SlimWhisperError as error:
            raise _error(str(error)) from error
        if cache and cache not in PRESETS:
            raise _error(f"There is no cache form {cache[:100]!r}.")
        return ModelChoice(name, None if cache in ("", self._preset) else cache)


def _check_texts(**given: object) -> None:
    """Gradio passes on whatever was sent."""
    for name, text in given.items():
        if not isinstance(text, str | None):
            raise _error(f"{name} is not a text")


def _number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _error(f"{what} {str(value)[:100]!r} is not a number")
    return number


def _beams(value: Any) -> int:
    number = _number("beams", value)
    if not 1 <= number <= MOST_BEAMS:
        raise _error(f"beams {number:g} is not between 1 and {MOST_BEAMS}")
    return int(number)


def _error(message: str) -> gr.Error:
    """An error that the page shows and the log does not."""
    return gr.Error(message, print_exception=False)
