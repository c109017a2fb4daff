"""The device: its choice, its dtype and batch size where the user does not say, and memory.

On a CPU, an encoder's activations are large and short-lived. The C library returns them to the
system, layer by layer, and takes them back page by page: of a short recording's time, a tenth. So
they are kept. But smaller blocks between them in the heaps keep their memory from being used for
others: with many windows side by side, more than the caches take. So they are returned now and
then.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

from slimwhisper.cores import WORKERS, find_cores
from slimwhisper.errors import OptionError
from slimwhisper.kernels.cpu.library import library, processor_has
from slimwhisper.kernels.dispatch import indexed
from slimwhisper.kernels.linear import INT8_PRODUCTS
from slimwhisper.option_group import check_count
from slimwhisper.text import not_one_of
from slimwhisper.types import COMPUTE_TYPES, DTYPES, UNNAMED_DTYPES

INT8 = "int8"
NVIDIA = Path("/dev/nvidia0")  # there if the driver has a GPU

CPU_BATCH = 16
LEAST_BATCH, MOST_BATCH = 8, 256  # on a GPU
MANY_CORES = 8  # enough for separate processes to decode files while the model uses the CPU
CACHE_SHARE = 0.5  # of free memory; the rest is for activations and CUDA graphs


def choose_device(device: str | torch.device | None) -> torch.device:
    """The given device, with its number; None: CUDA or ROCm, Intel's XPU or Apple's MPS, if
    available, else the CPU. OptionError if it does not work.
    """
    try:
        return indexed(torch.device(_available() if device is None else device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise OptionError(f"device {device!r} cannot be used ({reason}); try 'cpu'") from error


def device_warning(device: torch.device, chosen: bool) -> str:
    """What the user of a device should know, or "". chosen: by `choose_device`, not by the user."""
    name = "ROCm" if device.type == "cuda" and torch.version.hip else device.type
    if name in ("ROCm", "xpu", "mps"):
        return f"slimwhisper is untested on {name}; compare its texts with those of device 'cpu'"
    if device.type == "cpu" and chosen and (remedy := unused_gpu()):
        return f"this machine has a GPU, but the CPU is used: {remedy}"
    return ""


def _available() -> str:
    """The kind of device to use by default."""
    if torch.cuda.is_available():
        return "cuda"
    if torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def unused_gpu() -> str:
    """How to make PyTorch use this machine's NVIDIA GPU; "" if it does, if there is none, and if
    CUDA_VISIBLE_DEVICES is set, which hides some.
    """
    if torch.cuda.is_available() or not NVIDIA.exists() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return ""
    if torch.version.cuda is None:
        return "install PyTorch's CUDA build, https://pytorch.org/get-started"
    return f"update NVIDIA's driver to one for CUDA {torch.version.cuda}"


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """A dtype, given as such or by name; None: float16 on a GPU, float32 on a CPU; "auto": the
    fastest here that keeps the rule of docs/internals/numerics.md.

    "int8" computes in float32 except for the products, and needs a CPU. Raises OptionError.
    """
    if dtype == INT8:
        if device.type != "cpu":
            raise OptionError("int8 is for CPUs; on a GPU, use float16 and cache_dtype fp8")
        if not (INT8_PRODUCTS or library()):
            raise OptionError("int8 needs an x86 CPU, or compiled kernels: slimwhisper doctor")
        return torch.float32
    if dtype is not None and dtype != "auto":
        return as_dtype(dtype, COMPUTE_TYPES)
    names = UNNAMED_DTYPES[dtype]["cpu" if device.type == "cpu" else "gpu"]
    return next(d for d in map(as_dtype, names) if not is_slow(d, device))


def is_slow(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a device multiplies faster in float32, as CPUs without instructions for a dtype, and
    NVIDIA's GPUs before 8.0 in bfloat16.
    """
    if device.type == "cuda":
        from slimwhisper.kernels.configurations import MIN_CAPABILITY

        return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < MIN_CAPABILITY
    if dtype == torch.bfloat16 and (processor_has("avx512_bf16") or processor_has("amx_bf16")):
        return False
    return device.type == "cpu" and dtype in (torch.float16, torch.bfloat16)


def as_dtype(dtype: str | torch.dtype, allowed: Sequence[str] = DTYPES) -> torch.dtype:
    """A dtype, given as such or by name. Raises OptionError, which lists the `allowed` ones."""
    dtypes: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
    chosen = dtypes.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in (*dtypes.values(), torch.float64):
        raise OptionError(f"dtype {not_one_of(dtype, allowed)}")
    return chosen


check_batch_size = partial(check_count, "batch_size")


def choose_batch_size(device: torch.device, window_bytes: int, reusable: int = 0) -> int:
    """How many windows to decode together by default: 16 on a CPU.

    On a GPU, as many as fit with their caches, `window_bytes` each, in half of the free memory: a
    multiple of 8, from 8 to 256. reusable: bytes in use that will be freed first.
    """
    if device.type != "cuda":
        return CPU_BATCH
    room = int(CACHE_SHARE * (free_bytes(device) + reusable))
    return min(max(room // window_bytes // 8 * 8, LEAST_BATCH), MOST_BATCH)


def has_room(device: torch.device, size: int, weights: int) -> bool:
    """Whether `size` bytes are at most a quarter of a GPU's memory, as free beside the weights."""
    return device.type == "cuda" and 4 * size <= free_bytes(device) - weights


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on a GPU, including those that torch has reserved, within
    the share of this process (`torch.cuda.set_per_process_memory_fraction`).
    """
    free, total = torch.cuda.mem_get_info(device)
    share = int(total * torch.cuda.get_per_process_memory_fraction(device))
    room = min(free + torch.cuda.memory_reserved(device), share)
    return room - torch.cuda.memory_allocated(device)


def choose_loaders(loaders: int | None, device: torch.device) -> int:
    """How many processes decode files; 0: threads of this process. Raises OptionError.

    None: processes with a GPU, because threads that decode would hold the interpreter lock that
    the GPU's thread needs, and with many cores; threads with few cores, which the model needs.
    Windows always has threads: a process there does not inherit connections by their number.
    """
    if loaders is not None:
        count = check_count("loaders", loaders, 0)
        return 0 if os.name == "nt" else count
    frozen = not sys.executable or getattr(sys, "frozen", False)  # no Python to start them with
    if os.name == "nt" or frozen:
        return 0
    return WORKERS if device.type != "cpu" or find_cores().usable >= MANY_CORES else 0


# -- memory ---------------------------------------------------------------------------------------

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
