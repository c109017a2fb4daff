"""What the service takes in and what it tells: jobs, their events, limits and counts."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from slimwhisper.audio.samples import Samples
from slimwhisper.errors import SlimWhisperError
from slimwhisper.longform.batch import Batch
from slimwhisper.longform.recording import Recording
from slimwhisper.types import Segment, Transcript

logger = logging.getLogger("slimwhisper.serve")


class BusyError(SlimWhisperError):
    """The queue is full: ask again later."""


class StoppingError(SlimWhisperError):
    """The server shuts down and takes nothing new."""


class ModelError(SlimWhisperError):
    """A model does not load; the log says why."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, and the caches it is loaded with."""

    name: str
    cache: str | None = None  # a preset; None: what the server was started with

    @property
    def shown(self) -> str:
        """The name, without the folder it lies in."""
        return PurePath(self.name).name


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may take."""

    queue: int = 256  # requests that wait or run
    seconds: float = 4 * 3600.0  # the longest recording
    reading: float = 600.0  # seconds for decoding a file


@dataclass(frozen=True, slots=True)
class Started:
    """Its first window is about to be heard."""

    seconds: float  # of audio


@dataclass(frozen=True, slots=True)
class Progress:
    """New segments, and how far the recording is."""

    segments: list[Segment]
    done: float  # seconds


@dataclass(frozen=True, slots=True)
class Finished:
    transcript: Transcript
    seconds: float  # of audio


@dataclass(frozen=True, slots=True)
class Failed:
    error: SlimWhisperError


Event = Started | Progress | Finished | Failed


@dataclass(eq=False)
class Job:
    """One recording's request."""

    path: Path
    name: str  # its owner's name for the file, in messages
    model: ModelChoice
    options: dict[str, Any]
    user: str
    listener: Callable[[Event], None]
    look: Callable[[Samples], None] | None = None  # called in a reading thread
    accepted: float = field(default_factory=time.monotonic)
    recording: Recording | None = None
    batch: "Batch[Job] | None" = None
    ended: bool = False
    size: int = field(init=False, default=0)  # bytes of the file; 0 where it is gone

    def __post_init__(self) -> None:
        with suppress(OSError):
            self.size = self.path.stat().st_size

    def tell(self, event: Event) -> None:
        """Pass an event on; a listener that is gone must not stop the others."""
        try:
            self.listener(event)
        except Exception as error:
            logger.debug("a listener is gone: %s", error)

    def show(self, samples: Samples) -> None:
        """Let who asked look at the samples, before they are heard."""
        if self.look is not None:
            try:
                self.look(samples)
            except Exception:
                logger.exception("a look at the samples failed")


@dataclass
class Counts:
    """What `/metrics` shows; written by the service's thread."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    audio_seconds: float = 0.0
    busy_seconds: float = 0.0
    steps: int = 0
    filled: int = 0  # slots in use, summed over steps
