"""Form `zack`: keys and values of every head, rotated and cut to the columns that carry most.

Zeyu Zhang and Haiying Shen, "ZACK: Zero-Overhead LLM Inference Acceleration via Dimensionality
Compression of the Key-Value Cache", arXiv 2408.04107. Of every head i, recorded Q_i [T_q, d_k] over
K_i [T_k, d_k] are one matrix, and its right singular vectors R [d_k, d_k] a rotation of both:
(q R) (k R)^T = q k^T. The columns are in the order of their singular values, so the last ones carry
least; the first r are kept. In the same way V_i over W_O,i^T [d, d_k] gives R_v, and V R_v is kept.
Whisper has no rotary positions, so nothing is rotated while decoding: W_Q R, b_Q R, W_K R and W_V
R_v replace the projections, and R_v^T W_O the output's.

Ranks differ by head, layer and matrix: see `slimwhisper.cache.approximate.zack_ranks`. Heads with
equal ranks are kept together, one tensor for their keys and one for their values, so that none is
padded to another's rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.approximate.zack_ranks import learn
from slimwhisper.cache.base import CrossLayer, CrossStore, Room, Rows, SelfLayer, Step
from slimwhisper.cache.fold import Attention, Context, Folded
from slimwhisper.kernels.linear import linear


@dataclass(frozen=True, slots=True)
class Group:
    """Heads with the same ranks."""

    heads: tuple[int, ...]
    key: int  # columns that are kept of K
    value: int  # and of V


def grouped(ranks: Tensor) -> list[Group]:
    """Ranks [2, h] of keys and values -> the heads, by their ranks."""
    pairs = [(int(key), int(value)) for key, value in ranks.T.tolist()]
    return [
        Group(tuple(i for i, other in enumerate(pairs) if other == pair), *pair)
        for pair in sorted(set(pairs))
    ]


def fold_zack(block: Attention, context: Context) -> Folded:
    """The rotations into the weights; heads in the order of their groups."""
    learned = learn(context) if context.learned is None else context.learned
    order = [head for group in grouped(learned["ranks"]) for head in group.heads]

    def turned(weight: Tensor, name: str, row: int) -> Tensor:
        """R_i^T W_i of every head: [d, ...] -> [sum of ranks, ...]."""
        sizes = [int(n) for n in learned["ranks"][row].tolist()]
        rotations = learned[name].double().split(sizes, dim=1)
        parts = weight.double().unflatten(0, (block.heads, -1))
        return torch.cat([rotations[i].T @ parts[i] for i in order])

    return Folded(
        form="",
        heads=block.heads,
        query=turned(block.query, "keys", 0),
        query_bias=turned(block.query_bias, "keys", 0),
        out=turned(block.out.T, "values", 1).T,
        out_bias=block.out_bias,
        project=turned(block.key, "keys", 0),
        values=turned(block.value, "values", 1),
        learned=dict(learned),
    )


class RotatedAttention:
    """The projections of one block, and attention by groups of heads.

    What is by group is a list, with the n heads of each.
    """

    def __init__(self, weights: Folded) -> None:
        assert weights.project is not None and weights.values is not None
        self.weights, self.project, self.values = weights, weights.project, weights.values
        self.groups = grouped(weights.learned["ranks"])
        self.scale = (weights.width // weights.heads) ** -0.5
        order = [head for group in self.groups for head in group.heads]
        # where each head is, [h] int64
        self.places = torch.tensor(order, device=weights.out_bias.device).argsort()

    def allocate(self, room: Room) -> list[Tensor]:
        """By group, keys [count, n, length, r] and values [count, n, length, r_v] in turn."""
        return [
            torch.zeros(
                (room.count, len(g.heads), room.length, width),
                device=room.device,
                dtype=room.dtype,
            )
            for g in self.groups
            for width in (g.key, g.value)
        ]

    def split(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """[B, T, sum of ranks] -> by group [B, n, T, r], r one of `widths`."""
        counts = [len(g.heads) for g in self.groups]
        parts = x.split([n * r for n, r in zip(counts, widths, strict=True)], dim=-1)
        heads = zip(parts, counts, strict=True)
        return [part.unflatten(-1, (n, -1)).transpose(1, 2) for part, n in heads]

    def queries(self, x: Tensor) -> list[Tensor]:
        """[B, T, d] -> by group [B, n, T, r]."""
        q = linear(x, self.weights.query, self.weights.query_bias)
        return self.split(q, [g.key for g in self.groups])

    def kept(self, x: Tensor) -> list[Tensor]:
        """[B, T, d] -> as `allocate`, [B, n, T, r] and [B, n, T, r_v] in turn."""
        keys = self.split(linear(x, self.project), [g.key for g in self.groups])
        values = self.split(linear(x, self.values), [g.value for g in self.groups])
        return [t for pair in zip(keys, values, strict=True) for t in pair]

    def mix(
        self,
        queries: Sequence[Tensor],
        kept: Sequence[Tensor],
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """By group [R, n, T, r], and [W, n, ., r] and [W, n, ., r_v] in turn -> [R, T, d].

        R a multiple of W: neighbouring rows share a window. bias: [R, 1, 1, .].
        """
        mixed = []
        for q, k, v in zip(queries, kept[::2], kept[1::2], strict=True):
            rows = (len(k), len(q) // len(k))
            together = q.unflatten(0, rows).transpose(1, 2)  # [W, n, R / W, T, r]
            found = F.scaled_dot_product_attention(
                together.flatten(2, 3), k, v, attn_mask=bias, is_causal=causal, scale=self.scale
            )
            apart = found.unflatten(2, together.shape[2:4]).transpose(1, 2).flatten(0, 1)
            mixed.append(apart.transpose(1, 2).flatten(2))  # [R, T, n * r_v]
        return linear(torch.cat(mixed, dim=-1), self.weights.out, self.weights.out_bias)


class RotatedStore(CrossStore):
    """Rotated K and V of the audio for one layer, by group [slots, n, p, r]."""

    def __init__(self, attention: RotatedAttention, room: Room) -> None:
        self.attention = attention
        super().__init__(*attention.allocate(room))

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] -> K and V by group, in `slots` [G] int64."""
        for buffer, fresh in zip(self.tensors, self.attention.kept(features), strict=True):
            buffer[slots] = fresh


