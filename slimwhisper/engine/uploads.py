"""Numbers that the host has and a step needs on the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor


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
