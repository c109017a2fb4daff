"""The handlers of the page's buttons."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Literal

import gradio as gr
from pydantic import Field, ValidationError, create_model, model_validator

from slimwhisper.app.api.fields import option_fields
from slimwhisper.app.api.request import display_name
from slimwhisper.app.page.posts import first_problem
from slimwhisper.app.page.run import Run
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.page.transcripts.results import PageResults
from slimwhisper.app.service.host import ServerSettings
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.cache.forms import PRESETS
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.forced_alignment.script import as_lines
from slimwhisper.speakers.choice import BACKENDS
from slimwhisper.tokens.options import hot_word_lines

EXAMPLES = Path(__file__).with_name("samples")
MOST_BEAMS = 10

RunUpdate = tuple[str, dict[str, Any]]  # a run's text, and its view


# options by their own names
OWN = option_fields("language", "task", "speakers", "sentences", "channels")


class CallOptions(create_model("Own", **OWN)):  # type: ignore[misc]
    """The options of a call, which Gradio does not check. None, or "": the default."""

    words: bool = Field(False, serialization_alias="word_timestamps")
    prompt: str | None = Field(None, serialization_alias="initial_prompt")
    model: str | None = Field(None, exclude=True)
    cache: Literal[*PRESETS] | None = Field(None, exclude=True)  # type: ignore[valid-type]
    beams: int = Field(1, ge=1, le=MOST_BEAMS, serialization_alias="beam_size")
    temperature: float | None = Field(None, allow_inf_nan=False)
    vad: bool = Field(False, serialization_alias="vad_filter")
    # `Options` would also accept a path
    diarize: Literal[*BACKENDS] | None = None  # type: ignore[valid-type]
    script: str | None = Field(None, exclude=True)
    hot_words: str | None = None  # one a line

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        # the page may send 0 for a number that is empty
        return {n: v for n, v in given.items() if v not in (None, "") and (n, v) != ("speakers", 0)}

    def options(self) -> dict[str, Any]:
        """The fields of `slimwhisper.Options`."""
        options: dict[str, Any] = self.model_dump(by_alias=True, exclude_none=True)
        if self.beams == 1:  # greedy
            del options["beam_size"]
        if self.diarize is None:
            options.pop("speakers", None)
        for name in ("vad_filter", "word_timestamps"):
            if not options[name]:  # as by default, which depends on `channels`
                del options[name]
        if self.hot_words is not None:
            options["hot_words"] = hot_word_lines(self.hot_words)
        return options

    def script_lines(self, recordings: int) -> list[str]:
        """The text to align, by lines; []: there is none. Raises OptionError."""
        if not self.script:
            return []
        others = {"Identify speakers": self.diarize, "Sentences as subtitles": self.sentences}
        others |= {"Skip silence": self.vad, "Channels": self.channels}
        for label, chosen in others.items():
            if chosen:
                raise OptionError(f"To align a text, turn off {label!r}.")
        if recordings > 1:
            raise OptionError("To align a text, add one recording, not several.")
        return as_lines(self.script)


class Handlers:
    """The functions behind the page's events."""

    def __init__(
        self, service: Service, models: Models, results: PageResults, settings: ServerSettings
    ) -> None:
        assert settings.page is not None
        self.service, self.models, self.results = service, models, results
        self.runs: dict[Run, str] = {}  # active runs, with their browsers' sessions
        files = EXAMPLES.glob("*.*" if models.default == "digits" else "speech/*.*")
        self.examples = {path.stem.replace("-", " ").capitalize(): path for path in sorted(files)}
        self._preset = settings.cache
        self._uploads = (settings.page / FILES).resolve()

    # Gradio passes values in this order. Its API page shows these names and the docstring.
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
        script: str | None = None,
        channels: str | None = "",
        hot_words: str | None = None,
    ) -> AsyncGenerator[RunUpdate, None]:
        """Recordings -> (their text, the page's view of them), at each update."""
        arguments = locals()
        try:
            values = {name: arguments[name] for name in CallOptions.model_fields}
            options = CallOptions.model_validate(values)
            name = self.models.resolve(options.model)
        except ValidationError as error:
            raise _error(first_problem(error)) from None
        except SlimWhisperError as error:
            raise _error(str(error)) from error
        choice = ModelChoice(name, None if options.cache == self._preset else options.cache)
        recordings = [self._upload(file, str(file.get("orig_name"))) for file in files or []]
        if recording:
            recordings.append(self._upload(recording, "recording.wav"))
        if not recordings:
            raise _error("Add a file or record something first.")
        try:
            lines = options.script_lines(len(recordings))
        except OptionError as error:
            raise _error(str(error)) from None
        async for update in self._run(request, recordings, choice, options.options(), lines):
            yield update

    async def try_example(self, request: gr.Request, name: str) -> AsyncGenerator[RunUpdate, None]:
        """An example's name -> as `transcribe`, with times of words."""
        path = self.examples.get(name) if isinstance(name, str) else None
        if path is None:
            raise _error(f"There is no example {str(name)[:100]!r}.")
        choice, recording = ModelChoice(self.models.resolve(None)), (path, path.name)
        async for update in self._run(request, [recording], choice, {"word_timestamps": True}):
            yield update

    async def _run(
        self,
        request: gr.Request,
        recordings: list[tuple[Path, str]],
        choice: ModelChoice,
        options: dict[str, Any],
        script: Sequence[str] = (),
    ) -> AsyncGenerator[RunUpdate, None]:
        """(text, view) at each update of a run."""
        session = request.session_hash or secrets.token_hex(8)
        user = f"{request.client.host if request.client else ''} {session}"
        run = Run(self.service, self.results, recordings, choice, options, user, script)
        self.runs[run] = session
        try:
            async for view in run.updates():
                yield run.text, view
        finally:
            run.stop()
            del self.runs[run]

    def stop(self, request: gr.Request) -> None:
        """Stop all runs of a browser's page."""
        for run, session in list(self.runs.items()):
            if session == request.session_hash:
                run.stop()

    def _upload(self, file: dict[str, Any], name: str) -> tuple[Path, str]:
        """An upload's path and display name. Any other file of the server is refused."""
        path = Path(str(file.get("path"))).resolve()
        if not path.is_relative_to(self._uploads) or not path.is_file():
            raise _error("A file is no longer on the server. Add it again.")
        return path, display_name(name)


def _error(message: str) -> gr.Error:
    """An error that the page shows and the log does not."""
    return gr.Error(message, print_exception=False)
