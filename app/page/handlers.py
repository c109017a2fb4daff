"""The handlers of the page's buttons, and the runs that they start.

A run is the recordings of one press of the button. Its view is a dictionary, sent to the browser at
each update and drawn by `assets/player.js`:
{"run": an id, "files": [...], "zip": address or None, "running": bool, "reasons": {flag: text}}.
`RunPart.view` describes a file.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gradio as gr
from pydantic import Field, ValidationError, create_model, model_validator

from slimwhisper.app.api.errors import as_api_error
from slimwhisper.app.api.fields import option_fields
from slimwhisper.app.api.request import display_name
from slimwhisper.app.page.edits import Edits
from slimwhisper.app.page.files import FILES, PageResult, PageResults, outline, segment_view
from slimwhisper.app.page.posts import first_problem
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import Event, Job, JobStarted, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.audio.samples import Samples
from slimwhisper.cache.forms import PRESETS
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.forced_alignment.script import as_lines
from slimwhisper.hot_words.options import hot_word_lines
from slimwhisper.service.source import Failed, Finished, Progress
from slimwhisper.speakers.choice import BACKENDS
from slimwhisper.trust import REASONS

# -- runs ----------------------------------------------------------------------------------------

UPDATE = 0.3  # seconds between two updates
ENDED = ("done", "failed", "stopped")


class RunPart:
    """One recording of a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "waiting"  # then "working", then one of ENDED
        self.message = ""  # the error, if it failed
        self.done = 0.0  # seconds of audio
        self.seconds = 0.0  # of audio
        self.segments: list[list[Any]] = []
        self.text = ""
        self.language = ""
        self.unscripted: list[list[Any]] = []
        self.peaks = ""
        self.job: Job | None = None
        self.result: PageResult | None = None

    @property
    def ended(self) -> bool:
        """Whether it is done, has failed or was stopped."""
        return self.state in ENDED

    def fail(self, error: Exception) -> None:
        """Show an error's message, without the recording's name."""
        self.state, self.message = "failed", self._of_file(str(as_api_error(error)))

    def _of_file(self, message: str) -> str:
        """A message as a sentence without the recording's name, which stands above it."""
        message = message.removeprefix(f"{self.name}: ")
        return message[:1].upper() + message[1:]

    def draw(self, samples: Samples) -> None:
        """Compute the outline of samples, float32 [n] at 16 kHz. Called in a reading thread."""
        self.peaks = outline(samples)

    def update(self, event: Event) -> None:
        """Apply an event of the job, unless the part has ended."""
        match event:
            case _ if self.ended:
                pass
            case JobStarted(seconds=seconds):
                self.state, self.seconds = "working", seconds
            case Progress(_, (segments, done)):
                self.done = done
                self.segments += map(segment_view, segments)
                self.text += "".join(segment.text for segment in segments)
            case Finished(_, transcript):
                self.state, self.done = "done", self.seconds
                self.language, self.text = transcript.language, transcript.text
                spans = transcript.unscripted
                self.unscripted = [[span.start, span.end, span.text] for span in spans]
                self.segments = [segment_view(segment) for segment in transcript.segments]
                assert self.job is not None and self.result is not None
                self.result.edits = Edits(transcript)
                self.result.sentences = bool(self.job.options.get("sentences"))
            case Failed(_, error):
                self.fail(error)

    def view(self, service: Service) -> dict[str, Any]:
        """The view of the recording.

        warnings: of what is odd in the file or in what was asked, once it is read. segments: see
        `segment_view`. peaks: see `outline`. position: in the queue, from 1; 0: not
        waiting. edit: the address for corrections, once it is done; from then on the browser's text
        is newer. downloads: addresses by format. Addresses are relative to the server's root.
        unscripted: [start, end, text] of speech that is not in the text that was aligned.
        """
        token = self.result.token if self.result is not None else None
        formats = self.result.formats() if self.result is not None else ()
        waits = self.state == "waiting"
        shown = ("name", "state", "message", "language", "segments", "unscripted", "peaks")
        return {
            **{name: getattr(self, name) for name in shown},
            "warnings": [self._of_file(text) for text in self.job.warnings] if self.job else [],
            "position": service.jobs.position(self.job) if waits and self.job is not None else 0,
            "loading": waits and service.engines.loading,
            "done": round(self.done, 2),
            "seconds": round(self.seconds, 2),
            "text": self.text.strip(),
            "edit": f"page/edit/{token}" if self.state == "done" else None,
            "audio": f"page/audio/{token}" if token and self.peaks else None,
            "downloads": {name: f"page/result/{token}.{name}" for name in formats},
        }


