"""Recordings decoded ahead, in worker threads, no further ahead than asked."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from slimwhisper.errors import SlimWhisperError
from slimwhisper.threads import use_one_thread

Source = TypeVar("Source")
Loaded = TypeVar("Loaded")

WORKERS = min(8, max(1, (os.cpu_count() or 2) // 2))


class Loader(Generic[Source, Loaded]):
    """Runs `load` on sources in other threads; hands out the results in the sources' order.

    At most `ahead` are taken from `sources`, by the caller's thread alone, before the first of them
    is handed out: that bounds memory and open files.
    """

    def __init__(
        self, sources: Iterable[Source], load: Callable[[Source], Loaded], ahead: int
    ) -> None:
        self._sources: Iterator[Source] = iter(sources)
        self._load, self._ahead = load, ahead
        self._pool = ThreadPoolExecutor(WORKERS, "slimwhisper-load", initializer=use_one_thread)
        self._queue: deque[tuple[Source, Future[Loaded]]] = deque()
        self._more = True

    @property
    def exhausted(self) -> bool:
        """Nothing is left to hand out."""
        self._fill()
        return not self._queue

    def next(self, block: bool) -> tuple[Source, Loaded | SlimWhisperError] | None:
        """The next source and what became of it; None where it is not ready and `block` is not set,
        or where nothing is left.
        """
        self._fill()
        if not self._queue or not (block or self._queue[0][1].done()):
            return None
        source, future = self._queue[0]
        wait((future,), return_when=FIRST_COMPLETED)
        self._queue.popleft()
        self._fill()
        return source, _outcome(future)

    def close(self, discard: Callable[[Loaded], Any]) -> None:
        """Stop; what is loaded and was not handed out is given to `discard`."""
        self._more = False
        self._pool.shutdown(wait=True, cancel_futures=True)
        for _, future in self._queue:
            if not future.cancelled() and future.exception() is None:
                discard(future.result())
        self._queue.clear()

    def _fill(self) -> None:
        while self._more and len(self._queue) < self._ahead:
            try:
                source = next(self._sources)
            except StopIteration:
                self._more = False
                return
            self._queue.append((source, self._pool.submit(self._load, source)))


def _outcome(future: "Future[Loaded]") -> Loaded | SlimWhisperError:
    try:
        return future.result()
    except SlimWhisperError as error:
        return error
    except Exception as error:  # one recording's trouble must not end a job of thousands
        wrapped = SlimWhisperError(f"cannot be read: unexpected {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped
