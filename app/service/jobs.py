"""The service's jobs, the events they report, and its limits."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any

from slimwhisper.audio.samples import Samples
from slimwhisper.errors import SlimWhisperError
from slimwhisper.recordings.transcribe import AnyRecording
from slimwhisper.service.shared_engine import Submission
from slimwhisper.types import Segment, Transcript

logger = logging.getLogger("slimwhisper.serve")

STOPPING = "the server is shutting down; try again in a minute"


class BusyError(SlimWhisperError):
    """The queue is full; a later attempt may succeed."""


class StoppingError(SlimWhisperError):
    """The server is shutting down and accepts no new jobs."""


class ModelError(SlimWhisperError):
    """A model could not be loaded; the reason is in the log."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, and the cache form to load it with."""

    name: str
    cache: str | None = None  # a preset; None: the server's own

    @property
    def display_name(self) -> str:
        """The name without its folder."""
        return PurePath(self.name).name


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on requests."""

    queue: int = 256  # requests that wait or run
    streams: int = 64  # open live streams
    backlog: float = 120.0  # seconds of a stream's audio that may wait
    seconds: float = 4 * 3600.0  # of audio in a recording
    reading: float = 600.0  # seconds to decode a file


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The recording has been read and is about to be transcribed."""

    seconds: float  # of audio


@dataclass(frozen=True, slots=True)
class JobProgress:
    """New segments, and how much of the recording is done."""

    segments: list[Segment]
    done: float  # seconds of audio


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The recording has been transcribed."""

    transcript: Transcript
    seconds: float  # of audio


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job ended with an error."""

    error: SlimWhisperError


Event = JobStarted | JobProgress | JobFinished | JobFailed


class JobState(StrEnum):
    """The stages of a job."""

    WAITING = "waiting"
    READING = "reading"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class Job:
    """A recording to transcribe."""

    path: Path
    name: str  # the user's name for the file, shown in messages
    model: ModelChoice
    options: dict[str, Any]  # fields of `slimwhisper.Options`
    user: str  # users take turns
    listener: Callable[[Event], None]  # called in the service's thread
    on_samples: Callable[[Samples], None] | None = None  # called in a reading thread
    script: Sequence[str] = ()  # lines of a text to align with it, as in `Recording`
    warnings: list[str] = field(init=False, default_factory=list)  # of what is odd in its file
    recording: "AnyRecording | None" = field(init=False, default=None)  # once it has been read
    submission: Submission | None = field(init=False, default=None)  # while it runs
    state: JobState = field(init=False, default=JobState.WAITING)  # changed in the service's thread
    size: int = field(init=False, default=0)  # bytes; 0 if the file is missing

    def __post_init__(self) -> None:
        with suppress(OSError):
            self.size = self.path.stat().st_size

    @property
    def ended(self) -> bool:
        """Whether it has finished, failed or been cancelled."""
        return self.state is JobState.ENDED

    def emit(self, event: Event) -> None:
        """Pass an event to the listener. A listener's error must not harm other jobs."""
        try:
            self.listener(event)
        except Exception as error:
            logger.debug("a job's listener failed: %s", error)

    def emit_samples(self, samples: Samples) -> None:
        """Pass the recording's samples, float32 [n] at 16 kHz, to `on_samples`."""
        if self.on_samples is not None:
            try:
                self.on_samples(samples)
            except Exception:
                if not self.ended:
                    logger.exception("on_samples failed")
