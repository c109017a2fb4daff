"""The number of threads that torch uses, per calling thread; and worker threads that load
recordings ahead of time, at most a given number of them.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

from slimwhisper.cores import VARIABLES, find_cores
from slimwhisper.errors import SlimWhisperError, wrap_unexpected

_LOCK = threading.Lock()
_chosen = False  # by `set_threads`


def set_threads(count: int = 0) -> None:
    """Let torch use `count` threads, in the calling thread and in those that start later. 0: as
    many as this process has cores, if torch uses more by its own choice: it knows of no quota.

    A number that someone has set, here or in the environment, stays; one like torch's own choice
    does not count as set.
    """
    global _chosen
    with _LOCK:
        if count:
            _chosen = True
        elif not (_chosen or any(name in os.environ for name in VARIABLES)):
            found, current = find_cores(), torch.get_num_threads()
            if found.threads < current in (found.physical, found.allowed, found.machine):
                count = found.threads
        if count:
            torch.set_num_threads(count)


@contextmanager
def one_thread(count: int = 1) -> Iterator[None]:
    """Sets torch's number of threads for the calling thread: one, or `count`. All other threads
    keep theirs, also if the body, such as an import, changes the number globally.

    For threads that work alongside a model: two thread pools on the same cores wait for each
    other.
    """
    with _LOCK:
        default = usual_threads()
        torch.get_num_threads()  # a first call after the body would set the default
        try:
            yield
        finally:
            torch.set_num_threads(count)
            # this applies to all threads started later, too; another thread reverts it for them
            restore = threading.Thread(target=torch.set_num_threads, args=(default,))
            restore.start()
            restore.join()


def use_threads(count: int = 1) -> None:
    """torch uses `count` threads in the calling thread; all other threads keep their number."""
    with one_thread(count):
        pass


def usual_threads() -> int:
    """torch's number of threads in a new thread."""
    numbers: list[int] = []
    probe = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    probe.start()
    probe.join()
    return numbers[0]


Source = TypeVar("Source")
Loaded = TypeVar("Loaded")

WORKERS = min(8, max(1, find_cores().usable // 2))


class Loader(Generic[Source, Loaded]):
    """Runs `load` on sources in other threads; returns the results in the sources' order.

    One thread reads the sources, so a slow iterator does not block the caller. At most `ahead` are
    read before the first of them is returned, which bounds memory and open files.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        load: Callable[[Source], Loaded],
        ahead: int,
        workers: int | None = None,
    ) -> None:
        """workers: threads; None: `WORKERS`."""
        self.exhausted = False  # no results are left; known once `next` has returned None
        self._load = load
        self._slots = threading.Semaphore(ahead)
        self._pool = ThreadPoolExecutor(
            workers or WORKERS, "slimwhisper-load", initializer=use_threads
        )
        # the last item is what the sources' iterator raised, usually StopIteration
        self._items: deque[tuple[Source, Future[Loaded]] | BaseException] = deque()
        self._count = threading.Semaphore(0)  # of the items
        self._closed = False
        # a daemon: it may wait for an iterator that never ends
        threading.Thread(target=self._submit_all, args=(sources,), daemon=True).start()

    def _submit_all(self, sources: Iterable[Source]) -> None:
        try:
            iterator = iter(sources)
            while not self._closed:
                self._slots.acquire()
                if self._closed:
                    return
                source = next(iterator)
                self._items.append((source, self._pool.submit(self._load, source)))
                self._count.release()
        except BaseException as problem:
            self._items.append(problem)
            self._count.release()

    def next(self, block: bool) -> tuple[Source, Loaded | SlimWhisperError] | None:
        """The next source and its result; None if it is not ready and `block` is False, or at the
        end. Raises what the sources' iterator raised.
        """
        item = self._items[0] if self._items else None
        is_ready = isinstance(item, BaseException) or (item is not None and item[1].done())
        if self.exhausted or not (block or is_ready):
            return None
        self._count.acquire()
        item = self._items.popleft()
        if isinstance(item, BaseException):
            self.exhausted = True
            if not isinstance(item, StopIteration):
                raise item
            return None
        source, future = item
        outcome: Loaded | SlimWhisperError
        try:
            outcome = future.result()
        except Exception as error:  # one bad recording must not end a job of thousands
            outcome = wrap_unexpected(error, "cannot be read: ")
        self._slots.release()
        return source, outcome

    def close(self, discard: Callable[[Loaded], Any]) -> None:
        """Stop. Results not yet returned, loaded or still loading, are passed to `discard`."""
        self._closed = True
        self._slots.release()
        self._pool.shutdown(wait=False, cancel_futures=True)

        def drop(future: "Future[Loaded]") -> None:
            if not future.cancelled() and future.exception() is None:
                discard(future.result())

        for item in list(self._items):
            if not isinstance(item, BaseException):
                item[1].add_done_callback(drop)
