"""The driver's loop: recordings -> scheduler -> workers -> what has ended. It does not know Ray."""

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.marks import Written
from slimwhisper.ray.results import Ended, FeedCounts, Report
from slimwhisper.ray.scheduler import DEATHS, Scheduler

WAIT = 0.1  # seconds for which the loop waits for workers
LOOKAHEAD = 256  # recordings, at least, of which the longest start first
FRUITLESS = 20  # deaths, and two of each worker, with no result between them, that end the job

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Up:
    """A worker has loaded its model."""

    worker: int
    room: int  # recordings that it takes at a time
    facts: dict[str, Any]  # `model_facts`
    warnings: list[str]  # of loading


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker has reported."""

    worker: int
    report: Report


@dataclass(frozen=True, slots=True)
class Down:
    """A worker has died. If another replaces it, it has another number."""

    worker: int


Event = Up | Reported | Down


class Cluster(Protocol):
    """The workers; each has a number of its own."""

    def submit(self, worker: int, recordings: list[InputFile]) -> None:
        """Give recordings to a worker. No error if it has died meanwhile: `wait` says that."""

    def drop(self, worker: int, recording: InputFile) -> None:
        """Another worker has done this one. No error either."""

    def wait(self, seconds: float) -> list[Event]:
        """What has happened, after at most `seconds` if that is nothing."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """What a job does when something happens."""

    up: Callable[[Up], None]
    started: Callable[[InputFile], None]
    ended: Callable[[list[Ended]], None]  # each recording once
    counts: Callable[[int, FeedCounts | None], None]  # of a worker; None: it has died
    stopping: Callable[[], bool]  # whether nothing more is to start


class Source(Protocol):
    """Where recordings come from, however many."""

    def take(self, most: int) -> tuple[list[InputFile], bool]:
        """Up to so many that are there, without waiting; and whether those were the last."""

    def close(self) -> None:
        """No more are wanted."""


class ReadAhead(Generic[T]):
    """Takes items from a slow iterator in another thread, a few ahead."""

    def __init__(self, items: Iterator[T], ahead: int) -> None:
        self._queue: queue.Queue[T | BaseException | None] = queue.Queue(ahead)
        self._closed = False
        threading.Thread(target=self._run, args=(items,), name="inputs", daemon=True).start()

    def take(self, most: int) -> tuple[list[T], bool]:
        """The items that are there, and whether those were the last. Raises what they raised."""
        items: list[T] = []
        with suppress(queue.Empty):
            for _ in range(most):
                item = self._queue.get_nowait()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    return items, True
                items.append(item)
        return items, False

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _run(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._queue.put(item)
                if self._closed:
                    return
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)


class Driver:
    """Transcribes the recordings of a source on a cluster, however many there are."""

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        listeners: Listeners,
        weight: Callable[[InputFile], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """weight: how long a recording is, in any unit; the longest of some start first."""
        self.cluster, self.listeners = cluster, listeners
        self.scheduler: Scheduler[InputFile] = Scheduler(LOOKAHEAD, clock)
        self._source = source
        self._weight = weight
        self._read = self._stopped = False
        self._deaths = 0  # since the last result
        self._workers: set[int] = set()
        self._most_workers = 0  # at a time
        self.unclean: set[Path] = set()  # folders in which dead workers may have been writing

    @property
    def in_progress(self) -> int:
        """Recordings in workers."""
        return self.scheduler.running

    def run(self) -> None:
        """Until every recording has ended or, once nothing is to start, what runs has.

        Raises SlimWhisperError if workers die whatever they are given.
        """
        while not self.scheduler.finished:
            if self.listeners.stopping() and not self._stopped:
                self._stopped = self._read = True
                self._source.close()
                self.scheduler.stop()
                continue
            self._take()
            self._assign()
            self._handle(self.cluster.wait(WAIT))

    def _take(self) -> None:
        wanted = self.scheduler.wanted
        if self._read or not wanted:
            return
        recordings, self._read = self._source.take(wanted)
        for recording in recordings:
            self.scheduler.add(recording, self._weight(recording))
        if self._read:
            self.scheduler.end()

    def _assign(self) -> None:
        given: defaultdict[int, list[InputFile]] = defaultdict(list)
        for worker, recording in self.scheduler.assign():
            self.listeners.started(recording)
            given[worker].append(recording)
        for worker, recordings in given.items():
            self.cluster.submit(worker, recordings)

    def _handle(self, events: list[Event]) -> None:
        ended: list[Ended] = []
        for event in events:
            match event:
                case Up():
                    self.listeners.up(event)
                    self.scheduler.up(event.worker, event.room)
                    self._workers.add(event.worker)
                    self._most_workers = max(self._most_workers, len(self._workers))
                case Reported():
                    self.listeners.counts(event.worker, event.report.counts)
                    self._deaths = 0 if event.report.ended else self._deaths
                    ended += [e for e in event.report.ended if self._is_first(event.worker, e)]
                case Down():
                    self._deaths += 1
                    self._workers.discard(event.worker)
                    self.listeners.counts(event.worker, None)
                    self.unclean.update(
                        r.output.parent for r in self.scheduler.items_of(event.worker)
                    )
                    ended += map(_set_aside, self.scheduler.down(event.worker))
        if ended:
            self.listeners.ended(ended)
        if self._deaths >= FRUITLESS + 2 * self._most_workers:
            raise SlimWhisperError(
                f"{self._deaths} workers have died and nothing was transcribed in between; "
                "try one recording without --engine ray"
            )

    def _is_first(self, worker: int, ended: Ended) -> bool:
        others = self.scheduler.done(worker, ended.recording)
        for other in others or ():
            self.cluster.drop(other, ended.recording)
        return others is not None


def _set_aside(recording: InputFile) -> Ended:
    error = SlimWhisperError(
        f"{recording.path}: {DEATHS} workers died that had nothing but this recording, so it is "
        "set aside; convert it to WAV or FLAC"
    )
    return Ended(recording, Written("failed", error), None)
