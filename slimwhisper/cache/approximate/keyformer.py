"""Forms `keyformer` and `keyformer_latent`: a text of k tokens, however long it gets.

    Keyformer   Adnan et al., MLSys 2024, arXiv 2403.09054, Algorithm 1

Every query adds to the score of every kept token i

    exp((x_i + zeta_i) / tau) / sum_j exp((x_j + zeta_j) / tau),    x = q . k / sqrt(d_k)

with standard Gumbel noise zeta, drawn once for each head and token, and a temperature tau that
grows linearly from tau_init in the prompt to tau_end after T steps. A row keeps k tokens: a window
of the w most recent ones, and of the others the k - w with the highest scores, the KEY TOKENS.
The same store is

    H2O             Zhang et al., arXiv 2306.14048      noise=none,tau_end=1,recent=0.5
    window                                              recent=1
    StreamingLLM    Xiao et al., arXiv 2309.17453       recent=1,sinks=4

Algorithm 1 attends to k + 1 tokens and then evicts one. Here the token of a step takes the place of
the one that is evicted before it attends: budget k + 1 with w + 1 recent ones is the algorithm with
k and w. (Most of the authors' own code attends to k tokens, too.) Tokens keep their original
positions without further work, as Whisper adds positions to the embeddings and rotates nothing.

`keyformer` keeps keys and values and lets every head choose its tokens; `keyformer_latent` keeps
what `x` does, once for all heads of a layer, which therefore share a choice, by the sum of their
scores. One choice for all layers, the paper's "Shared", is not here. Buffers hold k places for each
row, not n_text_ctx. A prompt attends to itself densely; the best of it is kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.approximate.groups import LatentGroups, groups_of
from slimwhisper.cache.base import Buffers, Room, Rows, SelfLayer, Step
from slimwhisper.cache.fold import Attention, Context, Folded, fold_float8, fold_latent
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.linear import at_least_float32, linear
from slimwhisper.types import Dims

NOISES = ("gumbel", "none")


@dataclass(frozen=True, slots=True)
class KeyformerSettings:
    """What is kept of a text; the paper's values, except where it has none for Whisper."""

    budget: int | None = 224  # k, tokens of a row; half of Whisper's context; all: all of it
    recent: float = 0.3  # w / k, section 4.4.4: 20 to 30 %; 1: only recent tokens, a window
    sinks: int = 0  # the first tokens, which are always kept
    noise: str = "gumbel"  # or none
    tau_init: float = 1.0
    tau_end: float = 2.0
    steps: int | None = None  # T; all: half of the context, the most that Whisper samples
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 2:
            raise ValueError(f"budget={self.budget}: give at least 2 tokens, or all")
        if not 0 < self.recent <= 1:
            raise ValueError(f"recent={self.recent}: give a share of the budget, above 0 up to 1")
        if self.sinks < 0 or (self.budget is not None and self.sinks >= self.budget):
            raise ValueError(f"sinks={self.sinks}: give 0 or more, but less than the budget")
        if min(self.tau_init, self.tau_end) <= 0:
            raise ValueError("tau_init and tau_end: give temperatures above 0")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps={self.steps}: give at least 1, or all")
        if self.noise not in NOISES:
            raise ValueError(f"noise={self.noise}: give one of {', '.join(NOISES)}")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")

    def places(self, length: int) -> int:
        """k in a context of `length` tokens."""
        return length if self.budget is None else min(self.budget, length)

    def window(self, length: int) -> int:
        """w in a context of `length` tokens: the recent ones, the token of the step among them."""
        k = self.places(length)
        return max(1, min(round(self.recent * k), k - self.sinks))


@dataclass(frozen=True, slots=True)
class KeyformerLatentSettings(KeyformerSettings):
    """Of `keyformer_latent`."""

    float8: bool = False  # keep what `x8` does


def ladder(dims: Dims, part: str) -> list[list[str]]:
    """The settings that `tradeoff` and `calibrate` try: `slimwhisper.cache.forms.Form`."""
    return [[f"budget={max(8, dims.n_text_ctx // parts)}" for parts in (2, 4, 7, 10, 14, 20, 28)]]


def ladder_latent(dims: Dims, part: str) -> list[list[str]]:
    """The same of `keyformer_latent`; also in float8, and as a window."""
    (rungs,) = ladder(dims, part)
    variants = ("", ",float8=true", ",recent=1,float8=true")
    return [[rung + more for rung in rungs] for more in variants]


