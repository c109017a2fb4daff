"""Form `kv`, the baseline: keys and values of every token, 2 d values per layer."""

import torch
from torch import Tensor

from slimwhisper.cache.base import (
    CrossLayer,
    CrossStore,
    DecodeStep,
    PagedLayer,
    Rows,
    Shape,
    StoreShape,
)
from slimwhisper.cache.fold import Folded
from slimwhisper.kernels.attention import head_attention
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import linear


class HeadAttention:
    """The projections of one `kv` block, and multi-head attention."""

    def __init__(self, weights: Folded, kernels: Kernels) -> None:
        assert weights.project is not None and weights.values is not None
        self.weights, self.kernels = weights, kernels
        self.key, self.value = weights.project, weights.values
        self.width = weights.width // weights.heads

    def split(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, h, T, d_k]."""
        return x.unflatten(-1, (self.weights.heads, -1)).transpose(1, 2)

    def queries(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, h, T, d_k]."""
        return self.split(linear(x, self.weights.query, self.weights.query_bias))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, d] -> K and V, each [B, h, T, d_k]."""
        return self.split(linear(x, self.key)), self.split(linear(x, self.value))

    def output(self, heads: Tensor) -> Tensor:
        """[B, h, T, d_k] -> [B, T, d], the value bias included."""
        return linear(heads.transpose(1, 2).flatten(2), self.weights.out, self.weights.out_bias)


def _shape(weights: Folded, length: int) -> tuple[int, ...]:
    """[h, length, d_k], for keys and for values."""
    return weights.heads, length, weights.width // weights.heads


class KVStore(CrossStore):
    """K and V of the audio for one layer, each [slots, h, p, d_k]."""

    def __init__(self, heads: HeadAttention, shape: StoreShape) -> None:
        self.heads = heads
        size = (shape.count, *_shape(heads.weights, shape.length))
        self.keys = torch.zeros(size, device=shape.device, dtype=shape.dtype)
        # not `zeros_like`, which imports sympy for a device without memory
        self.values = self.keys.new_zeros(self.keys.shape)
        super().__init__(self.keys, self.values)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, q, d] -> K and V, each [G, h, q, d_k], the first q positions of `slots` [G]
        int64.
        """
        keys, values = self.heads.keys_values(features)
        self.keys[slots, :, : keys.shape[2]], self.values[slots, :, : keys.shape[2]] = keys, values


class KVCross(CrossLayer):
    """Cross-attention of one layer over stored K and V."""

    store: KVStore

    def __init__(self, weights: Folded, shape: StoreShape, store: CrossStore | None = None) -> None:
        assert store is None, "every layer has its own keys and values"
        self.heads = HeadAttention(weights, shape.kernels)
        self.store = KVStore(self.heads, shape)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]."""
        by_token = self.heads.queries(x).transpose(1, 2)  # [R, T, h, d_k]
        (keys, slots), (values, _) = map(rows.of_slots, (self.store.keys, self.store.values))
        reads = rows.audio_reads(slots, keys.shape[2], x.dtype)
        mixed = self.heads.kernels.heads(by_token.flatten(0, 1), keys, values, reads)
        return self.heads.output(mixed.view(by_token.shape).transpose(1, 2))

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax."""
        queries = self.heads.queries(x)[:, heads] * x.new_tensor(self.heads.width**-0.5)
        return queries @ self.store.keys[rows.slots][:, heads].transpose(2, 3)


class KVSelf(PagedLayer):
    """Self-attention of one layer over stored K and V, each [pages, h, page, d_k]."""

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.heads = HeadAttention(weights, shape.kernels)
        self.keys, self.values = self.allocate_pages(weights, shape)
        super().__init__(self.keys, self.values)

    @staticmethod
    def shapes(weights: Folded, page: int, dtype: torch.dtype) -> list[Shape]:
        """Keys and values, each [h, page, d_k]."""
        return [(_shape(weights, page), dtype)] * 2

    def write(self, locations: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        """Store keys and values [..., h, d_k] at pages and indices within them [...] int64."""
        pages, indices = locations
        self.keys[pages, :, indices] = keys
        self.values[pages, :, indices] = values

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; stores K and V, each [R, h, T, d_k]."""
        keys, values = self.heads.keys_values(x)
        self.write(self.begin(rows, x.shape[1]), keys.transpose(1, 2), values.transpose(1, 2))
        mixed = head_attention(self.heads.queries(x), keys, values, is_causal=True)
        return self.heads.output(mixed)

    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; stores K and V of the tokens, reads step.extent a row."""
        keys, values = self.heads.keys_values(x)
        self.write(self.step_locations(step), keys[:, :, 0], values[:, :, 0])
        queries = self.heads.queries(x)[:, :, 0]
        mixed = self.heads.kernels.heads(queries, self.keys, self.values, self.reads(step))
        return self.heads.output(mixed.unsqueeze(2))
