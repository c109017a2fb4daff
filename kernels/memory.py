"""Memory of the host: what a device copies from it, and the heaps of the C library.

An encoder's activations are large and short-lived. The C library returns them to the system, layer
by layer, and takes them back page by page: of a short recording's time on a CPU, a tenth. So they
are kept. But smaller blocks between them in the heaps keep their memory from being used for others:
with many windows side by side, more than the caches take. So they are returned now and then.
"""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

INTERVAL = 1.0  # seconds between two trims, at least; one costs 20 ms
# of glibc's mallopt: free bytes at a heap's end that stay, and the size from which blocks lie
# outside heaps, which glibc itself raises up to this value
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 1 << 30), (-3, 32 << 20)
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")  # a user's own


@cache
def _glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc; None: another library."""
    try:
        return getattr(ctypes.CDLL(None), name)
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


def upload(device: torch.device, *arrays: ArrayLike) -> list[Tensor]:
    """The arrays on the device: int64, or float32 and float64 as they are.

    To a GPU, all of them are one copy from pinned memory. The host does not wait for it, as it
    would for each copy of ordinary memory (cudaMemcpyAsync, then cudaStreamSynchronize).
    """
    numbers = [np.asarray(a) for a in arrays]
    numbers = [n.astype(np.int64 if n.dtype.kind in "iub" else n.dtype) for n in numbers]
    if device.type == "cpu":
        return [torch.from_numpy(n) for n in numbers]
    words = [n.ravel().view(np.int32 if n.dtype == np.float32 else np.int64) for n in numbers]
    packed = torch.from_numpy(np.concatenate(words, dtype=np.int64))
    if device.type == "cuda":
        packed = packed.pin_memory()
    parts = packed.to(device, non_blocking=True).split([n.size for n in numbers])
    return [_unpacked(part, n) for part, n in zip(parts, numbers, strict=True)]


def _unpacked(part: Tensor, like: NDArray[Any]) -> Tensor:
    if like.dtype == np.float32:
        part = part.to(torch.int32).view(torch.float32)
    elif like.dtype == np.float64:
        part = part.view(torch.float64)
    return part.view(like.shape)


def padded(
    texts: Sequence[Sequence[float]], fill: int, width: int = 0, dtype: DTypeLike = np.int64
) -> NDArray[Any]:
    """Texts as rows of one array [n, longest], or [n, width], filled up on the right."""
    rows = np.full((len(texts), max(width, *map(len, texts))), fill, dtype=dtype)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows


def bucket_of(count: int, capacity: int) -> int:
    """The number of windows that a graph for `count` is recorded for: 1, 2, 4, multiples of 8."""
    bucket = 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
    return min(bucket, capacity)