def gumbel(seed: int, layer: int, heads: int, length: int) -> Tensor:
    """Standard Gumbel noise of every head and token of a layer, [h, length] float32. It is the same
    whichever rows are decoded beside a text, and for the beams of a window.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
    uniform = torch.rand((heads, length), generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(1e-12, 1 - 1e-12).log()).log().float()


class KeptTokens(Buffers):
    """Which tokens the rows of one layer keep, for each head or for all of them together.

    A row's tokens fill its k places from the left. There are G choices: one for each head, or one
    for all, by the sum of their scores.
    """

    def __init__(self, weights: Folded, room: Room, groups: int) -> None:
        """groups: G, 1 or the number of heads."""
        settings: KeyformerSettings = weights.settings
        self.settings, self.groups, device = settings, groups, room.device
        self.budget, self.window = settings.places(room.length), settings.window(room.length)
        self.duration = settings.steps or max(1, room.length // 2)  # T
        self.wide = at_least_float32(room.dtype)
        shape = (room.count, groups, self.budget)
        self.scores = torch.zeros(shape, device=device, dtype=self.wide)
        self.positions = torch.full(shape, -1, device=device, dtype=torch.int16)  # -1: empty
        self.steps = torch.zeros(room.count, device=device, dtype=torch.int16)  # since the prompt
        super().__init__(self.scores, self.positions, self.steps)
        noise = gumbel(settings.seed, weights.layer, weights.heads, room.length)
        self.noise = (noise * (settings.noise != "none")).to(device, self.wide)  # [h, length]

    def temperature(self, steps: Tensor) -> Tensor:
        """tau in the given steps since the prompt, [R] integers -> [R]."""
        first, last = self.settings.tau_init, self.settings.tau_end
        return first + (last - first) * steps.to(self.wide).clamp(max=self.duration) / self.duration

    def prompt(self, q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
        """The scores of a prompt's tokens from all of its queries, at tau_init.

        q, k [R, h, T, d_k], lengths [R] int64 -> [R, G, T]. One head at a time: T^2 scores.
        """
        (count, heads, length, width), tau = q.shape, self.settings.tau_init
        positions = torch.arange(length, device=q.device)
        later, padding = positions > positions[:, None], positions >= lengths[:, None]
        total = torch.zeros(count, self.groups, length, device=q.device, dtype=self.wide)
        for head in range(heads):
            x = q[:, head].to(self.wide) @ k[:, head].to(self.wide).mT * width**-0.5
            x = (x + self.noise[head, :length]).masked_fill(later, float("-inf"))
            share = (x / tau).softmax(dim=-1).masked_fill(padding[:, :, None], 0)
            total[:, head % self.groups] += share.sum(dim=1)
        return total

    def start(self, ids: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Keep the best of new texts' prompts in rows `ids` [R] int64.

        scores [R, G, T] as `prompt` gives, lengths [R] -> the tokens that places 0 to
        min(T, k) - 1 keep, [R, G, min(T, k)] int64, in order; past a row's length they are padding.
        """
        positions = torch.arange(scores.shape[-1], device=scores.device)
        lengths = lengths[:, None, None]
        safe = (positions >= lengths - self.window) | (positions < self.settings.sinks)
        rank = scores.masked_fill(safe, float("inf")).masked_fill(positions >= lengths, -1)
        chosen = rank.topk(min(self.budget, rank.shape[-1])).indices.sort(dim=-1).values
        count = chosen.shape[-1]
        for buffer, clear, fresh in (
            (self.scores, 0, scores.gather(-1, chosen)),
            (self.positions, -1, torch.where(chosen < lengths, chosen, -1).to(torch.int16)),
        ):
            buffer[ids] = clear
            buffer[ids, :, :count] = fresh
        self.steps[ids] = 0
        return chosen

    def admit(self, step: Step) -> Tensor:
        """Give every row's new token a place: an empty one, else the one of the worst token, which
        is evicted. Returns [R, G] int64.
        """
        ids, now = step.rows.ids, step.positions[:, None, None]
        held = self.positions[ids].long()
        safe = (held > now - self.window) | (held < self.settings.sinks)
        rank = self.scores[ids].masked_fill(safe, float("inf"))
        # an empty place, or a prompt's padding, goes before any token, and the leftmost first
        empty = torch.arange(-self.budget, 0, device=held.device, dtype=self.wide)
        place = torch.where((held < 0) | (held >= now), empty, rank).argmin(dim=-1)
        where = (ids[:, None], torch.arange(self.groups, device=held.device), place)
        self.positions[where] = step.positions[:, None].to(torch.int16).expand_as(place)
        self.scores[where] = 0
        self.steps[ids] += 1
        return place

    def weights(self, x: Tensor, step: Step) -> Tensor:
        """Scores x [R, h, n] of the first n places -> the weights of attention, 0 where there is no
        token. What they say of the tokens is added to their scores.
        """
        ids, places = step.rows.ids, x.shape[-1]
        held = self.positions[ids, :, :places].long()  # [R, G, n]
        hidden = (held < 0) | (held > step.positions[:, None, None])
        x = x.masked_fill(hidden, float("-inf"))
        heads = torch.arange(len(self.noise), device=x.device)[:, None]
        noisy = x + self.noise[heads, held.clamp(min=0)]
        share = (noisy / self.temperature(self.steps[ids])[:, None, None]).softmax(dim=-1)
        self.scores[ids, :, :places] += share if self.groups > 1 else share.sum(1, keepdim=True)
        return x.softmax(dim=-1)


