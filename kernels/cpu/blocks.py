"""Whole blocks of a decoder layer in one call of C (blocks.c): attention to a latent with all its
projections, and an MLP.

Each returns None where it cannot run, as `Library` does, and the caller computes it in parts.
"""

import ctypes
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from slimwhisper.kernels.attention import Reads
from slimwhisper.kernels.cpu.library import (
    BFLOAT16_ROWS,
    FLOAT,
    INT,
    LONG,
    MAX_HEAD,
    PART_DEPTH,
    POINTER,
    Library,
    intercepted,
)


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

    struct_type: ClassVar[type[ctypes.Structure]]

    def __init__(self, library: Library, weights: tuple[Tensor, ...], *numbers: float) -> None:
        """numbers: of the struct, after the weights and before `half`."""
        self.library, self.weights = library, weights  # kept, as C has their addresses
        # with more rows in bfloat16, oneDNN's products are faster
        self.most_rows = BFLOAT16_ROWS if library.dtype == torch.bfloat16 else 2**31
        half = int(weights[0].dtype == torch.float16)
        self.struct = self.struct_type(*(t.data_ptr() for t in weights), *numbers, half)
        self.address = ctypes.addressof(self.struct)

    @classmethod
    def of(cls, library: Library | None, *weights: object) -> Self | None:
        """Of tensors, or matrices that C reads in place (`Compiled`); None where it cannot read
        one, or there is no library.
        """
        found = [getattr(w, "matrix", w) for w in weights]
        tensors = tuple(w for w in found if isinstance(w, Tensor))
        if library is None or len(tensors) < len(weights):
            return None
        matrices, biases = (([t for t in tensors if (t.ndim == 1) == one]) for one in (False, True))
        if not all(map(library.multiplies, matrices)) or not all(map(library.readable, biases)):
            return None
        if len({t.dtype for t in matrices}) > 1 or not cls.fits(library, tensors):
            return None
        return cls(library, tensors)

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

    struct_type = _LatentWeights

    def __init__(self, library: Library, weights: tuple[Tensor, ...]) -> None:
        self.heads, size, self.width = weights[1].shape
        super().__init__(library, weights, self.heads, self.width, size**-0.5)

    @staticmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """Heads of a multiple of `library.depth`, and a sum in one part in bfloat16."""
        _, size, width = weights[1].shape
        fits = weights[0].shape == (width, width) and not size % library.depth
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
        rows, parts = x.numel() // self.width, -(-torch.get_num_threads() // windows)
        out, numbers = torch.empty_like(x), x.new_empty(rows * (1 + self.heads) * self.width)
        sums = torch.empty(parts * rows * self.heads * (self.width + 2))
        operands = x, self.address, latent, reads.slots, reads.lengths, bias, table
        sizes = rows, windows, parts, reads.positions(page), latent.stride(0)
        bias_stride = 0 if bias is None else bias.stride(0)
        strides = bias_stride, page, 0 if table is None else table.stride(0)
        library.call("latent_block", out, numbers, sums, *operands, *sizes, *strides)
        return out


class MLPBlock(_Block):
    """gelu(x W_up^T + b_up) W_down^T + b_down: up [wide, d], down [d, wide], up_bias [wide],
    down_bias [d].
    """

    struct_type = _MLPWeights

    def __init__(self, library: Library, weights: tuple[Tensor, ...]) -> None:
        self.wide, self.width = weights[0].shape
        super().__init__(library, weights, self.width, self.wide)

    @staticmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """A first sum in one part in bfloat16."""
        return library.dtype != torch.bfloat16 or weights[0].shape[1] <= PART_DEPTH

    def __call__(self, x: Tensor) -> Tensor | None:
        """x [..., d] -> [..., d]."""
        if not self.runs(x):
            return None
        rows, out = x.numel() // self.width, torch.empty_like(x)
        hidden, partial = x.new_empty(rows * self.wide), torch.empty(rows * self.width)
        self.library.call("mlp", out, hidden, partial, x, self.address, rows)
        return out
