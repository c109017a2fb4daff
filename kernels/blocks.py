"""Whole blocks of a layer in one call of C: of a decoder, attention to a latent with all its
projections, and an MLP (blocks.c); of an encoder, its attention, and what it computes between two
of them (encoder_rows.c).

Each returns None where it cannot run, as `Library` does, and the caller computes it in parts.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor

from slimwhisper.kernels.attention import Reads, head_attention
from slimwhisper.kernels.cpu.library import (
    FLOAT,
    INT,
    LONG,
    MAX_HEAD,
    PART_DEPTH,
    POINTER,
    Library,
    intercepted,
    library,
    processor_has,
)
from slimwhisper.kernels.linear import Matrix, QuantizedInC, Tiled


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
        rows, most = x.numel() // x.shape[-1], self.library.most_rows
        return 0 < rows <= most and self.library.readable(x) and not intercepted()


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
        readable = library.multiplies(latent[:1]) and library.reads_in_place(reads, page)
        if not (readable and self.runs(x)):
            return None
        bias, table = reads.position_bias, reads.block_table
        rows, parts = x.numel() // self.width, -(-torch.get_num_threads() // windows)
        out, numbers = torch.empty_like(x), x.new_empty(rows * (1 + self.heads) * self.width)
        sums = torch.empty(parts * rows * self.heads * (self.width + 2))
        operands = x, self.address, latent, reads.slots, reads.lengths, bias, table
        sizes = rows, windows, parts, reads.positions(page), latent.stride(0)
        bias_stride = 0 if bias is None else bias.stride(0)
        strides = bias_stride, page, 0 if table is None else table.stride(0)
        half = int(latent.dtype == torch.float16)
        library.call("latent_block", out, numbers, sums, *operands, *sizes, *strides, half)
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


ROWS, PART = 96, 1536  # that a thread takes at a time, and hidden values in int8: as in C
LINE = 16  # divides the widths

Pair = tuple[Tensor, Tensor]  # weight and bias of a norm, [d] each
Layer = tuple[Matrix, Tensor | None]  # weight [out, in] and bias [out]


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Of one block: query, key, value and out [d, d], up [wide, d], down [d, wide]."""

    norm: Pair
    mlp_norm: Pair
    query: Layer
    key: Layer
    value: Layer
    out: Layer
    up: Layer
    down: Layer

    def in_c(self) -> bool:
        """Whether the matrices are laid out for C."""
        layers = self.query, self.key, self.value, self.out, self.up, self.down
        return all(isinstance(weight, Tiled | QuantizedInC) for weight, _ in layers)


class _Linear(ctypes.Structure):
    """`struct linear`."""

    _fields_ = tuple((name, POINTER) for name in ("w", "sums", "factors", "bias"))


class _EncoderWeights(ctypes.Structure):
    """`struct encoder_weights`."""

    _fields_ = (
        *((name, _Linear) for name in ("out", "up", "down", "query", "key", "value")),
        *((name, POINTER) for name in ("mlp_weight", "mlp_bias", "norm_weight", "norm_bias")),
        *(("d", LONG), ("wide", LONG)),
    )


class EncoderRows:
    """From one attention to the next: the output's projection and the MLP of one block, and the
    norm and the projections of the next.
    """

    def __init__(self, before: BlockWeights | None, after: BlockWeights | None, last: Pair) -> None:
        """before: None at the first block. after: None behind the last, before the norm `last`."""
        self._results = 3 if after else 1
        self._kept: list[Tensor] = []  # C has their addresses
        self._name = "encoder_rows"
        self._struct = struct = _EncoderWeights(d=len(last[0]))
        struct.norm_weight, struct.norm_bias = self._addresses(*(after.norm if after else last))
        if before is not None:
            struct.mlp_weight, struct.mlp_bias = self._addresses(*before.mlp_norm)
            struct.out = self._linear(*before.out)
            struct.up, struct.down = self._linear(*before.up), self._linear(*before.down)
            assert before.up[1] is not None
            struct.wide = len(before.up[1])
        if after is not None:
            struct.query, struct.key = self._linear(*after.query), self._linear(*after.key)
            struct.value = self._linear(*after.value)

    def __call__(self, x: Tensor, attended: Tensor | None) -> list[Tensor]:
        """x, to which the block before is added, and attended, its attention -> query, key and
        value of the block after, or the norm: [B, p, d] float32 each.
        """
        compiled, width = library(), x.shape[-1]
        assert compiled is not None
        results = [torch.empty_like(x) for _ in range(self._results)]
        size = ROWS * (width + PART + 2 + PART // 2)
        workspace = torch.empty(torch.get_num_threads() * size)
        slots = *results, *[None] * (3 - len(results))
        struct, rows = ctypes.addressof(self._struct), x.numel() // width
        compiled.call(self._name, x, *slots, attended, struct, workspace, size, rows)
        return results

    def _addresses(self, *tensors: Tensor | None) -> list[int | None]:
        """Of tensors, which are kept."""
        kept = [None if t is None else t.contiguous() for t in tensors]
        self._kept += [t for t in kept if t is not None]
        return [None if t is None else t.data_ptr() for t in kept]

    def _linear(self, weight: Matrix, bias: Tensor | None) -> _Linear:
        if isinstance(weight, Tiled):
            return _Linear(*self._addresses(weight.blocks, None, None, bias))
        assert isinstance(weight, QuantizedInC)
        self._name, sums = "encoder_rows_integers", weight.sums
        parts = weight.integers.split(PART // 4, dim=1)
        if len(parts) > 1:
            sums = torch.stack([p.sum((1, 3), dtype=torch.int32).flatten() for p in parts])
        return _Linear(*self._addresses(weight.integers, sums, weight.factors, bias))


def encoder_rows(blocks: Sequence[BlockWeights], last: Pair) -> list[EncoderRows]:
    """Before, between and after the blocks, whose output goes through the norm `last`; [] where C
    cannot read their weights.
    """
    if len(last[0]) > PART or not all(block.in_c() for block in blocks):
        return []
    return [EncoderRows(a, b, last) for a, b in pairwise([None, *blocks, None])]


def reads_tiles(width: int, dtype: torch.dtype) -> bool:
    """Whether C can run an encoder of this width and dtype on a CPU, its matrices in tiles. In
    bfloat16, oneDNN's products are as fast.
    """
    compiled = library() if dtype == torch.float32 else None
    fits = width % LINE == 0 and width <= PART
    return fits and compiled is not None and "encoder_rows" in compiled.functions


def encoder_attention(
    queries: Tensor, keys: Tensor, values: Tensor, rounded: bool = False
) -> Tensor:
    """`head_attention` of all positions of windows: in C on x86 CPUs, except in bfloat16 on those
    with AMX, for which PyTorch's is made.

    Arguments:
        queries, keys, values: [B, p, h, d_k], one dtype.
        rounded: if they are float32, C may compute in bfloat16, or in whole numbers.
    Returns:
        [B, p, h, d_k], their dtype.
    """
    by_pytorch = queries.dtype == torch.bfloat16 and processor_has("amx_bf16")
    if queries.device.type == "cpu" and not by_pytorch:
        compiled = (library(torch.bfloat16) if rounded else None) or library(queries.dtype)
        if compiled is not None:
            mixed = compiled.encoder_attention(queries, keys, values, rounded)
            if mixed is not None:
                return mixed
    q, k, v = (t.transpose(1, 2) for t in (queries, keys, values))
    return head_attention(q, k, v).transpose(1, 2)
