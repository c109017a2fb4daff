"""SparQ attention (Ribar et al., arXiv 2312.04985, Algorithm 1): what a step chooses to read.

For one head with the query q [d_k], over K and V [S, d_k]:

    i1    = argtopk(|q|, r)                               the components that are looked at
    tau   = sqrt(d_k ||q[i1]||_1 / ||q||_1)               the temperature
    s^    = softmax(q[i1] K[:, i1]^T / tau)               approximate weights
    i2    = argtopk(s^ + m, k)                            the positions that are read
    alpha = sum(s^[i2])
    y     = alpha softmax(q K[i2]^T / sqrt(d_k)) V[i2] + (1 - alpha) mean(V)

m is 1 at the l most recent positions and 0 elsewhere, so those are always read. Every row of a
window chooses for itself, its beams too. Steps work so. Prompts and the words' times are dense, and
so is a step that has at most k tokens to read.

A step of one head moves M = S r + 2 k d_k + 4 d_k values (appendix C2): r components of all keys,
then K and V of k positions; 2 d_k to write the token's own K and V, and 2 d_k to read and write the
mean. Dense attention moves 2 S d_k + 2 d_k. The first term needs K a second time, laid out by
component (`twice`). From K by position, memory delivers whole rows of d_k values, so all of K is
moved, S d_k, and after that only V of the k positions: what is saved is the rest of V.

`sparq_heads` works over keys and values, `sparq_latent` over latents.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.base import Room, Rows, Step
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.kernels.reads import ALL, Reads

STRIDE = 32  # tokens between two sums of `RunningSums`: l of the default k, which are read anyway


@dataclass(frozen=True, slots=True)
class SparQ:
    """Settings; more than there is of r or k means all."""

    r: int | None = 32  # components of the query; the paper's for heads of width 128
    k: int | None = 128  # positions
    local: float = 0.25  # share of k that is for the most recent positions; of a text alone
    twice: bool = False  # keep K in the other layout as well

    def __post_init__(self) -> None:
        for name, value in (("r", self.r), ("k", self.k)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1, or all")
        if not 0 <= self.local <= 1:
            raise ValueError(f"local={self.local}: give a share of k, from 0 to 1")

    def components(self, width: int) -> int:
        """r of a query of this width."""
        return width if self.r is None else min(self.r, width)

    def positions(self, tokens: int) -> int:
        """k of this many tokens."""
        return tokens if self.k is None else min(self.k, tokens)

    def window(self, tokens: int, growing: bool) -> int:
        """l of this many tokens; growing: of a text, not of audio."""
        return int(self.local * self.positions(tokens)) if growing else 0


def transfers(tokens: int, r: int, k: int, width: int) -> int:
    """M, the values that a head of this width reads and writes in a step (appendix C2)."""
    return tokens * r + 2 * k * width + 4 * width


def dense_transfers(tokens: int, width: int) -> int:
    """The same of dense attention: reads K and V, writes the token's own."""
    return 2 * tokens * width + 2 * width


