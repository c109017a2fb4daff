"""Handles Ctrl-C and SIGTERM during a job: finish the files in progress, or stop immediately."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class StopNow(KeyboardInterrupt):
    """Raised in the main thread to stop immediately; unfinished outputs are removed."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class Interrupts:
    """While signals are `caught`, the first SIGINT sets `requested`; a second one raises `StopNow`.

    SIGTERM always raises `StopNow`, and so does the first SIGINT if `in_progress`, the number of
    files that would be finished, returns 0.
    """

    def __init__(self, in_progress: Callable[[], int], *, quiet: bool = False) -> None:
        self.requested = False  # start no more files
        self.status = 0  # exit status, once a signal has arrived
        self._in_progress = in_progress
        self._quiet = quiet

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the two signals. Only the main thread can: elsewhere this does nothing."""
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
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
            with suppress(OSError):
                os.write(2, f"\nslimwhisper: {line}; press Ctrl-C again to stop now\n".encode())
