"""Simulated workers: the driver's own code on a clock that jumps from event to event."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.marks import Written
from slimwhisper.ray.driver import Down, Driver, Event, Listeners, Reported, Up
from slimwhisper.ray.results import Ended, Report
from slimwhisper.types import Transcript

TICK = 0.02  # seconds: how often a driver hears of workers
RESTART = 30.0  # seconds until a new worker is ready
DONE = Written("done", Transcript("", [], "en"))


@dataclass
class SimulatedWorker:
    slots: int
    speed: float = 1.0
    busy: dict[InputFile, int] = field(default_factory=dict)  # -> the number of its event
    queue: deque[InputFile] = field(default_factory=deque)
    up: bool = False


class SimulatedCluster:
    """Workers that decode `slots` recordings at a time, each for as long as `duration` says."""

    def __init__(
        self,
        workers: int,
        slots: int,
        duration: Callable[[InputFile], float],
        *,
        poison: Callable[[InputFile], bool] = lambda _: False,
        speed: Callable[[int], float] = lambda _: 1.0,
        kills: float = 0.0,  # of workers, a second
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.busy_seconds = 0.0  # of slots
        self.deaths = 0
        self.dropped: list[InputFile] = []
        self.alive: dict[int, SimulatedWorker] = {}
        self._slots, self._duration, self._poison, self._speed = slots, duration, poison, speed
        self._random, self._kills = random.Random(seed), kills
        self._events: list[tuple[float, int, int, InputFile | None]] = []
        self._void: set[int] = set()
        self._number, self._workers = count(), count()
        self._killed: list[int] = []
        for _ in range(workers):
            self._boot(0.0)

    def submit(self, worker: int, recordings: list[InputFile]) -> None:
        if worker in self.alive:
            self.alive[worker].queue.extend(recordings)
            self._fill(worker)

    def drop(self, worker: int, recording: InputFile) -> None:
        self.dropped.append(recording)

    def wait(self, seconds: float) -> list[Event]:
        found: list[Event] = [Down(worker) for worker in self._killed]
        self._killed.clear()
        if self._events:
            self.now = max(self.now, self._events[0][0])
        until = self.now + TICK
        ended: dict[int, list[Ended]] = {}
        while self._events and self._events[0][0] <= until:
            self.now, number, worker, recording = heapq.heappop(self._events)
            if number in self._void:
                self._void.discard(number)
                continue
            if recording is None:
                if worker in self.alive:
                    self._die(worker)
                else:
                    found.append(self._arrive(worker))
                continue
            state = self.alive[worker]
            del state.busy[recording]
            seconds_taken = self._duration(recording) / state.speed
            self.busy_seconds += seconds_taken
            ended.setdefault(worker, []).append(Ended(recording, DONE, seconds_taken))
            self._fill(worker)
        self.now = until
        dead = set(self._killed)
        found += [Reported(w, Report(e)) for w, e in ended.items() if w not in dead]
        return found

    def _boot(self, after: float) -> None:
        heapq.heappush(
            self._events, (self.now + after, next(self._number), next(self._workers), None)
        )

    def _arrive(self, worker: int) -> Up:
        self.alive[worker] = SimulatedWorker(self._slots, self._speed(worker))
        if self._kills:
            moment = self.now + self._random.expovariate(self._kills)
            heapq.heappush(self._events, (moment, next(self._number), worker, None))
        return Up(worker, self._slots + max(16, self._slots // 2), {}, [])

    def _fill(self, worker: int) -> None:
        state = self.alive[worker]
        while state.queue and len(state.busy) < state.slots:
            recording = state.queue.popleft()
            if self._poison(recording):
                self._die(worker)
                return
            number = next(self._number)
            state.busy[recording] = number
            moment = self.now + self._duration(recording) / state.speed
            heapq.heappush(self._events, (moment, number, worker, recording))

    def _die(self, worker: int) -> None:
        """What it did not report is lost."""
        self.deaths += 1
        self._void.update(self.alive.pop(worker).busy.values())
        self._killed.append(worker)
        self._boot(RESTART)


class Inline:
    """Names recordings when they are wanted."""

    def __init__(self, recordings: Iterator[InputFile]) -> None:
        self._recordings = recordings

    def take(self, most: int) -> tuple[list[InputFile], bool]:
        found = list(islice(self._recordings, most))
        return found, len(found) < most

    def close(self) -> None:
        self._recordings = iter(())


def simulate(
    cluster: SimulatedCluster,
    recordings: Iterator[InputFile],
    ended: Callable[[list[Ended]], None],
    weight: Callable[[InputFile], float] = lambda _: 0.0,
    stopping: Callable[[], bool] = lambda: False,
) -> Driver:
    """Run the driver to its end."""
    listeners = Listeners(
        up=lambda _: None,
        started=lambda _: None,
        ended=ended,
        counts=lambda *_: None,
        stopping=stopping,
    )
    driver = Driver(cluster, Inline(recordings), listeners, weight, clock=lambda: cluster.now)
    driver.run()
    return driver