@dataclass(frozen=True, slots=True)
class Asked:
    """Which of the kept slots or rows N queries read, and how far."""

    ids: Tensor  # [N] int64
    view: Callable[[Tensor], tuple[Tensor, Tensor | None]]  # `Rows.of_slots` or `Rows.of_rows`
    last: Tensor | None = None  # [N] int64: the last position; None: all positions
    chosen: Reads = ALL  # which of k chosen positions, best first, hold a token

    @staticmethod
    def by(rows: Rows) -> "Asked":
        """Audio: every position of each row's slot."""
        return Asked(rows.slots, rows.of_slots)

    @staticmethod
    def at(step: Step, k: int, dtype: torch.dtype) -> "Asked":
        """Texts: the positions up to each row's own token; k < step.extent."""
        rows, full = step.rows, step.lengths is None
        some = Step.at(rows, step.positions.clamp(max=k - 1), k, full, dtype)
        return Asked(rows.ids, rows.of_rows, step.positions, some.reads(None))

    def read(self, kept: Tensor) -> Tensor:
        """[slots or rows, ...] -> [B, ...]; N / B queries share each."""
        held, chosen = self.view(kept)
        return held if chosen is None else held[chosen]

    def weights(self, scores: Tensor) -> Tensor:
        """s^: scores over tau [N, h, S] -> [N, h, S] in at least float32, 0 beyond `last`."""
        wide = scores.to(at_least_float32(scores.dtype))
        if self.last is not None:
            places = torch.arange(scores.shape[-1], device=scores.device)
            wide = wide.masked_fill(places > self.last[:, None, None], float("-inf"))
        return wide.softmax(dim=-1)

    def best(self, weights: Tensor, k: int, window: int) -> Tensor:
        """i2: weights [N, g, S] between 0 and 1 -> [N, g, k] int64, those without a token last."""
        end = weights.shape[-1]
        last = end - 1 if self.last is None else self.last[:, None, None]
        ago = last - torch.arange(end, device=weights.device)
        favour = ((ago >= 0) & (ago < window)).to(weights.dtype) - (ago < 0).to(weights.dtype)
        return (weights + favour).topk(k, dim=-1).indices


def temperature(sizes: Tensor, chosen: Tensor, width: int) -> Tensor:
    """tau: |q| [..., d], the chosen components [..., r] int64 -> [...]; width: d_k."""
    share = sizes.gather(-1, chosen).sum(-1) / sizes.sum(-1).clamp(min=1e-30)
    return (width * share.clamp(min=1e-6)).sqrt()  # a query of zeros has no share


def masked(q: Tensor, chosen: Tensor) -> Tensor:
    """q [..., d] with zeros but for the components `chosen` [..., r] int64."""
    return torch.zeros_like(q).scatter(-1, chosen, q.gather(-1, chosen))


class RunningSums:
    """Sums of the first 0, 32, 64, ... tokens of each row, for the mean over a growing text.

    A prompt's padding counts in none of the sums that its row reads: a step at position p reads the
    sum of whole strides before p, adds the tokens from there to p, and leaves the result as the
    next sum, which is complete at the end of the stride. The paper's one running sum would have
    to know, when a prompt is read, which rows of it are padded.
    """

    def __init__(self, room: Room, *shape: int) -> None:
        """shape: of one token."""
        self.length = room.length
        self.sums = torch.zeros(
            (room.count, -(-room.length // STRIDE) + 1, *shape),
            device=room.device,
            dtype=at_least_float32(room.dtype),
        )

    def begin(self, ids: Tensor, tokens: Tensor) -> None:
        """Start new texts in rows `ids` [R] int64 with tokens [R, T, ...]."""
        full = tokens.shape[1] // STRIDE
        whole = tokens[:, : full * STRIDE].to(self.sums.dtype).unflatten(1, (full, STRIDE))
        self.sums[ids] = 0
        self.sums[ids, 1 : full + 1] = whole.sum(2).cumsum(1)

    def mean(self, step: Step, tokens: Tensor) -> Tensor:
        """The mean over tokens [rows, n, ...] up to each row's own -> [R, ...]."""
        ids, positions = step.rows.ids, step.positions
        stride = positions // STRIDE
        places = stride[:, None] * STRIDE + torch.arange(STRIDE, device=positions.device)
        tail = tokens[ids[:, None], places.clamp(max=self.length - 1)].to(self.sums.dtype)
        unseen = (places > positions[:, None])[(..., *(None,) * (tail.dim() - 2))]
        total = self.sums[ids, stride] + tail.masked_fill(unseen, 0).sum(1)
        self.sums[ids, stride + 1] = total
        count = (positions + 1)[(..., *(None,) * (total.dim() - 1))]
        return (total / count).to(tokens.dtype)

    def read_bytes(self, row: int, tokens: int, itemsize: int, window: int) -> int:
        """Of the mean: one sum, and the tokens of its tail that the window does not hold."""
        one = self.sums[row, 0]
        return one.nbytes + max(0, (tokens - 1) % STRIDE + 1 - window) * one.numel() * itemsize
