"""Which worker transcribes which recording: given completions and deaths, it says what runs where.

It knows neither Ray nor files. What a worker had when it died is tried once more, each item alone
in a worker that has nothing else to do. An item whose worker dies then too is given up.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Scheduler(Generic[Item]):
    """See above. Workers are numbers. It is for one thread."""

    def __init__(self) -> None:
        self._suspects: deque[Item] = deque()  # of dead workers
        self._rooms: dict[int, int] = {}  # items that a worker takes at a time
        self._loads: dict[int, set[Item]] = {}
        self._alone: set[int] = set()  # workers that run a suspect

    @property
    def running(self) -> int:
        """The items that run now."""
        return sum(map(len, self._loads.values()))

    @property
    def finished(self) -> bool:
        """No item that has been taken is left, running or to run again."""
        return not (self._suspects or self.running)

    def up(self, worker: int, room: int) -> None:
        """A worker has started; it takes up to `room` items at a time."""
        self._rooms[worker], self._loads[worker] = room, set()

    def done(self, worker: int, item: Item) -> None:
        """A worker has ended an item."""
        self._loads[worker].remove(item)
        self._alone.discard(worker)

    def down(self, worker: int) -> tuple[set[Item], bool]:
        """A worker has died. Returns what it had, and whether that is given up; otherwise it will
        run again.
        """
        lost, given_up = self._loads.pop(worker, set()), worker in self._alone
        self._alone.discard(worker)
        if not given_up:
            self._suspects.extend(lost)
        return lost, given_up

    def assign(self, take: Callable[[], Item | None]) -> Iterator[tuple[int, Item]]:
        """What to start, and in which worker. take: the next new item; None: there is none now."""
        for worker, load in self._loads.items():
            if self._suspects and not load:
                self._alone.add(worker)
                yield self._start(worker, self._suspects.popleft())
        while takers := [worker for worker in self._loads if self._takes_more(worker)]:
            for worker in takers:  # in turns, so that all have some
                if (item := take()) is None:
                    return
                yield self._start(worker, item)

    def _takes_more(self, worker: int) -> bool:
        return worker not in self._alone and len(self._loads[worker]) < self._rooms[worker]

    def _start(self, worker: int, item: Item) -> tuple[int, Item]:
        self._loads[worker].add(item)
        return worker, item
