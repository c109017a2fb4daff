"""Memory that the C library keeps for later, given back to the system.

An encoder's activations are large and short-lived, and what lies between them in the C library's
heaps keeps their memory from being returned: with many windows side by side, that is more than the
caches take.
"""

import ctypes
import time
from collections.abc import Callable
from functools import cache

LEAST = 1.0  # seconds between two returns; one, and what it frees, cost 20 ms


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None: another library."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return found
    except (OSError, AttributeError, TypeError):
        return None


class FreeMemory:
    """Gives free memory back, now and then."""

    def __init__(self) -> None:
        self._last = 0.0

    def give_back(self) -> None:
        """Unless that was just now, or cannot be done."""
        now, trim = time.monotonic(), _trim()
        if trim is not None and now - self._last >= LEAST:
            trim(0)
            self._last = now
