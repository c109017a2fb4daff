"""Waiting for what happens in other threads and processes."""

import os
import signal
import time
from collections.abc import Callable

PATIENCE = 20.0  # seconds until all is as before


def eventually(holds: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether it holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def forked(holds: Callable[[], bool]) -> Callable[[], bool]:
    """Begin in a child of fork; the result says whether it held there."""
    if not (pid := os.fork()):
        code = 1
        signal.alarm(round(PATIENCE))
        try:
            code = not holds()
        finally:
            os._exit(code)
    return lambda: os.waitpid(pid, 0)[1] == 0
