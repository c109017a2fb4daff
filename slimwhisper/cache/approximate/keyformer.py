"""Forms `keyformer` and `keyformer_latent`: a text of k tokens, however long it gets.

Buffers hold k places for each row, not n_text_ctx. `keyformer` keeps keys and values and lets every
head choose its tokens, as the paper has it; `keyformer_latent` keeps what `x` does, once for all
heads, which therefore share a choice. A prompt attends to itself densely; the best of it is kept.
The rules of what is kept: `slimwhisper.cache.approximate.eviction`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.approximate.eviction import EvictionSettings, KeptTokens
from slimwhisper.cache.base import Room, Rows, SelfLayer, Step
from slimwhisper.cache.fold import Attention, Context, Folded, fold_float8, fold_latent
from slimwhisper.cache.kv import HeadAttention
from slimwhisper.cache.latent import LatentAttention, kept
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent


@dataclass(frozen=True, slots=True)
class KeyformerSettings(EvictionSettings):
    """Of `keyformer`."""

    shared: bool = False  # one choice for all heads of a layer, by the sum of their scores


@dataclass(frozen=True, slots=True)
class KeyformerLatentSettings(EvictionSettings):
    """Of `keyformer_latent`."""

    float8: bool = False  # keep what `x8` does


def fold_keyformer_latent(block: Attention, context: Context) -> Folded:
    """`keyformer_latent`: as `x`, or as `x8`."""
    folder = fold_float8 if context.settings.float8 else fold_latent
    return folder(block, context)


class KeyformerLayer(SelfLayer):
    """What the two have in common."""

    chosen: KeptTokens

    def read_bytes(self, row: int, tokens: int) -> float:
        """Of k tokens at most."""
        budget = self.chosen.budget
        return sum(t[row].nbytes for t in self.tensors) * min(tokens, budget) / budget

    def places(self, extent: int) -> int:
        """How many places hold a token, if the longest row has `extent` of them."""
        return min(extent, self.chosen.budget)


class KeyformerSelf(KeyformerLayer):
    """Self-attention of one layer over k kept keys and values, each [rows, h, k, d_k]."""

    def __init__(self, weights: Folded, room: Room) -> None:
        settings, heads = weights.settings, weights.heads
        self.heads, self.length = HeadAttention(weights, room.kernels), room.length
        self.chosen = KeptTokens(settings, room, weights.layer, heads, settings.shared)
        shape = (room.count, heads, self.chosen.budget, weights.width // heads)
        self.keys = torch.zeros(shape, device=room.device, dtype=room.dtype)
        self.values = torch.zeros_like(self.keys)
        self.every = torch.arange(heads, device=room.device)
        super().__init__(self.keys, self.values, *self.chosen.tensors)

    def reorder(self, rows: Tensor, sources: Tensor, extent: int) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        count = self.places(extent)
        for t in (self.keys, self.values):
            t[rows, :, :count] = t[sources, :, :count]
        self.chosen.reorder(rows, sources)

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps K and V of at most k tokens a row."""
        lengths, q = rows.prompt_lengths(x.shape[1]), self.heads.queries(x)
        keys, values = self.heads.keys_values(x)
        scores = self.chosen.prompt(q, keys, lengths)
        tokens = self.chosen.start(rows.ids, scores, lengths).unsqueeze(-1)  # [R, 1 or h, n, 1]
        tokens = tokens.expand(-1, keys.shape[1], -1, keys.shape[-1])
        for buffer, fresh in ((self.keys, keys), (self.values, values)):
            buffer[rows.ids] = 0  # the previous text: a NaN would pass the mask
            buffer[rows.ids, :, : tokens.shape[2]] = fresh.gather(2, tokens)
        return self.heads.output(head_attention(q, keys, values, causal=True))

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps K and V of the token instead of the worst ones."""
        chosen, wide, count = self.chosen, self.chosen.wide, self.places(step.extent)
        where = (step.rows.ids[:, None], self.every, chosen.admit(step).expand(-1, len(self.every)))
        read = []
        for buffer, fresh in zip((self.keys, self.values), self.heads.keys_values(x), strict=True):
            buffer[where] = fresh[:, :, 0]
            held, ids = step.rows.of_rows(buffer)
            held = held[:, :, :count]
            read.append((held if ids is None else held[ids]).to(wide))  # [R, h, n, d_k]
        keys, values = read
        q = self.heads.queries(x).to(wide)  # [R, h, 1, d_k]
        logits = (q @ keys.transpose(2, 3)).squeeze(2) * self.heads.width**-0.5
        logits = chosen.hide(logits, step)
        chosen.observe(logits, step)
        mixed = logits.softmax(dim=-1).unsqueeze(2) @ values
        return self.heads.output(mixed.to(x.dtype))


class KeyformerLatentSelf(KeyformerLayer):
    """Self-attention of one layer over k kept tokens of the latent, [rows, k, d]."""

    def __init__(self, weights: Folded, room: Room) -> None:
        self.attention, self.length = LatentAttention(weights, room.kernels), room.length
        self.chosen = KeptTokens(weights.settings, room, weights.layer, weights.heads, shared=True)
        shape = (room.count, self.chosen.budget, weights.width)
        self.latent = Latent.allocate(shape, room.device, room.dtype, weights.settings.float8)
        super().__init__(*self.latent.tensors(), *self.chosen.tensors)

    def reorder(self, rows: Tensor, sources: Tensor, extent: int) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        count = self.places(extent)
        for t in self.latent.tensors():
            t[rows, :count] = t[sources, :count]
        self.chosen.reorder(rows, sources)

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps the latents of at most k tokens a row."""
        lengths, q = rows.prompt_lengths(x.shape[1]), self.attention.queries(x)  # [R, T, h, d_k]
        fresh = kept(self.attention.weights, x)
        scores = self.chosen.prompt(q.transpose(1, 2), self.attention.keys(fresh), lengths)
        tokens = self.chosen.start(rows.ids, scores, lengths)[:, 0]  # [R, n]
        for t in self.latent.tensors():
            t[rows.ids] = 0
        places = torch.arange(tokens.shape[1], device=x.device)
        best = fresh.gather(1, tokens[:, :, None].expand(-1, -1, fresh.shape[-1]))
        self.latent.write((rows.ids[:, None], places), best)
        return self.attention.output(self.attention.by_heads(q, fresh, causal=True))

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps the token's latent instead of the worst one."""
        chosen, attention, wide = self.chosen, self.attention, self.chosen.wide
        place = chosen.admit(step)[:, 0]
        self.latent.write((step.rows.ids, place), kept(attention.weights, x[:, 0]))
        held, ids = step.rows.of_rows(self.latent)
        held = held[:, : self.places(step.extent)]
        latent = (held if ids is None else held[ids]).plain(wide).to(wide)  # [R, n, d]
        folded = attention.fold_queries(attention.queries(x)[:, 0]).to(wide)  # [R, h, d]
        logits = chosen.hide(folded @ latent.transpose(1, 2) * attention.scale, step)
        chosen.observe(logits, step)
        mix, maps = (logits.softmax(dim=-1) @ latent).to(x.dtype), attention.weights.value_map
        assert maps is not None
        mixed = torch.bmm(mix.transpose(0, 1), maps.transpose(1, 2)).transpose(0, 1)  # [R, h, d_k]
        return attention.output(mixed.unsqueeze(1))
