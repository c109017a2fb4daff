"""Ctrl-C and SIGTERM during a job: finish the files in progress, or stop at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopNow(KeyboardInterrupt):
    """Raised in the main thread to stop at once; unfinished outputs are removed."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class Interrupts:
    """A context in which the first SIGINT sets `requested`; a second one raises `StopNow`.

    SIGTERM raises `StopNow` at once, and so does the first SIGINT if `in_progress`, the number of
    files that would be finished, returns 0. Only the main thread can catch signals; in any other
    thread the context does nothing.
    """

    def __init__(self, in_progress: Callable[[], int], *, quiet: bool = False) -> None:
        self.requested = False  # start no more files
        self.status = 0  # exit status, once a signal has arrived
        self._in_progress = in_progress
        self._quiet = quiet
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        first = not self.requested
        self.requested = True
        self.status = 128 + number
        files = self._in_progress()
        if number == signal.SIGTERM or not first or not files:
            raise StopNow(self.status)
        if not self._quiet:
            # unbuffered: the signal may have interrupted a write to sys.stderr
            line = f"finishing {files} file{'s' * (files > 1)} in progress"
            os.write(2, f"\nslimwhisper: {line}; press Ctrl-C again to stop at once\n".encode())
