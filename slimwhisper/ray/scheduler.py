"""Which worker transcribes which recording: given completions and deaths, it says what runs where.

It knows neither Ray nor files. Its memory is that of the items it has been given and that have not
ended, however many there are in all.

An item whose worker dies is given back. Which of a dead worker's items killed it is not known, and
mostly none did: so its items become suspects, in two groups, and a group runs in a worker by
itself. If that one dies too, the group is halved. An item in whose only company two workers have
died is set aside; no other ever is.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

DEATHS = 2  # of workers that had nothing else to do, after which an item is set aside
DRAIN_AFTER = 60.0  # seconds that suspects wait for an idle worker before one is made idle
SLOW = 1.5  # times the mean: then an item runs twice, if workers are idle (Spark's multiplier)
COPY_INTERVAL = 1.0  # seconds between looks for such items
MEAN_WEIGHT = 0.02  # of the newest duration in the mean


@dataclass(eq=False, slots=True)
class _Task(Generic[Item]):
    """An item that has been started, or is a suspect."""

    item: Item
    began: float = 0.0
    workers: set[int] = field(default_factory=set)  # two while a copy runs
    deaths: int = 0  # of workers that had nothing else to do


class Scheduler(Generic[Item]):
    """See above. Workers are numbers. It is for one thread.

    Items come by `add` until `end`; of those that wait, the heaviest start first. Every item leaves
    once: by the first `done`, by `down`, or by `stop`.
    """

    def __init__(self, lookahead: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """lookahead: items that may wait while all workers are busy. clock: seconds."""
        self.lookahead = lookahead
        self._clock = clock
        self._waiting: list[tuple[float, int, Item]] = []  # a heap
        self._number = count()
        self._ended = False
        self._stopped = False
        self._tasks: dict[Item, _Task[Item]] = {}  # running or suspect
        self._groups: deque[list[_Task[Item]]] = deque()  # suspects that wait
        self._groups_since = 0.0  # when an idle worker was last found for one, or none waited
        self._rooms: dict[int, int] = {}
        self._loads: dict[int, dict[Item, _Task[Item]]] = {}
        self._open: dict[int, None] = {}  # workers with room
        self._apart: set[int] = set()  # workers that run a group, or drain for one
        self._mean = 0.0  # seconds that an item takes
        self._next_copies = 0.0

    # -- what is known ---------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """How many more items it would take now."""
        if self._ended:
            return 0
        room = sum(self._rooms[w] - len(self._loads[w]) for w in self._open if self._takes_more(w))
        return max(room + self.lookahead - len(self._waiting), 0)

    @property
    def running(self) -> int:
        """The items that run now."""
        return len(self._tasks) - sum(map(len, self._groups))

    @property
    def finished(self) -> bool:
        """No item is left, and none comes."""
        return self._ended and not self._waiting and not self._tasks

    def items_of(self, worker: int) -> tuple[Item, ...]:
        """The items that a worker runs."""
        return tuple(self._loads.get(worker, ()))

    # -- what happens ----------------------------------------------------------------------------

    def add(self, item: Item, weight: float = 0.0) -> None:
        """One more item. weight: how long it is, in any unit; the longest start first."""
        heapq.heappush(self._waiting, (-weight, next(self._number), item))

    def end(self) -> None:
        """No more items will come."""
        self._ended = True

    def up(self, worker: int, room: int) -> None:
        """A worker has started; it takes up to `room` items at a time."""
        self._rooms[worker], self._loads[worker] = room, {}
        self._open[worker] = None

    def done(self, worker: int, item: Item) -> tuple[int, ...] | None:
        """A worker has ended an item.

        Returns the other workers that run it, which is now in vain; None if it has ended before.
        """
        load = self._loads.get(worker)
        if load is not None and load.pop(item, None) is not None:
            self._freed(worker)
        task = self._tasks.pop(item, None)
        if task is None:
            return None
        took = self._clock() - task.began
        self._mean += (took - self._mean) * (MEAN_WEIGHT if self._mean else 1.0)
        return tuple(w for w in task.workers if w != worker)

    def down(self, worker: int) -> list[Item]:
        """A worker has died. Returns the items that are set aside; the others run again,
        unless after `stop`."""
        load = self._loads.pop(worker, {})
        del self._rooms[worker]
        self._open.pop(worker, None)
        self._apart.discard(worker)
        lost = []
        for item, task in load.items():
            task.workers.discard(worker)
            if self._tasks.get(item) is task and not task.workers:
                lost.append(task)
        if len(load) == 1 and lost:
            (task,) = lost
            task.deaths += 1
            if task.deaths >= DEATHS:
                del self._tasks[task.item]
                return [task.item]
        if self._stopped:
            for task in lost:
                del self._tasks[task.item]
            return []
        half = (len(lost) + 1) // 2
        if not self._groups:
            self._groups_since = self._clock()
        self._groups.extend(group for group in (lost[:half], lost[half:]) if group)
        return []

    def stop(self) -> None:
        """Start nothing more: items that wait, or were given back, leave."""
        for group in self._groups:
            for task in group:
                del self._tasks[task.item]
        self._waiting.clear()
        self._groups.clear()
        self._ended = self._stopped = True

    # -- what to do ------------------------------------------------------------------------------

    def assign(self) -> list[tuple[int, Item]]:
        """What to start, and in which worker."""
        given: list[tuple[int, Item]] = []
        if self._groups:
            self._assign_groups(given)
        while self._waiting:
            takers = [worker for worker in self._open if self._takes_more(worker)]
            if not takers:
                break
            for worker in takers:  # in turns, so that all workers have some
                if not self._waiting:
                    break
                item = heapq.heappop(self._waiting)[2]
                self._tasks[item] = _Task(item)
                self._start(worker, self._tasks[item], given)
        if self._ended and not self._waiting and not self._groups:
            self._assign_copies(given)
        return given

    def _takes_more(self, worker: int) -> bool:
        return worker not in self._apart

    def _start(self, worker: int, task: _Task[Item], given: list[tuple[int, Item]]) -> None:
        load = self._loads[worker]
        load[task.item] = task
        if not task.workers:
            task.began = self._clock()
        task.workers.add(worker)
        if len(load) >= self._rooms[worker]:
            self._open.pop(worker, None)
        given.append((worker, task.item))

    def _freed(self, worker: int) -> None:
        if not self._loads[worker]:
            self._apart.discard(worker)
        self._open[worker] = None

    def _assign_groups(self, given: list[tuple[int, Item]]) -> None:
        """Give groups of suspects to idle workers; if there are none for long, make one idle."""
        now = self._clock()
        for worker in [w for w in self._open if not self._loads[w]]:
            if not self._groups:
                return
            group = self._groups.popleft()
            room = self._rooms[worker]
            if len(group) > room:
                self._groups.appendleft(group[room:])
            self._apart.add(worker)
            for task in group[:room]:
                self._start(worker, task, given)
            self._groups_since = now
        if self._groups and now - self._groups_since >= DRAIN_AFTER:
            busy = [w for w in self._loads if w not in self._apart]
            if busy:
                self._apart.add(min(busy, key=lambda w: len(self._loads[w])))
            self._groups_since = now

    def _assign_copies(self, given: list[tuple[int, Item]]) -> None:
        """At the end, run what takes long in idle workers too; the first result counts."""
        now = self._clock()
        if now < self._next_copies:
            return
        self._next_copies = now + COPY_INTERVAL
        idle = [w for w in self._open if not self._loads[w]]
        if not idle:
            return
        late = [
            task
            for task in self._tasks.values()
            if len(task.workers) == 1 and now - task.began > SLOW * self._mean
        ]
        late.sort(key=lambda task: task.began)
        room = max(self._rooms[w] for w in idle)
        turns = [w for turn in range(room) for w in idle if turn < self._rooms[w]]
        for task, worker in zip(late, turns, strict=False):
            self._start(worker, task, given)
