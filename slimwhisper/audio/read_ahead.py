"""Loads recordings ahead of time in worker threads, at most a given number of them."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from slimwhisper.audio.threads import use_threads
from slimwhisper.cores import find_cores
from slimwhisper.errors import SlimWhisperError, wrap_unexpected

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
        self._queue: SimpleQueue[tuple[Source, Future[Loaded]] | BaseException] = SimpleQueue()
        self._head: tuple[Source, Future[Loaded]] | None = None
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
                self._queue.put((source, self._pool.submit(self._load, source)))
        except BaseException as problem:
            self._queue.put(problem)

    def next(self, block: bool) -> tuple[Source, Loaded | SlimWhisperError] | None:
        """The next source and its result; None if it is not ready and `block` is False, or at the
        end. Raises what the sources' iterator raised.
        """
        if self._head is None and not self.exhausted:
            try:
                item = self._queue.get(block)
            except Empty:
                return None
            if isinstance(item, BaseException):
                self.exhausted = True
                if not isinstance(item, StopIteration):
                    raise item
                return None
            self._head = item
        if self._head is None or not (block or self._head[1].done()):
            return None
        source, future = self._head
        outcome: Loaded | SlimWhisperError
        try:
            outcome = future.result()
        except Exception as error:  # one bad recording must not end a job of thousands
            outcome = wrap_unexpected(error, "cannot be read: ")
        self._head = None
        self._slots.release()
        return source, outcome

    def close(self, discard: Callable[[Loaded], Any]) -> None:
        """Stop. Results not yet returned, loaded or still loading, are passed to `discard`."""
        self._closed = True
        self._slots.release()
        self._pool.shutdown(wait=False, cancel_futures=True)
        pending = [] if self._head is None else [self._head]
        while not self._queue.empty():
            item = self._queue.get()
            if not isinstance(item, BaseException):
                pending.append(item)

        def drop(future: "Future[Loaded]") -> None:
            if not future.cancelled() and future.exception() is None:
                discard(future.result())

        for _, future in pending:
            future.add_done_callback(drop)