class RunOrder(NamedTuple):
    """What a press of the button asks for."""

    recordings: Sequence[tuple[Path, str]]  # and the user's name for each file
    model: ModelChoice
    options: dict[str, Any]  # fields of `slimwhisper.Options`
    script: Sequence[str] = ()  # as in `Job`


class Run:
    """The recordings of one press of the button."""

    def __init__(self, service: Service, results: PageResults, order: RunOrder, user: str) -> None:
        """Submit all recordings. Needs a running event loop."""
        self._service = service
        schedule: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
        recordings, model, options, script = order
        self.parts = [RunPart(name) for _, name in recordings]
        self._group = secrets.token_urlsafe(24)
        for part, (path, name) in zip(self.parts, recordings, strict=True):
            try:
                part.result = results.add(path, name, self._group)
            except OSError:
                part.state, part.message = "failed", "No longer on the server; add it again"
                continue
            stored, listener = part.result.path, partial(schedule, part.update)
            part.job = Job(stored, name, model, options, user, listener, part.draw, script)
            try:
                service.submit(part.job)
            except SlimWhisperError as error:
                part.fail(error)

    def stop(self) -> None:
        """Cancel the parts that have not ended. A second call does nothing."""
        for part in self.parts:
            if not part.ended:
                part.state = "stopped"
            if part.job is not None:
                self._service.cancel(part.job)

    @property
    def running(self) -> bool:
        """Whether a part has not ended."""
        return not all(part.ended for part in self.parts)

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        """The view every `UPDATE` seconds, and at the end. Who leaves it early stops the run."""
        while self.running:
            yield self.view()
            await asyncio.sleep(UPDATE)
        yield self.view()

    def view(self) -> dict[str, Any]:
        """The view of the run; see the top of this file."""
        files = [part.view(self._service) for part in self.parts]
        several = sum(part.state == "done" for part in self.parts) > 1 and not self.running
        return {
            "run": self._group[:8],
            "files": files,
            "zip": f"page/results/{self._group}.zip" if several else None,
            "running": self.running,
            "reasons": REASONS,
        }

    @property
    def text(self) -> str:
        """The text; with several recordings, each text follows its file's name."""
        if len(self.parts) == 1:
            return self.parts[0].text.strip()
        return "\n\n".join(f"{part.name}\n{part.text.strip()}" for part in self.parts)


# -- buttons -------------------------------------------------------------------------------------

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
        # some defaults of `Options` depend on others
        options: dict[str, Any] = self.model_dump(by_alias=True, exclude_defaults=True)
        if self.diarize is None:
            options.pop("speakers", None)
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

    def __init__(self, host: ServerHost, results: PageResults) -> None:
        self.service, self.models, settings = host
        assert settings.page is not None
        self.results = results
        self.runs: dict[Run, str] = {}  # active runs, with their browsers' sessions
        files = EXAMPLES.glob("*.*" if self.models.default == "digits" else "speech/*.*")
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
            recordings = [self._upload(file, str(file.get("orig_name"))) for file in files or []]
            if recording:
                recordings.append(self._upload(recording, "recording.wav"))
            if not recordings:
                raise OptionError("Add a file or record something first.")
            lines = options.script_lines(len(recordings))
        except ValidationError as error:
            problem = first_problem(error).replace("speakers:", "Number of speakers:")  # its label
            raise _error(problem) from None
        except SlimWhisperError as error:
            raise _error(str(error)) from error
        choice = ModelChoice(name, None if options.cache == self._preset else options.cache)
        order = RunOrder(recordings, choice, options.options(), lines)
        async for update in self._run(request, order):
            yield update

    async def try_example(self, request: gr.Request, name: str) -> AsyncGenerator[RunUpdate, None]:
        """An example's name -> as `transcribe`, with times of words."""
        path = self.examples.get(name) if isinstance(name, str) else None
        if path is None:
            raise _error(f"There is no example {str(name)[:100]!r}.")
        choice = ModelChoice(self.models.resolve(None))
        order = RunOrder([(path, path.name)], choice, {"word_timestamps": True})
        async for update in self._run(request, order):
            yield update

    async def _run(self, request: gr.Request, order: RunOrder) -> AsyncGenerator[RunUpdate, None]:
        """(text, view) at each update of a run."""
        session = request.session_hash or secrets.token_hex(8)
        user = f"{request.client.host if request.client else ''} {session}"
        run = Run(self.service, self.results, order, user)
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
