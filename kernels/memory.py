"""Free memory in the heaps of the C library: kept from call to call, and returned now and then.

An encoder's activations are large and short-lived. The C library returns them to the system, layer
by layer, and takes them back page by page: of a short recording's time on a CPU, a tenth. So they
are kept. But smaller blocks between them in the heaps keep their memory from being used for others:
with many windows side by side, more than the caches take. So they are returned now and then.
"""

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache

INTERVAL = 1.0  # seconds between two trims, at least; one costs 20 ms
# of glibc's mallopt: free bytes at a heap's end that stay, and the size from which blocks lie
# outside heaps, which glibc itself raises up to this value
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 1 << 30), (-3, 32 << 20)
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")  # a user's own


@cache
def _glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc; None: another library."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
        return function
    except (OSError, AttributeError, TypeError):
        return None


@cache
def keep_heaps() -> None:
    """Keep freed memory in this process's heaps, unless the user has settings of their own."""
    set_option = _glibc("mallopt")
    if set_option is not None and not any(name in os.environ for name in SETTINGS):
        for option in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            set_option(*option)


class HeapTrimmer:
    """Returns the heaps' free memory to the system from time to time."""

    def __init__(self) -> None:
        self._last = 0.0

    def trim(self) -> None:
        """Trim the heaps, unless that was less than `INTERVAL` ago or cannot be done."""
        now, trim = time.monotonic(), _glibc("malloc_trim")
        if trim is not None and now - self._last >= INTERVAL:
            trim(0)
            self._last = now
