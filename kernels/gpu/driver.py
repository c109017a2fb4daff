"""CUDA's driver, by `cuda-bindings`, which PyTorch's CUDA builds bring: what PyTorch cannot do.

`partition_stream` is a stream on half of a GPU's multiprocessors, by a green context (CUDA 12.4).
What runs on it leaves the other half to whatever runs beside it: docs/internals/gpu.md.
"""

from functools import cache
from typing import Any

import torch

from slimwhisper._lazy import is_installed

CAPABILITY = 90  # of Hopper: the kernel's instructions are those of 9.0 alone
SHARE = 0.5  # of the multiprocessors
UNIT = 8  # multiprocessors that are divided together


def has_bindings() -> bool:
    """Whether `cuda-bindings` is installed, with NVRTC."""
    return is_installed("cuda.bindings.nvrtc")


def checked(answer: tuple[Any, ...]) -> Any:
    """The result, or results, of a call of NVRTC or of the driver. Raises RuntimeError with its
    status.
    """
    status, *results = answer
    if status.value:
        raise RuntimeError(f"{status.name} ({status.value})")
    return results if len(results) > 1 else results[0] if results else None


def can_divide(device: torch.device) -> bool:
    """Whether `partition_stream` works on a GPU. Only on Hopper, where it was measured."""
    hopper = torch.cuda.get_device_capability(device) == divmod(CAPABILITY, 10)
    return hopper and has_bindings() and _green_context(device.index or 0) is not None


def partition_stream(device: torch.device) -> "torch.cuda.Stream":
    """A new stream on half of the multiprocessors, which lives as long as the process. Raises
    RuntimeError.
    """
    from cuda.bindings import driver

    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    context = _green_context(device.index or 0)
    stream = checked(driver.cuGreenCtxStreamCreate(context, flags, 0))
    return torch.cuda.ExternalStream(int(stream), device)


@cache
def _green_context(index: int) -> Any:
    """Of a device; None if the driver has none."""
    from cuda.bindings import driver

    try:
        device = checked(driver.cuDeviceGet(index))
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = checked(driver.cuDeviceGetDevResource(device, kind))
        count = int(SHARE * whole.sm.smCount) // UNIT * UNIT
        if not count:  # a small part of a GPU
            return None
        groups, _, _ = checked(driver.cuDevSmResourceSplitByCount(1, whole, 0, count))
        described = checked(driver.cuDevResourceGenerateDesc(groups[:1], 1))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        return checked(driver.cuGreenCtxCreate(described, device, flags))
    except RuntimeError:
        return None
