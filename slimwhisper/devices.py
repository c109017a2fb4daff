"""What to compute on, in which dtype, and how many windows at once, where the user does not say."""

import os
import sys

import torch

from slimwhisper.audio.read_ahead import WORKERS
from slimwhisper.errors import OptionError
from slimwhisper.types import DEFAULT_DTYPES, DTYPES

INT8 = "int8"

CPU_BATCH = 16
LEAST_BATCH, MOST_BATCH = 8, 256  # on a GPU
MANY_CORES = 8  # for processes that decode files beside a model on the CPU
CACHE_SHARE = 0.5  # of free memory; the rest is for activations and recorded steps


def choose_device(device: str | torch.device | None) -> torch.device:
    """The given device; None: CUDA if available, else the CPU. OptionError if it does not work."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise OptionError(f"device {device!r} cannot be used here ({reason}); try 'cpu'") from error
    return chosen


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """A dtype, given as such or by name; None: float16 on a GPU, float32 on a CPU.

    "int8" computes in float32 except for the products, and needs a CPU. Raises OptionError.
    """
    if dtype == INT8:
        if device.type != "cpu" or "onednn" not in torch.backends.quantized.supported_engines:
            raise OptionError("int8 needs an x86 CPU; on a GPU choose float16, and cache_dtype fp8")
        return torch.float32
    default = DEFAULT_DTYPES["cpu" if device.type == "cpu" else "gpu"]
    return as_dtype(default if dtype is None else dtype, INT8)


def as_dtype(dtype: str | torch.dtype, *others: str) -> torch.dtype:
    """A dtype, given as such or by name. Raises OptionError, which also lists `others`."""
    known: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
    chosen = known.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in (*known.values(), torch.float64):
        raise OptionError(f"dtype {dtype!r} is not one of {', '.join((*DTYPES, *others))}")
    return chosen


def check_batch_size(asked: int) -> int:
    """The number itself. Raises OptionError if so many windows cannot be decoded together."""
    if asked < 1:
        raise OptionError(f"batch_size {asked!r} is not a positive number")
    return asked


def choose_batch_size(device: torch.device, window_bytes: int, reusable: int = 0) -> int:
    """How many windows to decode together where the user does not say: 16 on a CPU.

    On a GPU, as many as have room for their caches, `window_bytes` each, in half of the memory that
    is free: a multiple of 8, from 8 to 256. reusable: bytes in use that will be freed first.
    """
    if device.type != "cuda":
        return CPU_BATCH
    room = int(CACHE_SHARE * (free_bytes(device) + reusable))
    return min(max(room // window_bytes // 8 * 8, LEAST_BATCH), MOST_BATCH)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on a GPU, with those that torch has in reserve."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def choose_loaders(asked: int | None, device: torch.device) -> int:
    """How many processes decode files; 0: threads of this process. Raises OptionError.

    None: processes beside a GPU, which decoding in threads would keep waiting for the interpreter
    lock, and on many cores; threads on few, which the model needs itself.
    """
    if asked is not None:
        if asked < 0:
            raise OptionError(f"loaders {asked!r} is not a number of processes, or 0 for threads")
        return asked
    if not sys.executable or getattr(sys, "frozen", False):  # no Python to start them with
        return 0
    return WORKERS if device.type != "cpu" or (os.cpu_count() or 1) >= MANY_CORES else 0
