"""Ctrl-C and SIGTERM during a job: finish what is in progress, or stop at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopNow(KeyboardInterrupt):
    """Raised in the main thread, wherever it is: what is half-done is undone, and no more."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class Interrupts:
    """While entered: the first SIGINT asks to finish, the second and SIGTERM raise `StopNow`.

    `in_progress` says how many files would be finished; with none the first SIGINT raises too.
    Elsewhere than in the main thread, where signals cannot be caught, nothing changes.
    """

    def __init__(self, in_progress: Callable[[], int], *, quiet: bool = False) -> None:
        self.requested = False  # admit no more files
        self.status = 0  # exit status, once a signal has come
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
            # past the buffers: the main thread may be in the midst of writing to them
            line = f"finishing {files} file{'s' * (files > 1)} in progress"
            os.write(2, f"\nslimwhisper: {line}; press Ctrl-C again to stop at once\n".encode())
