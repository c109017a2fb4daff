"""Which engines have slots, a policy without effects; and which thread makes the next step.

A model's engines share its memory. Those of one kind of search take turns with those of another;
an engine with live streams keeps its slots as long as there are streams.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the policy needs to know of an engine."""

    used: bool  # it has sources
    live: bool = False  # some of them are live
    allocated: bool = False  # it has slots
    idle: bool = True  # no windows are in them
    resize: bool = False  # another number of slots is wanted


@dataclass(slots=True)
class NextTurn:
    """What to do next, by the engines' indices."""

    drain: set[int] = field(default_factory=set)  # start no windows there, so that it becomes idle
    release: list[int] = field(default_factory=list)  # take its slots; then it is the last in turn
    allocate: list[int] = field(default_factory=list)  # make its slots, in this order


def next_turn(engines: Sequence[EngineState], over: bool, together: bool = False) -> NextTurn:
    """Whose turn it is.

    Arguments:
        engines: in the order of their turns.
        over: whether the current turn has lasted long enough, if others wait.
        together: engines do not wait for each other: there is memory for all.
    """
    turn = NextTurn()
    waiting = [i for i, engine in enumerate(engines) if engine.used and not engine.allocated]
    over = over or any(engines[i].live for i in waiting)
    holding = False
    for i, engine in enumerate(engines):
        holds = engine.allocated and not engine.live
        yields = holds and bool(waiting) and not together and (over or not engine.used)
        if engine.allocated and (yields or engine.resize):
            if engine.idle:
                turn.release.append(i)
                waiting += [i] if engine.used else []
                continue
            turn.drain.add(i)
        holding |= holds
    for i in sorted(waiting, key=lambda i: not engines[i].live):
        if holding and not together:
            break
        turn.allocate.append(i)
        holding = not engines[i].live
    return turn


class FairLock:
    """A lock whose waiting threads get it in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[list[int]] = deque()  # identities of threads; the first one has it

    @property
    def held(self) -> bool:
        """Whether a thread has it, or waits for it."""
        return bool(self._queue)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold it."""
        place = [threading.get_ident()]
        try:
            with self._changed:
                # one of this thread's is left of an interrupt, as nobody gets it twice
                self._queue = deque(other for other in self._queue if other != place)
                self._queue.append(place)
                while self._queue[0] is not place:
                    self._changed.wait()
            yield
        finally:
            self._leave(place)

    def _leave(self, place: list[int]) -> None:
        with self._changed:
            self._queue = deque(other for other in self._queue if other is not place)
            self._changed.notify_all()

    @contextmanager
    def at_once(self) -> Iterator[bool]:
        """Hold it if nobody has it or waits for it; whether it is held."""
        place = [threading.get_ident()]
        with self._changed:
            free = not self._queue
            if free:
                self._queue.append(place)
        try:
            yield free
        finally:
            if free:
                self._leave(place)
