"""Assigns recordings to workers, as others are completed and as workers die.

It knows neither Ray nor files. The items of a worker that dies are tried once more, each alone in
an idle worker. An item fails if its worker dies this time, too.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class WorkScheduler(Generic[Item]):
    """See the module. Workers are numbers. For one thread."""

    def __init__(self) -> None:
        self._suspects: deque[Item] = deque()  # of dead workers
        self._rooms: dict[int, int] = {}  # items that a worker takes at a time
        self._loads: dict[int, set[Item]] = {}
        self._alone: set[int] = set()  # workers that run a suspect

    @property
    def running(self) -> int:
        """The number of items that run now."""
        return sum(map(len, self._loads.values()))

    @property
    def finished(self) -> bool:
        """Whether no item is running or has to run again."""
        return not (self._suspects or self.running)

    def up(self, worker: int, room: int) -> None:
        """A worker has started; it takes up to `room` items at a time."""
        self._rooms[worker], self._loads[worker] = room, set()

    def done(self, worker: int, item: Item) -> None:
        """A worker has ended an item."""
        self._loads[worker].remove(item)
        self._alone.discard(worker)

    def down(self, worker: int) -> tuple[set[Item], bool]:
        """A worker has died. Returns its items, and whether they have failed; otherwise they will
        run again.
        """
        lost, failed = self._loads.pop(worker, set()), worker in self._alone
        self._alone.discard(worker)
        if not failed:
            self._suspects.extend(lost)
        return lost, failed

    def assign(self, next_item: Callable[[], Item | None]) -> Iterator[tuple[int, Item]]:
        """The items to start, each with its worker. next_item: a new item, or None for none now."""
        for worker, load in self._loads.items():
            if self._suspects and not load:
                self._alone.add(worker)
                yield self._start(worker, self._suspects.popleft())
        while available := [worker for worker in self._loads if self._has_room(worker)]:
            for worker in available:  # in turns, so that all have work
                if (item := next_item()) is None:
                    return
                yield self._start(worker, item)

    def _has_room(self, worker: int) -> bool:
        return worker not in self._alone and len(self._loads[worker]) < self._rooms[worker]

    def _start(self, worker: int, item: Item) -> tuple[int, Item]:
        self._loads[worker].add(item)
        return worker, item
