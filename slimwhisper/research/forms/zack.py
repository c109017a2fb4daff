"""Form `zack`: keys and values of every head, rotated and cut to the most important columns.

Zeyu Zhang and Haiying Shen, "ZACK: Zero-Overhead LLM Inference Acceleration via Dimensionality
Compression of the Key-Value Cache", arXiv 2408.04107. Of every head i, recorded Q_i [T_q, d_k] over
K_i [T_k, d_k] are one matrix, and its right singular vectors R [d_k, d_k] a rotation of both:
(q R) (k R)^T = q k^T. The columns are in the order of their singular values; the first r are kept.
In the same way V_i over W_O,i^T [d, d_k] gives R_v, and V R_v is stored. Whisper has no rotary
positions, so the rotations go into the weights: W_Q R, b_Q R, W_K R and W_V R_v replace the
projections, and R_v^T W_O that of the output.

The paper stacks Q over K, and V over W_O^T, unscaled. Here each of the four is first divided by its
Frobenius norm, so that both of a pair count equally: 1,500 frames do not outweigh a few dozen
queries, nor values the output. Ranks differ by head, layer and matrix; the columns of all heads are
stored side by side, so that none is padded to another's rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.base import CrossLayer, CrossStore, DecodeStep, Rows, SelfLayer, StoreShape
from slimwhisper.cache.fold import Activations, Attention, Context, Folded
from slimwhisper.cache.forms import Form
from slimwhisper.kernels.linear import linear
from slimwhisper.research.forms.groups import per_row
from slimwhisper.types import Dims


def spectrum(block: Attention, query_inputs: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations [2, h, d_k, d_k] and singular values [2, h, d_k] of one block, float64.

    Recorded inputs: query_inputs [T_q, d] of the queries, source [T_k, d] of keys and values.
    """

    def heads(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """[T, d] -> [h, T, d_k]."""
        bias = None if bias is None else bias.double()
        y = F.linear(x.double(), weight.double(), bias)
        return y.unflatten(-1, (block.heads, -1)).transpose(0, 1)

    out = block.out.double().unflatten(-1, (block.heads, -1)).transpose(0, 1)  # [h, d, d_k]
    pairs = (
        (heads(query_inputs, block.query, block.query_bias), heads(source, block.key)),
        (heads(source, block.value), out),
    )
    spectra = []
    for pair in pairs:
        balanced = [m / m.norm(dim=(1, 2), keepdim=True).clamp(min=1e-300) for m in pair]
        # R of a QR product has the same right singular vectors, in few rows
        small = torch.linalg.qr(torch.cat(balanced, dim=1), mode="r").R
        missing = max(0, small.shape[2] - small.shape[1])  # fewer activations than columns
        _, singular, rotation = torch.linalg.svd(F.pad(small, (0, 0, 0, missing)))
        spectra.append((rotation.mT, singular))
    rotations, singular_values = zip(*spectra, strict=True)
    return torch.stack(rotations), torch.stack(singular_values)


def ranks(settings: "Zack", singular: Tensor) -> Tensor:
    """Singular values [..., d_k] in falling order -> how many columns to keep, [...] int64.

    removal: equation 6, of singular values and not their squares; the smallest r for which those
    after the r-th sum to at most this share of all. keep: the smallest removal, the same for all
    heads, layers and matrices, that keeps at most this share of the columns. Ranks are rounded up
    to `multiple`, which is also the least that every head keeps.
    """
    width = singular.shape[-1]
    unit = settings.multiple if settings.multiple <= width else 1
    tails = singular.flip(-1).cumsum(-1).flip(-1)  # sums from each column on

    def after(removal: float) -> Tensor:
        least = (tails > removal * tails[..., :1]).sum(dim=-1)
        return (-(-least // unit) * unit).clamp(unit, width)

    if settings.rank is not None:
        return torch.full_like(after(0), min(-(-settings.rank // unit) * unit, width))
    if settings.removal is not None:
        return after(settings.removal)
    assert settings.keep is not None
    budget = settings.keep * singular.numel() * (1 + 1e-12)  # a share such as 0.1 is rounded
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if after(middle).sum() > budget else (low, middle)
    return after(0 if settings.keep == 1 else high)


class RotatedAttention:
    """The projections of one block, and attention head by head."""

    def __init__(self, weights: Folded) -> None:
        assert weights.project is not None and weights.values is not None
        self.weights, self.project, self.values = weights, weights.project, weights.values
        assert weights.form.learned is not None
        of_heads = weights.form.learned[weights.layer]["ranks"]
        self.key_ranks, self.value_ranks = (list(map(int, each)) for each in of_heads)
        self.scale = (weights.width // weights.heads) ** -0.5

    def allocate(self, shape: StoreShape) -> tuple[Tensor, Tensor]:
        """Keys and values of all heads, [count, length, sum of their ranks]."""
        keys, values = (
            torch.zeros((shape.count, shape.length, n), device=shape.device, dtype=shape.dtype)
            for n in (sum(self.key_ranks), sum(self.value_ranks))
        )
        return keys, values

    def queries(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T, sum of ranks]."""
        return linear(x, self.weights.query, self.weights.query_bias)

    def to_store(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, d] -> K and V, [B, T, sum of ranks]."""
        return linear(x, self.project), linear(x, self.values)

    def attend(
        self,
        queries: Tensor,
        stored: Sequence[Tensor],
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """queries [R, T, sum of ranks], K and V [W, n, sum of ranks] -> [R, T, d].

        R a multiple of W: neighbouring rows share a window. bias: [R, 1, n], with R = W.
        """
        keys, values = stored
        by_window = queries.reshape(len(keys), -1, queries.shape[2])  # [W, R / W * T, sum of ranks]
        heads = zip(
            by_window.split(self.key_ranks, 2),
            keys.split(self.key_ranks, 2),
            values.split(self.value_ranks, 2),
            strict=True,
        )
        mixed = [
            F.scaled_dot_product_attention(*head, bias, is_causal=causal, scale=self.scale)
            for head in heads
        ]
        joined = torch.cat(mixed, dim=2).view(*queries.shape[:2], -1)
        return linear(joined, self.weights.out, self.weights.out_bias)


class RotatedStore(CrossStore):
    """Rotated K and V of the audio for one layer, [slots, p, sum of ranks]."""

    def __init__(self, attention: RotatedAttention, shape: StoreShape) -> None:
        self.attention = attention
        super().__init__(*attention.allocate(shape))

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] -> K and V, in `slots` [G] int64."""
        for buffer, new in zip(self.tensors, self.attention.to_store(features), strict=True):
            buffer[slots] = new


class ZackCross(CrossLayer):
    """Cross-attention of one layer over rotated K and V."""

    store: RotatedStore

    def __init__(self, weights: Folded, shape: StoreShape, store: CrossStore | None = None) -> None:
        assert store is None, "every layer has its own keys and values"
        self.attention = RotatedAttention(weights)
        self.store = RotatedStore(self.attention, shape)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]."""
        stored = [per_row(rows.of_slots(t), len(rows.slots)) for t in self.store.tensors]
        return self.attention.attend(self.attention.queries(x), stored)

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax."""
        sizes = self.attention.key_ranks
        queries = (self.attention.queries(x) * self.attention.scale).split(sizes, 2)
        keys = self.store.tensors[0][rows.slots].split(sizes, 2)
        scores = [q @ k.mT for q, k in zip(queries, keys, strict=True)]
        return torch.stack(scores, dim=1)[:, heads]


class ZackSelf(SelfLayer):
    """Self-attention of one layer over rotated K and V, [rows, n_text_ctx, sum of ranks]."""

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.attention, self.length = RotatedAttention(weights), shape.length
        super().__init__(*self.attention.allocate(shape))

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; stores K and V, [R, T, sum of ranks]."""
        keys_values = self.attention.to_store(x)
        for buffer, new in zip(self.tensors, keys_values, strict=True):
            buffer[rows.ids] = 0  # the previous text: a NaN would pass the mask
            buffer[rows.ids, : x.shape[1]] = new
        return self.attention.attend(self.attention.queries(x), keys_values, causal=True)

    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; stores K and V of the tokens, reads step.extent a row."""
        for buffer, new in zip(self.tensors, self.attention.to_store(x), strict=True):
            buffer[step.rows.ids, step.positions] = new[:, 0]
        stored = [per_row(step.rows.of_rows(t[:, : step.extent]), len(x)) for t in self.tensors]
        bias = None if step.bias is None else step.bias()
        return self.attention.attend(self.attention.queries(x), stored, bias)


@dataclass(frozen=True)
class Zack(Form):
    """Keys and values, rotated and cut. One of the first three settings says how much to keep;
    without any of them, `removal` is 0.05.
    """

    name, exact, cross, self_ = "zack", False, ZackCross, ZackSelf
    # rotations of all heads side by side, cut to their ranks, [d_k, sum of ranks], and the ranks of
    # keys and of values, [2, h]; all float64
    tensors = ("keys", "values", "ranks")
    removal: float | None = None  # share of the sum of a head's singular values to drop at most
    keep: float | None = None  # share of the values of K and V to keep, of all heads and layers
    rank: int | None = None  # columns of K and of V, of every head
    multiple: int = 16  # ranks are rounded up to multiples of this; 1 where it exceeds d_k

    def __post_init__(self) -> None:
        names = ("removal", "keep", "rank")
        given = [f"{n}={getattr(self, n)}" for n in names if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of removal, keep and rank")
        if not given:
            object.__setattr__(self, "removal", 0.05)
        removal, keep = self.removal, self.keep
        valid = removal is None or 0 <= removal < 1
        self.require(valid, "removal", "0, which drops nothing, to below 1")
        self.require(keep is None or 0 < keep <= 1, "keep", "a share above 0, up to 1")
        self.require(self.rank is None or self.rank >= 1, "rank", "at least 1")
        self.require(self.multiple >= 1, "multiple", "at least 1")

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        return [[f"keep={share}" for share in (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2)]]

    def learn(self, attention: str, blocks: Sequence[Attention], activations: Activations) -> Self:
        """Ranks depend on all layers."""
        spectra, layers = [], []
        for i, block in enumerate(blocks):
            source = activations.source(attention, i)
            spectra.append(spectrum(block, activations.query_inputs(attention, i), source))
        sizes = ranks(self, torch.stack([singular for _, singular in spectra]))  # [layers, 2, h]
        for (rotations, _), counts in zip(spectra, sizes, strict=True):
            keys, values = (
                torch.cat([r[:, :n] for r, n in zip(each, own, strict=True)], dim=1)
                for each, own in zip(rotations, counts.tolist(), strict=True)
            )
            layers.append({"keys": keys, "values": values, "ranks": counts.double()})
        return replace(self, learned=layers)

    def fold(self, block: Attention, context: Context) -> Folded:
        """Rotate the weights, head by head."""
        assert self.learned is not None, "zack learns from recorded activations"
        learned = self.learned[context.layer]

        def rotate(weight: Tensor, name: str, row: int) -> Tensor:
            """R_i^T W_i of every head: [d, ...] -> [sum of ranks, ...]."""
            sizes = [int(n) for n in learned["ranks"][row].tolist()]
            rotations = learned[name].double().split(sizes, dim=1)
            parts = weight.double().unflatten(0, (block.heads, -1))
            return torch.cat([r.T @ part for r, part in zip(rotations, parts, strict=True)])

        return block.folded(
            self,
            query=rotate(block.query, "keys", 0),
            query_bias=rotate(block.query_bias, "keys", 0),
            out=rotate(block.out.T, "values", 1).T,
            project=rotate(block.key, "keys", 0),
            values=rotate(block.value, "values", 1),
        )
