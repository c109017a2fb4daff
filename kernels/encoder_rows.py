"""What an encoder computes between two attentions, in one call of C (encoder_rows.c)."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from slimwhisper.kernels.cpu.library import LONG, POINTER, library
from slimwhisper.kernels.linear import Matrix, QuantizedInC, Tiled

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