class ZackCross(CrossLayer):
    """Cross-attention of one layer over rotated K and V."""

    store: RotatedStore

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        assert store is None, "every layer has its own keys and values"
        self.attention = RotatedAttention(weights)
        self.store = RotatedStore(self.attention, room)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]."""
        read = [rows.of_slots(t) for t in self.store.tensors]
        kept = [t if slots is None else t[slots] for t, slots in read]
        return self.attention.mix(self.attention.queries(x), kept)

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax."""
        queries, keys = self.attention.queries(x), self.store.tensors[::2]
        every = [
            (q * self.attention.scale) @ k[rows.slots].transpose(2, 3)
            for q, k in zip(queries, keys, strict=True)
        ]
        return torch.cat(every, dim=1)[:, self.attention.places[heads]]


class ZackSelf(SelfLayer):
    """Self-attention of one layer over rotated K and V, by group [rows, n, n_text_ctx, r]."""

    def __init__(self, weights: Folded, room: Room) -> None:
        self.attention, self.length = RotatedAttention(weights), room.length
        super().__init__(*self.attention.allocate(room))

    def reorder(self, rows: Tensor, sources: Tensor, extent: int) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        for t in self.tensors:
            t[rows, :, :extent] = t[sources, :, :extent]

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps K and V by group, [R, n, T, r]."""
        fresh = self.attention.kept(x)
        for buffer, new in zip(self.tensors, fresh, strict=True):
            buffer[rows.ids] = 0  # the previous text: a NaN would pass the mask
            buffer[rows.ids, :, : x.shape[1]] = new
        return self.attention.mix(self.attention.queries(x), fresh, causal=True)

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps K and V of the token, reads step.extent of them."""
        for buffer, new in zip(self.tensors, self.attention.kept(x), strict=True):
            buffer[step.rows.ids, :, step.positions] = new[:, :, 0]
        read = [step.rows.of_rows(t[:, :, : step.extent]) for t in self.tensors]
        kept = [t if ids is None else t[ids] for t, ids in read]
        bias = None if step.bias is None else step.bias().unsqueeze(1)
        return self.attention.mix(self.attention.queries(x), kept, bias)
