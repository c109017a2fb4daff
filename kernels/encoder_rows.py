"""What an encoder in int8 computes between two attentions, in one call of C (encoder_rows.c)."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from slimwhisper.kernels.cpu.functions import LONG, POINTER
from slimwhisper.kernels.cpu.library import library, pointer
from slimwhisper.kernels.linear import Quantized, Weight

ROWS, PART = 96, 1536  # that a thread takes at a time, and hidden values: as in C

Norm = tuple[Tensor, Tensor]  # weight and bias, [d] each


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Of one block: query, key, value and out [d, d], up [wide, d], down [d, wide]."""

    norm: Norm
    mlp_norm: Norm
    query: Weight
    key: Weight
    value: Weight
    out: Weight
    up: Weight
    down: Weight

    def in_c(self) -> bool:
        """Whether the matrices are laid out for C."""
        matrices = self.query, self.key, self.value, self.out, self.up, self.down
        return all(isinstance(w, Quantized) and w.blocks is not None for w in matrices)


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

    def __init__(self, before: BlockWeights | None, after: BlockWeights | None, last: Norm) -> None:
        """before: None at the first block. after: None behind the last, before the norm `last`."""
        self._results, (weight, _) = 3 if after else 1, last
        self._kept: list[Tensor] = []  # C has their addresses
        self._struct = struct = _EncoderWeights(d=len(weight))
        struct.norm_weight, struct.norm_bias = self._addresses(*(after.norm if after else last))
        if before is not None:
            struct.mlp_weight, struct.mlp_bias = self._addresses(*before.mlp_norm)
            struct.out, struct.up, struct.down = map(
                self._linear, (before.out, before.up, before.down)
            )
            assert isinstance(before.up, Quantized)
            struct.wide = len(before.up.factors)
        if after is not None:
            struct.query, struct.key, struct.value = map(
                self._linear, (after.query, after.key, after.value)
            )

    def __call__(self, x: Tensor, attended: Tensor | None) -> list[Tensor]:
        """x [B, p, d] float32, to which the block before is added, and attended [B, p, d], its
        attention -> query, key and value of the block after, or the norm: [B, p, d] each.
        """
        compiled, width, threads = library(), x.shape[-1], torch.get_num_threads()
        assert compiled is not None
        results = [torch.empty_like(x) for _ in range(self._results)]
        size = ROWS * (width + PART + 2 + PART // 4)
        workspace = torch.empty(threads * size)
        compiled.functions["encoder_rows"](
            *map(pointer, (x, *results, *[None] * (3 - len(results)), attended)),
            *(ctypes.addressof(self._struct), workspace.data_ptr(), size),
            *(x.numel() // width, threads),
        )
        return results

    def _addresses(self, *tensors: Tensor | None) -> list[int | None]:
        """Of tensors, which are kept."""
        self._kept += [t for t in tensors if t is not None]
        return [pointer(t) for t in tensors]

    def _linear(self, weight: Weight) -> _Linear:
        """With the sums of every PART of the depth, [parts, out]."""
        assert isinstance(weight, Quantized) and weight.blocks is not None
        parts = weight.blocks.split(PART // 4, dim=1)
        sums = torch.stack([p.sum((1, 3), dtype=torch.int32).flatten() for p in parts])
        return _Linear(*self._addresses(weight.blocks, sums, weight.factors, weight.bias))


def encoder_rows(blocks: Sequence[BlockWeights | None], last: Norm) -> list[EncoderRows]:
    """Before, between and after the blocks, whose output goes through the norm `last`; [] where C
    cannot read their weights.
    """
    weights = [b for b in blocks if b is not None and b.in_c()]
    if len(weights) < len(blocks) or len(last[0]) > PART:
        return []
    ends = [None, *weights, None]
    return [EncoderRows(a, b, last) for a, b in pairwise(ends)]
