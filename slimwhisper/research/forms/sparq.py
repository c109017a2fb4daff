"""Forms `sparq` and `sparq_latent`: a step reads some components of the keys and some positions.

SparQ attention (Ribar et al., arXiv 2312.04985, Algorithm 1). For one head with the query q [d_k],
over K and V [S, d_k]:

    i1    = argtopk(|q|, r)                               the components that are read
    tau   = sqrt(d_k ||q[i1]||_1 / ||q||_1)               the temperature
    s^    = softmax(q[i1] K[:, i1]^T / tau)               approximate weights
    i2    = argtopk(s^ + m, k)                            the positions that are read
    alpha = sum(s^[i2])
    y     = alpha softmax(q K[i2]^T / sqrt(d_k)) V[i2] + (1 - alpha) mean(V)

m is 1 at the l most recent positions of a text and 0 elsewhere, so those are always read. g queries
that share keys and values (appendix B) also share i1, from the sum of their |q|, and i2, from the
sum of their s^. A latent, E or X, is one key and value for all h heads, whose queries are the
folded ones, q_i A_i (`slimwhisper.cache.forms`): `sparq` has G = h groups of one query,
`sparq_latent` one group of h. Each row of a window has its own i1 and i2, beams too. Prompts and
word timestamps are dense; a step with at most k tokens reads all of them, so it is exact.

A step of one head moves S r + 2 k d_k + 4 d_k values (appendix C2): r components of all keys, then
K and V of k positions; 2 d_k to write the token's K and V, and 2 d_k to read and write the mean.
The first term needs a second copy of K, laid out by component (`twice`). From K by position, memory
delivers whole rows: all of K is moved, S d_k, and after that only V of the k positions. With a
latent, K and V are one: S r + k d, or without `twice` all of it.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slimwhisper.cache.base import CrossLayer, CrossStore, DecodeStep, Rows, SelfLayer, StoreShape
from slimwhisper.cache.fold import Attention, Context, Folded
from slimwhisper.cache.forms import KV, E
from slimwhisper.cache.kv import KVCross, KVSelf, KVStore
from slimwhisper.cache.latent import LatentCross, LatentSelf, LatentStore
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.research.forms.groups import HeadGroups, LatentGroups, groups_of, per_row
from slimwhisper.types import Dims


def sparq(
    q: Tensor,
    keys: Tensor,
    columns: Tensor,
    values: Tensor,
    mean: Tensor,
    settings: "SparQ",
    scale: float,
    last: Tensor | None = None,
) -> Tensor:
    """Algorithm 1 and appendix B, in at least float32.

    Arguments:
        q: [N, G, g, w].
        keys, values: [N, G, S, w].
        columns: [N, G, w, S], the keys, perhaps in another layout.
        mean: [N, G, w], of the values.
        scale: 1 / sqrt(d_k).
        last: [N] int64, the last position that each row has; None: all.
    Returns:
        like q.
    """
    dtype, wide, tokens = q.dtype, at_least_float32(q.dtype), keys.shape[2]
    r, k = settings.components(q.shape[3]), settings.positions(tokens)
    window = 0 if last is None else int(settings.local * k)
    end = torch.tensor([tokens - 1], device=q.device) if last is None else last
    q, sizes = q.to(wide), q.to(wide).abs()
    i1 = sizes.sum(2, keepdim=True).topk(r).indices  # [N, G, 1, r]
    largest = q.gather(3, i1.expand(*q.shape[:3], r))
    share = largest.abs().sum(3, keepdim=True) / sizes.sum(3, keepdim=True).clamp(min=1e-30)
    tau = share.clamp(min=1e-6).sqrt() / scale  # a query of zeros has no share
    scores = largest @ columns.gather(2, i1.mT.expand(*i1.shape[:2], r, tokens)).to(wide) / tau
    age = end[:, None, None, None] - torch.arange(tokens, device=q.device)
    weights = scores.masked_fill(age < 0, float("-inf")).softmax(dim=3)  # s^ [N, G, g, S]
    bonus = q.shape[2] * ((age >= 0) & (age < window)).to(wide) - (age < 0).to(wide)
    i2 = (weights.sum(2, keepdim=True) + bonus).topk(k).indices  # [N, G, 1, k]
    alpha = weights.gather(3, i2.expand(*q.shape[:3], k)).sum(3, keepdim=True)
    rows = i2.mT.expand(*i2.shape[:2], k, q.shape[3])
    exact = q @ keys.gather(2, rows).to(wide).mT * scale
    exact = exact.masked_fill(i2 > end[:, None, None, None], float("-inf")).softmax(dim=3)
    mixed = exact @ values.gather(2, rows).to(wide)
    return (alpha * mixed + (1 - alpha) * mean.to(wide).unsqueeze(2)).to(dtype)


def keys_values(store: KVStore | KVSelf | LatentStore | LatentSelf) -> tuple[Tensor, Tensor]:
    """Views of a store's keys and values, each [slots or rows, G, S, w]."""
    if isinstance(store, KVStore | KVSelf):
        return store.keys, store.values
    latent = store.latent.values.unsqueeze(1)
    return latent, latent


