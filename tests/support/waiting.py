"""Waiting for what happens in other threads and processes."""

import time
from collections.abc import Callable

PATIENCE = 20.0  # seconds until all is as before


def eventually(holds: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether it holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held
