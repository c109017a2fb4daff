"""Form `kv`, the baseline: keys and values of every token, 2 d values per layer."""

import torch
from torch import Tensor

from slimwhisper.cache.base import CrossLayer, CrossStore, PagedLayer, Room, Rows, Shape, Step
from slimwhisper.cache.fold import Folded
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.linear import linear
from slimwhisper.kernels.reads import Reads


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
    """Of keys, or of values: [h, length, d_k]."""
    return weights.heads, length, weights.width // weights.heads


class KVStore(CrossStore):
    """K and V of the audio for one layer, each [slots, h, p, d_k]."""

    def __init__(self, heads: HeadAttention, room: Room) -> None:
        self.heads = heads
        shape = (room.count, *_shape(heads.weights, room.length))
        self.keys = torch.zeros(shape, device=room.device, dtype=room.dtype)
        self.values = torch.zeros_like(self.keys)
        super().__init__(self.keys, self.values)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] -> K and V, each [G, h, p, d_k], in `slots` [G] int64."""
        self.keys[slots], self.values[slots] = self.heads.keys_values(features)


class KVCross(CrossLayer):
    """Cross-attention of one layer over kept K and V."""

    store: KVStore

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        assert store is None, "every layer has its own keys and values"
        self.heads = HeadAttention(weights, room.kernels)
        self.store = KVStore(self.heads, room)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]."""
        queries = self.heads.queries(x)  # [R, h, T, d_k]
        (keys, slots), (values, _) = map(rows.of_slots, (self.store.keys, self.store.values))
        asked = queries.transpose(1, 2)
        mixed = self.heads.kernels.heads(asked.flatten(0, 1), keys, values, Reads(slots))
        return self.heads.output(mixed.view(asked.shape).transpose(1, 2))

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax."""
        queries = self.heads.queries(x)[:, heads] * x.new_tensor(self.heads.width**-0.5)
        keys = self.store.keys[rows.slots][:, heads]
        return queries @ keys.transpose(2, 3)


class KVSelf(PagedLayer):
    """Self-attention of one layer over kept K and V, each [pages, h, page, d_k]."""

    def __init__(self, weights: Folded, room: Room) -> None:
        self.heads = HeadAttention(weights, room.kernels)
        self.keys, self.values = self.paged(weights, room)
        super().__init__(self.keys, self.values)

    @staticmethod
    def shapes(weights: Folded, page: int, dtype: torch.dtype) -> list[Shape]:
        """Keys and values, each [h, page, d_k]."""
        return [(_shape(weights, page), dtype)] * 2

    def keep(self, places: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        """Store keys and values [..., h, d_k] at pages and places [...] int64."""
        pages, inside = places
        self.keys[pages, :, inside] = keys
        self.values[pages, :, inside] = values

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps K and V, each [R, h, T, d_k]."""
        keys, values = self.heads.keys_values(x)
        places = self.begin(rows, x.shape[1])
        self.keep(places, keys.transpose(1, 2), values.transpose(1, 2))
        return self.heads.output(head_attention(self.heads.queries(x), keys, values, causal=True))

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps K and V of the token, reads step.extent of them."""
        keys, values = self.heads.keys_values(x)
        self.keep(self.step_places(step), keys[:, :, 0], values[:, :, 0])
        queries = self.heads.queries(x)[:, :, 0]
        mixed = self.heads.kernels.heads(queries, self.keys, self.values, self.reads(step))
        return self.heads.output(mixed.unsqueeze(2))