class SparQStore(CrossStore):
    """An exact store, the mean of its values [slots, G, w] and, with `twice`, keys by component."""

    def __init__(self, exact: KVStore | LatentStore, settings: "SparQ") -> None:
        self.exact = exact
        self.keys, self.values = keys_values(exact)
        self.mean = torch.zeros_like(self.values[:, :, 0].contiguous())
        self.columns = settings.columns(self.keys)
        super().__init__(*exact.tensors, self.mean, *self.columns)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] in `slots` [G] int64."""
        self.exact.put(slots, features)
        values = self.values[slots]
        self.mean[slots] = values.mean(2, dtype=at_least_float32(values.dtype)).to(values.dtype)
        for columns in self.columns:
            columns[slots] = self.keys[slots].mT


class SparQCross(CrossLayer):
    """Cross-attention of one layer: steps by Algorithm 1, prompts dense."""

    store: SparQStore

    def __init__(self, weights: Folded, shape: StoreShape, store: SparQStore | None = None) -> None:
        exact: Any = store and store.exact
        make = KVCross if weights.key_map is None else LatentCross
        self.exact: KVCross | LatentCross = make(replace(weights, stored=None), shape, exact)
        assert isinstance(weights.form, SparQ)
        self.settings = weights.form
        self.groups, self.length = groups_of(weights, shape.kernels), shape.length
        self.store = store or SparQStore(self.exact.store, self.settings)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], dense."""
        return self.exact.attend(x, rows)

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p]."""
        return self.exact.scores(x, rows, heads)

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]."""
        store = self.store
        columns = store.columns[0] if store.columns else store.keys.mT
        buffers = (store.keys, columns, store.values, store.mean)
        keys, columns, values, mean = (per_row(rows.of_slots(t), len(x)) for t in buffers)
        q, settings, scale = self.groups.group_queries(x), self.settings, self.groups.scale
        return self.groups.group_output(sparq(q, keys, columns, values, mean, settings, scale))

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads, the mean included."""
        mean = self.store.mean[slot]
        read = self.settings.read_values(self.groups, self.length)
        return (read + mean.numel()) * mean.itemsize


class SparQSelf(SelfLayer):
    """Self-attention of one layer: an exact one, the sum of its values [rows, G, w] and, with
    `twice`, its keys by component.
    """

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.exact = (KVSelf if weights.key_map is None else LatentSelf)(weights, shape)
        assert isinstance(weights.form, SparQ)
        self.settings = weights.form
        self.groups, self.length = groups_of(weights, shape.kernels), shape.length
        self.keys, self.values = keys_values(self.exact)
        self.sums = torch.zeros_like(self.values[:, :, 0], dtype=at_least_float32(shape.dtype))
        self.columns = self.settings.columns(self.keys)
        super().__init__(*self.exact.tensors, self.sums, *self.columns)

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], dense."""
        mixed, ids, tokens = self.exact.prefill(x, rows), rows.ids, x.shape[1]
        lengths = rows.prompt_lengths(tokens)
        padding = torch.arange(tokens, device=x.device) >= lengths[:, None]
        values = self.values[ids, :, :tokens].to(self.sums.dtype)
        self.sums[ids] = values.masked_fill(padding[:, None, :, None], 0).sum(2)
        for t in self.columns:
            t[ids] = self.keys[ids].mT
        return mixed

    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; stores the tokens, then reads by Algorithm 1."""
        ids, extent, at = step.rows.ids, step.extent, step.positions
        new = self.groups.to_store(x)  # of a latent, keys and values are one
        self.keys[ids, :, at], self.values[ids, :, at] = new[0][:, :, 0], new[-1][:, :, 0]
        self.sums[ids] += self.values[ids, :, at].to(self.sums.dtype)
        for t in self.columns:
            t[ids, :, :, at] = self.keys[ids, :, at]
        columns = self.columns[0] if self.columns else self.keys.mT
        buffers = (self.keys[:, :, :extent], columns[..., :extent], self.values[:, :, :extent])
        keys, columns, values = (per_row(step.rows.of_rows(t), len(x)) for t in buffers)
        mean = self.sums[ids] / (at + 1)[:, None, None]
        q, settings, scale = self.groups.group_queries(x), self.settings, self.groups.scale
        return self.groups.group_output(sparq(q, keys, columns, values, mean, settings, scale, at))

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row with `tokens` tokens reads, the sum included."""
        read = self.settings.read_values(self.groups, tokens) * self.keys.itemsize
        return read + self.sums[row].nbytes


