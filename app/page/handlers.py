"""What the page's buttons do."""

import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any

import gradio as gr
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from slimwhisper.app.api.request import display_name
from slimwhisper.app.page.cache_costs import cost_table
from slimwhisper.app.page.posted import first_problem
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
from slimwhisper.types import MOST_SPEAKERS

EXAMPLES = Path(__file__).with_name("samples")
MOST_BEAMS = 10
EXAMPLES_MODEL = "digits"  # bundled; it understands little else

Shown = tuple[str, dict[str, Any]]  # a run's text, and its view


class Asked(BaseModel):
    """The options of a call: Gradio passes on whatever was sent. None, or "": the default."""

    language: str | None = None
    task: str | None = None
    words: bool | None = None
    prompt: str | None = None
    model: str | None = None
    cache: str | None = None
    beams: Annotated[int, Field(ge=1, le=MOST_BEAMS)] | None = None
    temperature: Annotated[
        float | None, Field(allow_inf_nan=False), BeforeValidator(lambda v: None if v == "" else v)
    ] = None
    vad: bool | None = None
    diarize: str | None = None
    speakers: Annotated[int, Field(ge=1, le=MOST_SPEAKERS)] | None = None
    sentences: bool | None = None

    def options(self) -> dict[str, Any]:
        """Of `slimwhisper.Options`. Raises gr.Error."""
        if self.diarize and self.diarize not in BACKENDS:  # a path, too, would do for `Options`
            known = ", ".join(BACKENDS)
            raise _error(f"diarize {self.diarize[:100]!r} is not one of: {known}")
        options: dict[str, Any] = {
            "task": self.task or "transcribe",
            "language": self.language or None,
            "initial_prompt": self.prompt or None,
            "word_timestamps": bool(self.words),
            "beam_size": None if self.beams == 1 else self.beams,
            "vad_filter": bool(self.vad),
            "diarize": self.diarize or None,
            "speakers": self.speakers if self.diarize else None,
            "sentences": bool(self.sentences),
        }
        return options | ({} if self.temperature is None else {"temperature": self.temperature})


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
        found = sorted(EXAMPLES.iterdir()) if models.default == EXAMPLES_MODEL else []
        self.examples = {path.stem.replace("-", " ").capitalize(): path for path in found}

    # Gradio passes values in this order. Its API shows these names and the docstring.
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
        given = locals()
        try:
            asked = Asked.model_validate({name: given[name] for name in Asked.model_fields})
        except ValidationError as error:
            raise _error(first_problem(error)) from None
        choice, options = self._choice(asked.model, asked.cache), asked.options()
        recordings = [self._upload(file, str(file.get("orig_name"))) for file in files or []]
        if recording:
            recordings.append(self._upload(recording, "recording.wav"))
        if not recordings:
            raise _error("Add a file or record something first.")
        async for shown in self._run(request, recordings, choice, options):
            yield shown

    async def try_example(self, request: gr.Request, name: str) -> AsyncGenerator[Shown, None]:
        """An example's name -> what `transcribe` gives, with times of words."""
        path = self.examples.get(name) if isinstance(name, str) else None
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
        """What the caches take, in Markdown."""
        loaded = self.service.engines.loaded
        other = loaded is not None and loaded.name != self.models.default
        return cost_table(
            self.service.engines, loaded.name if loaded and other else self.models.shown
        )

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


def _error(message: str) -> gr.Error:
    """An error that the page shows and the log does not."""
    return gr.Error(message, print_exception=False)
