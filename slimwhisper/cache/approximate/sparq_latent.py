"""Form `sparq_latent`: SparQ attention over a latent that all heads share; see `sparq`.

The keys and values of every head are the latent itself: E for the cross-attention, X for the
self-attention (`slimwhisper.cache.fold`), asked by the folded queries q~_i = q_i A_i [d]. If every
head chose for itself, nearly all of the latent would be read. So the heads of a row share

    i1 = argtopk(sum_i |q~_i| / ||q~_i||_1, r)     one set of columns
    i2 = argtopk(mean_i s^_i + m, k)               one set of positions

Each head's query counts alike, whatever its length: the sum over the chosen columns is h times the
mean share ||q~_i[i1]||_1 / ||q~_i||_1, which is what Algorithm 1's temperature rests on, so these r
columns are those with the largest mean share. Temperature and alpha are each head's own. The mean
is that of the latent, mapped by B_i like the rest.

A step of one row moves S r + k d values of the latent, and d for the mean; an exact one moves S d,
because one pass serves all heads, and scores and sums. The first term needs the latent a second
time, laid out by column (`twice`). Without it all of the latent is moved to score it, and nothing
is saved.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.approximate.sparq import Asked, RunningSums, SparQ, masked, temperature
from slimwhisper.cache.base import Room, Rows, Step
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.latent import LatentAttention, LatentCross, LatentSelf, LatentStore
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.linear import at_least_float32


@dataclass(frozen=True, slots=True)
class SparQLatent(SparQ):
    """The same settings; r counts columns of the whole width d."""

    r: int | None = 128


class SparQLatentAttention(LatentAttention):
    """The projections of one block, and Algorithm 1 with one choice for all heads."""

    def __init__(self, weights: Folded, room: Room) -> None:
        super().__init__(weights, room.kernels)
        self.settings: SparQLatent = weights.settings

    def turned(self, room: Room) -> tuple[Tensor, ...]:
        """What `twice` keeps: nothing, or zeros [count, d, length]."""
        shape = (room.count, self.weights.width, room.length)
        if not self.settings.twice:
            return ()
        return (torch.zeros(shape, device=room.device, dtype=room.dtype),)

    def mix(
        self, q: Tensor, kept: tuple[Tensor, ...], mean: Tensor, asked: Asked, window: int
    ) -> Tensor:
        """Algorithm 1.

        Arguments:
            q: [N, h, d_k].
            kept: the latent [count, S, d], and with `twice` [count, d, S].
            mean: [N, d], of the latent.
        Returns:
            [N, h, d_k].
        """
        latent, *turned = kept
        (_, h, width), maps = q.shape, self.weights.value_map
        assert maps is not None
        k, ids = self.settings.positions(latent.shape[1]), asked.ids[:, None]
        folded = self.fold_queries(q)  # [N, h, d]
        wide = folded.to(at_least_float32(q.dtype))
        sizes = wide.abs()
        shares = sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-30)
        i1 = shares.sum(1).topk(self.settings.components(latent.shape[2]), dim=-1).indices  # [N, r]
        for_all = i1[:, None].expand(-1, h, -1)
        warm = (wide / temperature(sizes, for_all, width)[..., None]).to(q.dtype)
        if turned:
            scores = warm.gather(-1, for_all) @ turned[0][ids, i1]  # [N, h, S]
        else:
            held = asked.read(latent)  # [B, S, d]
            together = masked(warm, for_all).unflatten(0, (len(held), -1)).flatten(1, 2)
            scores = (together @ held.transpose(1, 2)).view(len(q), h, -1)
        weights = asked.weights(scores)
        i2 = asked.best(weights.mean(1, keepdim=True), k, window)  # [N, 1, k]
        alpha = weights.gather(-1, i2.expand(-1, h, -1)).sum(-1, keepdim=True)
        some = Latent(latent[ids, i2[:, 0]])  # [N, k, d]
        found = self.kernels.latent(folded, some, self.scale, asked.chosen)  # [N, h, d]
        latents = (alpha * found + (1 - alpha) * mean[:, None]).to(q.dtype)
        return torch.bmm(latents.transpose(0, 1), maps.transpose(1, 2)).transpose(0, 1)

    def read_values(self, tokens: int) -> int:
        """Of one row in a step, without the mean; see the top of this file."""
        settings, width = self.settings, self.weights.width
        r, k = settings.components(width), settings.positions(tokens)
        return tokens * r + k * width if settings.twice and k < tokens else tokens * width


class SparQLatentStore(LatentStore):
    """E [slots, p, d], its mean [slots, d] and, if asked, E by column; one for all layers."""

    def __init__(self, attention: SparQLatentAttention, room: Room) -> None:
        super().__init__(attention.weights, room)
        self.kept = (self.latent.values, *attention.turned(room))
        self.mean = torch.zeros_like(self.latent.values[:, 0])
        self.tensors = (*self.kept, self.mean)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] in `slots` [G] int64."""
        super().put(slots, features)
        wide = at_least_float32(features.dtype)
        self.mean[slots] = features.mean(1, dtype=wide).to(features.dtype)
        for turned in self.kept[1:]:
            turned[slots] = features.transpose(1, 2)


