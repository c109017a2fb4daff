"""Form `sparq`: SparQ attention over keys and values, head by head; see `sparq`."""

import torch
from torch import Tensor

from slimwhisper.cache.approximate.sparq import (
    Asked,
    RunningSums,
    SparQ,
    dense_transfers,
    masked,
    temperature,
    transfers,
)
from slimwhisper.cache.base import CrossStore, Room, Rows, Step
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.kv import HeadAttention, KVCross, KVSelf, KVStore
from slimwhisper.kernels.linear import at_least_float32


class SparQAttention(HeadAttention):
    """The projections of one block, and Algorithm 1 for all heads."""

    def __init__(self, weights: Folded, room: Room) -> None:
        super().__init__(weights, room.kernels)
        self.settings: SparQ = weights.settings

    def turned(self, room: Room) -> tuple[Tensor, ...]:
        """What `twice` keeps: nothing, or zeros [count, h, d_k, length]."""
        shape = (room.count, self.weights.heads, self.width, room.length)
        if not self.settings.twice:
            return ()
        return (torch.zeros(shape, device=room.device, dtype=room.dtype),)

    def mix(
        self, q: Tensor, kept: tuple[Tensor, ...], mean: Tensor, asked: Asked, window: int
    ) -> Tensor:
        """Algorithm 1.

        Arguments:
            q: [N, h, d_k].
            kept: keys and values, each [count, h, S, d_k], and with `twice` [count, h, d_k, S].
            mean: [N, h, d_k], of the values.
        Returns:
            [N, h, d_k].
        """
        keys, values, *turned = kept
        k = self.settings.positions(keys.shape[2])
        wide = q.to(at_least_float32(q.dtype))
        sizes = wide.abs()
        i1 = sizes.topk(self.settings.components(self.width), dim=-1).indices  # [N, h, r]
        warm = (wide / temperature(sizes, i1, self.width)[..., None]).to(q.dtype)
        ids, heads = asked.ids[:, None, None], torch.arange(q.shape[1], device=q.device)[:, None]
        if turned:
            columns = turned[0][ids, heads, i1]  # [N, h, r, S]
            scores = (warm.gather(-1, i1).unsqueeze(2) @ columns).squeeze(2)
        else:
            held = asked.read(keys)  # [B, h, S, d_k]
            together = masked(warm, i1).unflatten(0, (len(held), -1)).transpose(1, 2)
            scores = (together @ held.transpose(2, 3)).transpose(1, 2).flatten(0, 1)
        weights = asked.weights(scores)
        i2 = asked.best(weights, k, window)  # [N, h, k]
        alpha = weights.gather(-1, i2).sum(-1, keepdim=True)
        found = self.kernels.heads(
            q, keys[ids, heads, i2], values[ids, heads, i2], asked.chosen
        )  # [N, h, d_k]
        return (alpha * found + (1 - alpha) * mean).to(q.dtype)

    def read_values(self, tokens: int) -> int:
        """Of one head of one row in a step, without the mean and what is written; see `sparq`."""
        settings, width = self.settings, self.width
        r, k = settings.components(width), settings.positions(tokens)
        if k == tokens:
            return dense_transfers(tokens, width) - 2 * width
        if settings.twice:
            return transfers(tokens, r, k, width) - 4 * width
        return tokens * width + k * width


