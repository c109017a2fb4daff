"""A lock for threads that take turns."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class FairLock:
    """A lock whose waiting threads get it in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()  # the first one has it
        self._owner = 0  # the identity of its thread

    @property
    def held(self) -> bool:
        """Whether a thread has it, or waits for it."""
        return bool(self._queue)

    @property
    def mine(self) -> bool:
        """Whether the calling thread has it."""
        return self._owner == threading.get_ident()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold it."""
        place = object()
        try:
            with self._changed:
                self._queue.append(place)
                while self._queue[0] is not place:
                    self._changed.wait()
                self._owner = threading.get_ident()
            yield
        finally:
            with self._changed, suppress(ValueError):
                if self._queue[0] is place:
                    self._owner = 0
                self._queue.remove(place)
                self._changed.notify_all()
