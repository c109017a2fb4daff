"""The service's jobs, the events they report, and its limits; and their queue, where users take
turns at having a recording read.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from slimwhisper.audio.samples import Samples
from slimwhisper.cores import WORKERS
from slimwhisper.errors import SlimWhisperError
from slimwhisper.recordings.transcribe import AnyRecording
from slimwhisper.service.shared_engine import Submission
from slimwhisper.service.source import Failed, Finished, Progress

logger = logging.getLogger("slimwhisper.serve")

AHEAD = 2 * WORKERS  # recordings read ahead, whatever their size
AHEAD_BYTES = 32 << 20  # up to this size, more are read ahead, so that a step can fill all slots
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


class JobStarted(NamedTuple):
    """The recording has been read and is about to be transcribed."""

    seconds: float  # of audio


# new segments, and how many seconds are done; the transcript; or a SlimWhisperError
Event = JobStarted | Progress | Finished | Failed


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
    listener: Callable[[Event], object]  # called in the service's thread
    on_samples: Callable[[Samples], None] | None = None  # called in a reading thread
    script: Sequence[str] = ()  # lines of a text to align with it, as in `Recording`
    mix_instead: bool = False  # mix, with a warning, channels that cannot be split
    warnings: list[str] = field(init=False, default_factory=list)  # of its file, options and voices
    channels: int = field(init=False, default=1)  # that are split, once it has been read
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


class Jobs:
    """The jobs in flight, in the order of the queue.

    Changing it needs the service's lock; reading it does not.
    """

    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        self.cancelled: set[Job] = set()  # since the service last looked

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs))

    def enqueue(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        job.state = JobState.WAITING
        self._jobs.pop(job, None)
        self._jobs[job] = None

    def drop(self, job: Job) -> None:
        """Remove a job that has ended. No effect if it was removed before."""
        self._jobs.pop(job, None)

    def in_state(self, state: JobState) -> list[Job]:
        """The jobs in a state."""
        return [job for job in self if job.state is state]

    def states(self) -> dict[str, int]:
        """The number of jobs in each state."""
        return {s.value: len(self.in_state(s)) for s in JobState if s is not JobState.ENDED}

    def position(self, job: Job) -> int:
        """A job's position in the queue, from 1; 0 if it is no longer waiting."""
        waiting = self.in_state(JobState.WAITING)
        return 1 + waiting.index(job) if job in waiting else 0

    def next_to_read(self, slots: int, admit: Callable[[Job], bool]) -> list[Job]:
        """The jobs to read next, all for one model.

        Users with the fewest jobs in progress come first. A different model has to wait until all
        jobs for the current one have ended. admit: reserves room for a job's recording, and returns
        whether there is room.
        """
        chosen: list[Job] = []
        waiting = self.in_state(JobState.WAITING)
        busy = [job for job in self if job.state is not JobState.WAITING]
        while waiting and _may_read(busy, slots) and (busy or waiting)[0].model == waiting[0].model:
            users = Counter(job.user for job in busy)
            same = [job for job in waiting if job.model == waiting[0].model]
            job = next(filter(admit, sorted(same, key=lambda job: users[job.user])), None)
            if job is None:
                break
            job.state = JobState.READING
            waiting.remove(job)
            busy.append(job)
            chosen.append(job)
        return chosen


def _may_read(busy: list[Job], slots: int) -> bool:
    """Whether to read one more recording, besides those of `busy` that are being read."""
    sizes = [job.size for job in busy if job.state is JobState.READING]
    are_small = sum(sizes) < AHEAD_BYTES
    return len(sizes) < AHEAD or (len(sizes) < slots and are_small)