@dataclass(frozen=True)
class SparQ(KV):
    """Keys and values, of which a step reads some; r and k above the width and the length mean
    all.
    """

    name, exact, cross, self_ = "sparq", False, SparQCross, SparQSelf
    r: int | None = 32  # components of the query; the paper's value for heads of width 128
    k: int | None = 128  # positions
    local: float = 0.25  # share of k for the most recent positions; only of a text
    twice: bool = False  # store K in the other layout as well

    def __post_init__(self) -> None:
        for name, value in (("r", self.r), ("k", self.k)):
            self.require(value is None or value >= 1, name, "at least 1, or all")
        self.require(0 <= self.local <= 1, "local", "a share of k, from 0 to 1")

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        width = dims.n_text_state // (1 if cls.shared else dims.n_text_head)
        tokens = dims.n_audio_ctx if part == "cross" else dims.n_text_ctx
        shares = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 32))
        return [[f"r={max(1, width // r)},k={max(1, tokens // k)},twice=true" for r, k in shares]]

    def components(self, width: int) -> int:
        """r of a query of this width."""
        return width if self.r is None else min(self.r, width)

    def positions(self, tokens: int) -> int:
        """k of this many tokens."""
        return tokens if self.k is None else min(self.k, tokens)

    def columns(self, keys: Tensor) -> tuple[Tensor, ...]:
        """With `twice`, zeros for keys [count, G, S, w] in the other layout, [count, G, w, S]."""
        return (torch.zeros_like(keys.mT.contiguous()),) if self.twice else ()

    def read_values(self, groups: HeadGroups | LatentGroups, tokens: int) -> int:
        """How many values a step of one row with this many tokens reads; see above."""
        width, k = groups.width, self.positions(tokens)
        keys = tokens * width
        if self.twice and k < tokens:
            keys = tokens * self.components(width) + k * width
        return groups.count * (keys if isinstance(groups, LatentGroups) else keys + k * width)


@dataclass(frozen=True)
class SparQLatent(SparQ):
    """A latent, of which a step reads some; r counts columns of the whole width d."""

    name, shared = "sparq_latent", True
    r: int | None = 128

    def fold(self, block: Attention, context: Context) -> Folded:
        return E().fold(block, context)
