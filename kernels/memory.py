"""Free memory in the C library's heaps, returned to the system.

An encoder's activations are large and short-lived, and smaller blocks between them in the heaps
keep their memory from being returned: with many windows side by side, more than the caches take.
"""

import ctypes
import time
from collections.abc import Callable
from functools import cache

INTERVAL = 1.0  # seconds between two trims, at least; one costs 20 ms


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None: another library."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return trim
    except (OSError, AttributeError, TypeError):
        return None


class HeapTrimmer:
    """Returns the heaps' free memory to the system from time to time."""

    def __init__(self) -> None:
        self._last = 0.0

    def trim(self) -> None:
        """Trim the heaps, unless that was less than `INTERVAL` ago or cannot be done."""
        now, trim = time.monotonic(), _trim()
        if trim is not None and now - self._last >= INTERVAL:
            trim(0)
            self._last = now