class SparQLatentCross(LatentCross):
    """Cross-attention of one layer: steps by Algorithm 1, prompts dense."""

    attention: SparQLatentAttention
    store: SparQLatentStore

    def __init__(self, weights: Folded, room: Room, store: SparQLatentStore | None = None) -> None:
        self.attention, self.length = SparQLatentAttention(weights, room), room.length
        self.store = store or SparQLatentStore(self.attention, room)

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]."""
        settings = self.attention.settings
        if settings.positions(self.length) == self.length:
            return self.attend(x, rows)
        q, window = self.attention.queries(x), settings.window(self.length, growing=False)
        mean = self.store.mean[rows.slots]
        mixed = self.attention.mix(q[:, 0], self.store.kept, mean, Asked.by(rows), window)
        return self.attention.output(mixed.view_as(q))

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads."""
        mean = self.store.mean[slot]
        return (self.attention.read_values(self.length) + mean.numel()) * mean.itemsize


class SparQLatentSelf(LatentSelf):
    """Self-attention of one layer: X [rows, n_text_ctx, d], sums and, if asked, X by column."""

    attention: SparQLatentAttention

    def __init__(self, weights: Folded, room: Room) -> None:
        super().__init__(weights, room)
        self.attention = SparQLatentAttention(weights, room)
        self.turned = self.attention.turned(room)
        self.running = RunningSums(room, weights.width)
        self.tensors = (*self.tensors, self.running.sums, *self.turned)

    def reorder(self, rows: Tensor, sources: Tensor, extent: int) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        self.latent.values[rows, :extent] = self.latent.values[sources, :extent]
        for t in self.turned:
            t[rows, ..., :extent] = t[sources, ..., :extent]
        self.running.sums[rows] = self.running.sums[sources]

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], dense."""
        mixed = super().prefill(x, rows)  # which clears all that is kept of these rows
        self.running.begin(rows.ids, x)
        for t in self.turned:
            t[rows.ids, ..., : x.shape[1]] = x.transpose(1, 2)
        return mixed

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d], which its `place` has kept; reads what is chosen."""
        settings, extent = self.attention.settings, step.extent
        for t in self.turned:
            t[step.rows.ids, :, step.positions] = x[:, 0]
        mean, k = self.running.mean(step, self.latent.values), settings.positions(extent)
        if k == extent:
            return super().step(x, step)
        kept = (self.latent.values[:, :extent], *(t[..., :extent] for t in self.turned))
        q, window = self.attention.queries(x), settings.window(extent, growing=True)
        mixed = self.attention.mix(q[:, 0], kept, mean, Asked.at(step, k, x.dtype), window)
        return self.attention.output(mixed.view_as(q))

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row reads with `tokens` tokens."""
        attention, itemsize = self.attention, self.latent.values.itemsize
        settings = attention.settings
        whole = settings.positions(tokens) == tokens or not settings.twice
        window = tokens if whole else settings.window(tokens, growing=True)
        values = attention.read_values(tokens)
        return values * itemsize + self.running.read_bytes(row, tokens, itemsize, window)