class SparQStore(KVStore):
    """K, V [slots, h, p, d_k], the mean of V [slots, h, d_k] and, if asked, K by component."""

    def __init__(self, attention: SparQAttention, room: Room) -> None:
        super().__init__(attention, room)
        self.kept = (self.keys, self.values, *attention.turned(room))
        self.mean = torch.zeros_like(self.values[:, :, 0])
        self.tensors = (*self.kept, self.mean)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] in `slots` [G] int64."""
        keys, values = self.heads.keys_values(features)  # [G, h, p, d_k]
        self.keys[slots], self.values[slots] = keys, values
        wide = at_least_float32(values.dtype)
        self.mean[slots] = values.mean(2, dtype=wide).to(values.dtype)
        for turned in self.kept[2:]:
            turned[slots] = keys.transpose(2, 3)


class SparQCross(KVCross):
    """Cross-attention of one layer: steps by Algorithm 1, prompts dense."""

    heads: SparQAttention
    store: SparQStore

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        assert store is None, "every layer has its own keys and values"
        self.heads, self.length = SparQAttention(weights, room), room.length
        self.store = SparQStore(self.heads, room)

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]."""
        settings = self.heads.settings
        if settings.positions(self.length) == self.length:
            return self.attend(x, rows)
        q, window = self.heads.queries(x)[:, :, 0], settings.window(self.length, growing=False)
        mean = self.store.mean[rows.slots]
        mixed = self.heads.mix(q, self.store.kept, mean, Asked.by(rows), window)
        return self.heads.output(mixed.unsqueeze(2))

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads."""
        mean = self.store.mean[slot]
        values = self.heads.weights.heads * self.heads.read_values(self.length) + mean.numel()
        return values * mean.itemsize


class SparQSelf(KVSelf):
    """Self-attention of one layer: K and V [rows, h, n_text_ctx, d_k], sums and, if asked, K by
    component.
    """

    heads: SparQAttention

    def __init__(self, weights: Folded, room: Room) -> None:
        super().__init__(weights, room)
        self.heads = SparQAttention(weights, room)
        self.turned = self.heads.turned(room)
        self.running = RunningSums(room, weights.heads, self.heads.width)
        self.tensors = (*self.tensors, self.running.sums, *self.turned)

    def reorder(self, rows: Tensor, sources: Tensor, extent: int) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        for t in (self.keys, self.values):
            t[rows, :, :extent] = t[sources, :, :extent]
        for t in self.turned:
            t[rows, ..., :extent] = t[sources, ..., :extent]
        self.running.sums[rows] = self.running.sums[sources]

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], dense."""
        mixed = super().prefill(x, rows)
        ids, tokens = rows.ids, x.shape[1]
        self.running.begin(ids, self.values[ids, :, :tokens].transpose(1, 2))
        for t in self.turned:
            t[ids] = 0
            t[ids, ..., :tokens] = self.keys[ids, :, :tokens].transpose(2, 3)
        return mixed

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps K and V of the token, and reads what is chosen."""
        heads, settings, ids, extent = self.heads, self.heads.settings, step.rows.ids, step.extent
        k = settings.positions(extent)
        if k == extent:
            mixed = super().step(x, step)
            self._follow(step)
            return mixed
        for kept, fresh in zip((self.keys, self.values), heads.keys_values(x), strict=True):
            kept[ids, :, step.positions] = fresh[:, :, 0]
        mean = self._follow(step)
        seen = (self.keys[:, :, :extent], self.values[:, :, :extent])
        turned = tuple(t[..., :extent] for t in self.turned)
        q, asked = heads.queries(x)[:, :, 0], Asked.at(step, k, x.dtype)
        window = settings.window(extent, growing=True)
        mixed = heads.mix(q, (*seen, *turned), mean, asked, window)
        return heads.output(mixed.unsqueeze(2))

    def _follow(self, step: Step) -> Tensor:
        """Bring up to date what is kept beside K and V; returns the mean of V, [R, h, d_k]."""
        ids, positions = step.rows.ids, step.positions
        for t in self.turned:
            t[ids, :, :, positions] = self.keys[ids, :, positions]
        return self.running.mean(step, self.values.transpose(1, 2))

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row reads with `tokens` tokens."""
        heads, settings, itemsize = self.heads, self.heads.settings, self.values.itemsize
        dense = settings.positions(tokens) == tokens
        window = tokens if dense else settings.window(tokens, growing=True)
        values = heads.weights.heads * heads.read_values(tokens)
        return values * itemsize + self.running.read_bytes(row, tokens, itemsize, window)
