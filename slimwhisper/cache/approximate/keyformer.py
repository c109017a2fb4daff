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

from slimwhisper.cache.base import Buffers, Room, Rows, SelfLayer, Step
from slimwhisper.cache.fold import Attention, Context, Folded, fold_float8, fold_latent
from slimwhisper.cache.kv import HeadAttention
from slimwhisper.cache.latent import LatentAttention, kept
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.linear import at_least_float32
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
        self.heads, self.length = HeadAttention(weights, room.kernels), room.length
        self.chosen = KeptTokens(weights, room, weights.heads)
        shape = (room.count, weights.heads, self.chosen.budget, self.heads.width)
        self.keys = torch.zeros(shape, device=room.device, dtype=room.dtype)
        self.values = torch.zeros_like(self.keys)
        super().__init__(self.keys, self.values, *self.chosen.tensors)

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps K and V of at most k tokens a row."""
        lengths, q = rows.prompt_lengths(x.shape[1]), self.heads.queries(x)
        keys, values = self.heads.keys_values(x)
        scores = self.chosen.prompt(q, keys, lengths)
        tokens = self.chosen.start(rows.ids, scores, lengths)[..., None]  # [R, h, n, 1]
        for buffer, fresh in ((self.keys, keys), (self.values, values)):
            buffer[rows.ids] = 0  # the previous text: a NaN would pass the mask
            best = fresh.gather(2, tokens.expand(-1, -1, -1, self.heads.width))
            buffer[rows.ids, :, : tokens.shape[2]] = best
        return self.heads.output(head_attention(q, keys, values, causal=True))

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps K and V of the token instead of the worst ones."""
        wide, count, place = self.chosen.wide, self.places(step.extent), self.chosen.admit(step)
        where = (step.rows.ids[:, None], torch.arange(place.shape[1], device=place.device), place)
        read = []
        for buffer, fresh in zip((self.keys, self.values), self.heads.keys_values(x), strict=True):
            buffer[where] = fresh[:, :, 0]
            held, ids = step.rows.of_rows(buffer[:, :, :count])
            read.append((held if ids is None else held[ids]).to(wide))  # [R, h, n, d_k]
        keys, values = read
        scores = (self.heads.queries(x).to(wide) @ keys.mT).squeeze(2) * self.heads.width**-0.5
        mixed = self.chosen.weights(scores, step).unsqueeze(2) @ values
        return self.heads.output(mixed.to(x.dtype))


class KeyformerLatentSelf(KeyformerLayer):
    """Self-attention of one layer over k kept tokens of the latent, [rows, k, d]."""

    def __init__(self, weights: Folded, room: Room) -> None:
        self.attention, self.length = LatentAttention(weights, room.kernels), room.length
        self.chosen = KeptTokens(weights, room, 1)
        shape = (room.count, self.chosen.budget, weights.width)
        self.latent = Latent.allocate(shape, room.device, room.dtype, weights.settings.float8)
        super().__init__(*self.latent.tensors(), *self.chosen.tensors)

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
        attention, wide = self.attention, self.chosen.wide
        place = self.chosen.admit(step)[:, 0]
        self.latent.write((step.rows.ids, place), kept(attention.weights, x[:, 0]))
        held, ids = step.rows.of_rows(self.latent)
        held = held[:, : self.places(step.extent)]
        latent = (held if ids is None else held[ids]).plain(wide).to(wide)  # [R, n, d]
        folded = attention.fold_queries(attention.queries(x)[:, 0]).to(wide)  # [R, h, d]
        weights = self.chosen.weights(folded @ latent.mT * attention.scale, step)
        mix, maps = (weights @ latent).to(x.dtype), attention.weights.value_map
        assert maps is not None
        mixed = torch.bmm(mix.transpose(0, 1), maps.transpose(1, 2)).transpose(0, 1)  # [R, h, d_k]
        return attention.output(mixed.unsqueeze(1))
