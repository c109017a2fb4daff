"""Whole blocks of a decoder layer in one call of C (blocks.c): attention to a latent with all its
projections, an MLP, and a sum with its layer norm.

Each returns None where it cannot run, as `Library` does, and the caller computes it in parts.
"""

import ctypes
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from slimwhisper.kernels.cpu.functions import FLOAT, INT, LONG, POINTER
from slimwhisper.kernels.cpu.library import (
    BFLOAT16_ROWS,
    MAX_HEAD,
    PART_DEPTH,
    Library,
    intercepted,
    is_half,
    pointer,
)
from slimwhisper.kernels.reads import Reads


class _LatentWeights(ctypes.Structure):
    """`struct latent_weights`."""

    _fields_ = (
        *((n, POINTER) for n in ("query", "key_map", "value_map", "out")),
        *(("query_bias", POINTER), ("out_bias", POINTER)),
        *(("heads", LONG), ("d", LONG), ("scale", FLOAT), ("half", INT)),
    )


class _MLPWeights(ctypes.Structure):
    """`struct mlp_weights`."""

    _fields_ = (
        *((n, POINTER) for n in ("up", "down", "up_bias", "down_bias")),
        *(("d", LONG), ("wide", LONG), ("half", INT)),
    )


class _Block(ABC):
    """Weights that C reads in place: matrices of one dtype, then biases."""

    def __init__(self, library: Library, weights: tuple[Tensor, ...]) -> None:
        self.library, self.weights = library, weights  # kept, as C has their addresses
        # with more rows in bfloat16, oneDNN's products are faster
        self.most_rows = BFLOAT16_ROWS if library.dtype == torch.bfloat16 else 2**31

    @classmethod
    def of(cls, library: Library | None, *weights: object) -> Self | None:
        """None where C cannot read a weight, or it has no library."""
        tensors = tuple(w for w in weights if isinstance(w, Tensor))
        if library is None or len(tensors) < len(weights):
            return None
        matrices, biases = (([t for t in tensors if (t.ndim == 1) == one]) for one in (False, True))
        if not all(map(library.multiplies, matrices)) or not all(map(library.readable, biases)):
            return None
        if len({t.dtype for t in matrices}) > 1:
            return None
        return cls(library, tensors) if cls.fits(library, tensors) else None

    @staticmethod
    @abstractmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """Whether C has code for the weights' shapes."""

    def runs(self, x: Tensor) -> bool:
        """Whether C can compute with x [..., d]."""
        rows = x.numel() // x.shape[-1]
        return 0 < rows <= self.most_rows and self.library.readable(x) and not intercepted()


class LatentBlock(_Block):
    """Latent attention from the normed input to the output: query [d, d], key_map and value_map
    [h, d_k, d], out [d, d]; query_bias and out_bias [d].
    """

    def __init__(self, library: Library, weights: tuple[Tensor, ...]) -> None:
        super().__init__(library, weights)
        self.heads, size, self.width = weights[1].shape
        numbers = self.heads, self.width, size**-0.5, is_half(weights[0])
        self.struct = _LatentWeights(*(t.data_ptr() for t in weights), *numbers)
        self.address = ctypes.addressof(self.struct)

    @staticmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """Heads of a multiple of `library.depth`, and a sum in one part in bfloat16."""
        _, size, width = weights[1].shape
        fits = weights[0].shape == (width, width) and not (size | width) % library.depth
        narrow = size <= MAX_HEAD and width <= PART_DEPTH
        return fits and (library.dtype != torch.bfloat16 or narrow)

    def __call__(self, x: Tensor, latent: Tensor, reads: Reads, windows: int) -> Tensor | None:
        """x [..., d], latent [S, T, d] or [pages, page, d] -> [..., d]. reads: of `windows` windows
        of adjacent rows, with one length each at most.
        """
        library, page = self.library, latent.shape[1]
        if not (self.runs(x) and library.readable(latent[:1])):
            return None
        if not library.reads_in_place(reads, page):
            return None
        bias, table = reads.position_bias, reads.block_table
        threads, rows = torch.get_num_threads(), x.numel() // self.width
        parts, out = -(-threads // windows), torch.empty_like(x)
        numbers = x.new_empty(rows * (1 + self.heads) * self.width)
        sums = torch.empty(parts * rows * self.heads * (self.width + 2))
        library.functions["latent_block"](
            *map(pointer, (out, numbers, sums, x)),
            self.address,
            *map(pointer, (latent, reads.slots, reads.lengths, bias, table)),
            *(rows, windows, parts, reads.positions(page), latent.stride(0)),
            *(0 if bias is None else bias.stride(0), page),
            *(0 if table is None else table.stride(0), threads),
        )
        return out


class MLPBlock(_Block):
    """gelu(x W_up^T + b_up) W_down^T + b_down: up [wide, d], down [d, wide], up_bias [wide],
    down_bias [d].
    """

    def __init__(self, library: Library, weights: tuple[Tensor, ...]) -> None:
        super().__init__(library, weights)
        self.wide, self.width = weights[0].shape
        numbers = self.width, self.wide, is_half(weights[0])
        self.struct = _MLPWeights(*(t.data_ptr() for t in weights), *numbers)
        self.address = ctypes.addressof(self.struct)

    @staticmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """Depths of multiples of `library.depth`, and a first sum in one part in bfloat16."""
        wide, width = weights[0].shape
        narrow = library.dtype != torch.bfloat16 or width <= PART_DEPTH
        return not (wide | width) % library.depth and narrow

    def __call__(self, x: Tensor) -> Tensor | None:
        """x [..., d] -> [..., d]."""
        if not self.runs(x):
            return None
        rows, out = x.numel() // self.width, torch.empty_like(x)
        hidden, partial = x.new_empty(rows * self.wide), torch.empty(rows * self.width)
        self.library.functions["mlp"](
            *map(pointer, (out, hidden, partial, x)),
            *(self.address, rows, torch.get_num_threads()),
        )
        return out


def add_norm_in_c(
    library: Library,
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    where: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor] | None:
    """As `kernels.norm.add_norm`. where: a cache [.., T, d] in which normed rows are stored too,
    and for each row the first two indices, [R] int64 each.
    """
    total, width = x if addend is None else addend, x.shape[-1]
    if width % 16 or intercepted() or not (library.readable(x) and library.readable(total)):
        return None
    strides = 0, 0
    if where is not None:
        cache, *indices = where
        if cache.dtype != x.dtype or cache.stride(2) != 1:
            return None
        if not all(library.readable(t, torch.int64) for t in indices):
            return None
        strides = cache.stride(0), cache.stride(1)
    normed = torch.empty_like(x)
    library.functions["add_norm"](
        *map(pointer, (total, normed, x, addend, weight, bias, *(where or (None, None, None)))),
        *(x.numel() // width, width, *strides, torch.get_num_threads()),
    )
    return total, normed