def fold_keyformer_latent(block: Attention, context: Context) -> Folded:
    """`keyformer_latent`: as `x`, or as `x8`."""
    return (fold_float8 if context.settings.float8 else fold_latent)(block, context)


class KeyformerSelf(SelfLayer):
    """Self-attention of one layer over k kept tokens: keys and values, each [rows, h, k, d_k], with
    a choice for each head, or a latent [rows, 1, k, d], with one for all.
    """

    def __init__(self, weights: Folded, room: Room) -> None:
        self.groups, self.length = groups_of(weights, room.kernels), room.length
        self.chosen = KeptTokens(weights, room, self.groups.count)
        shape = (room.count, self.groups.count, self.chosen.budget, self.groups.width)
        float8 = weights.columns is not None
        self.kept = [
            Latent.allocate(shape, room.device, room.dtype, float8)
            for _ in range(1 if isinstance(self.groups, LatentGroups) else 2)
        ]
        tensors = [t for buffer in self.kept for t in buffer.tensors()]
        super().__init__(*tensors, *self.chosen.tensors)

    def read_bytes(self, row: int, tokens: int) -> float:
        """Of k tokens at most."""
        budget = self.chosen.budget
        return sum(t[row].nbytes for t in self.tensors) * min(tokens, budget) / budget

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps at most k tokens a row."""
        lengths, (q, keys, values) = rows.prompt_lengths(x.shape[1]), self.groups.by_head(x)
        tokens = self.chosen.start(rows.ids, self.chosen.prompt(q, keys, lengths), lengths)
        every = [torch.arange(n, device=x.device) for n in tokens.shape[1:]]
        where = (rows.ids[:, None, None], every[0][:, None], every[1])
        for buffer, fresh in zip(self.kept, self.groups.kept(x), strict=True):
            for t in buffer.tensors():
                t[rows.ids] = 0  # the previous text: a NaN would pass the mask
            best = tokens[..., None].expand(-1, -1, -1, fresh.shape[3])
            buffer.write(where, fresh.gather(2, best))
        mixed = head_attention(q, keys, values, causal=True)
        weights = self.groups.weights
        return linear(mixed.transpose(1, 2).flatten(2), weights.out, weights.out_bias)

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps the token instead of the worst one."""
        place, wide = self.chosen.admit(step), self.chosen.wide
        where = (step.rows.ids[:, None], torch.arange(place.shape[1], device=place.device), place)
        count = min(step.extent, self.chosen.budget)  # places that hold a token
        held = []
        for buffer, fresh in zip(self.kept, self.groups.kept(x), strict=True):
            buffer.write(where, fresh[:, :, 0])
            read, ids = step.rows.of_rows(buffer)
            read = (read if ids is None else read[ids])[:, :, :count]
            held.append(read.plain(wide).to(wide))  # [R, G, n, w]
        scores = self.groups.asked(x).to(wide) @ held[0].mT * self.groups.scale
        weights = self.chosen.weights(scores.flatten(1, 2), step).view_as(scores)
        return self.groups.found((weights @ held[-1]).to(x.dtype))
