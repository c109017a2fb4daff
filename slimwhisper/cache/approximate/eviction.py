"""Which tokens a cache of fixed size keeps: Keyformer's score function and its eviction.

    Keyformer   Adnan et al., MLSys 2024, arXiv 2403.09054, Algorithm 1

Every query t adds to the score of every kept token i

    exp((x_i + zeta_i) / tau) / sum_j exp((x_j + zeta_j) / tau),    x = q . k / sqrt(d_k)

with standard Gumbel noise zeta, drawn for each query, head and token, and a temperature tau that
grows linearly from tau_init in the prompt to tau_end after T steps. A row keeps k tokens: a window
of the w most recent ones, and of the others the k - w with the highest scores, the KEY TOKENS.
The same store is

    H2O             Zhang et al., arXiv 2306.14048      noise=none,tau_end=1,recent=0.5
    window                                              recent=1
    StreamingLLM    Xiao et al., arXiv 2309.17453       recent=1,sinks=4

The token of a step is one of the k: it takes the place of the one that is evicted, before it
attends. (The authors' code attends to k + 1 and evicts afterwards.) Tokens keep their original
positions without further work, as Whisper adds positions to the embeddings and rotates nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.base import Buffers, Room, Step
from slimwhisper.kernels.linear import at_least_float32

NOISES = ("gumbel", "none")


def check_noise(noise: str, seed: int) -> None:
    """Raises ValueError, one line."""
    if noise not in NOISES:
        raise ValueError(f"noise={noise}: give one of {', '.join(NOISES)}")
    if seed < 0:
        raise ValueError(f"seed={seed}: give 0 or more")


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """What is kept of a text; the paper's values, except where it has none for Whisper."""

    budget: int | None = 224  # k, tokens of a row; half of Whisper's context; all: all of it
    recent: float = 0.3  # w / k, section 3.1; 1: only recent tokens, a window
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
        check_noise(self.noise, self.seed)

    def places(self, length: int) -> int:
        """k in a context of `length` tokens."""
        return length if self.budget is None else min(self.budget, length)

    def window(self, length: int) -> int:
        """w in a context of `length` tokens: the recent ones, the token of the step among them."""
        k = self.places(length)
        return max(1, min(round(self.recent * k), k - self.sinks))


class Noise:
    """Standard Gumbel noise for every head, query and token of one layer.

    A number depends on these alone, on every device, so that it is the same whichever rows are
    decoded beside this one, and for the beams of a window.
    """

    def __init__(self, seed: int, layer: int, heads: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
        span = torch.iinfo(torch.int64)
        keys = torch.randint(span.min, span.max, (heads,), generator=generator)
        self.keys = keys.to(device)  # [h]

    def __call__(self, keys: Tensor, queries: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """keys of heads, numbers of queries and tokens, int64 that broadcast -> their shape.

        SplitMix64 of the three, to 23 bits: exact in float32, and never 0 or 1.
        """
        z = keys + ((queries << 20) + tokens + 1) * -0x61C8864680B583EB
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
            z = (z ^ (z >> shift & (1 << 64 - shift) - 1)) * factor  # >> keeps the sign; & drops it
        uniform = ((z >> 41 & (1 << 23) - 1).to(dtype) + 0.5) * 2.0**-23
        return -(-uniform.log()).log()


class KeptTokens(Buffers):
    """Which tokens the rows of one layer keep, for each head or for all of them together.

    A row's tokens fill its k places from the left. `heads` is 1 where all heads share a choice;
    their scores are then added.
    """

    def __init__(
        self, settings: EvictionSettings, room: Room, layer: int, heads: int, shared: bool
    ) -> None:
        """shared: one choice for all of the `heads`."""
        self.settings, device = settings, room.device
        self.budget, self.window = settings.places(room.length), settings.window(room.length)
        self.duration = settings.steps or max(1, room.length // 2)  # T
        self.wide = at_least_float32(room.dtype)
        self.groups = 1 if shared else heads
        shape = (room.count, self.groups, self.budget)
        self.scores = torch.zeros(shape, device=device, dtype=self.wide)
        self.positions = torch.full(shape, -1, device=device, dtype=torch.int16)  # -1: empty
        self.steps = torch.zeros(room.count, device=device, dtype=torch.int16)  # since the prompt
        super().__init__(self.scores, self.positions, self.steps)
        self.noise = Noise(settings.seed, layer, heads, device)
        self.group = torch.arange(self.groups, device=device)
        # what an empty place scores: less than any token, and the leftmost least
        self.empty = torch.arange(-self.budget, 0, device=device, dtype=self.wide)

    def temperature(self, steps: Tensor) -> Tensor:
        """tau in the given steps since the prompt, [R] integers -> [R]."""
        first, last = self.settings.tau_init, self.settings.tau_end
        return first + (last - first) * steps.to(self.wide).clamp(max=self.duration) / self.duration

    def share(
        self, x: Tensor, keys: Tensor, queries: Tensor, tokens: Tensor, tau: Tensor | float
    ) -> Tensor:
        """What queries add to the scores of tokens, per head.

        x [R, ..., n], -inf for what is hidden; the noise's arguments and tau broadcast to it.
        """
        if self.settings.noise != "none":
            x = x + self.noise(keys, queries, tokens, x.dtype)
        return (x / tau).softmax(dim=-1)

    def prompt(self, q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
        """The scores of a prompt's tokens from all of its queries, at tau_init.

        q, k [R, h, T, d_k], lengths [R] int64 -> [R, 1 or h, T]. One head at a time: T^2 scores.
        """
        (count, heads, length, width), tau_init = q.shape, self.settings.tau_init
        positions = torch.arange(length, device=q.device)
        later, padding = positions > positions[:, None], positions >= lengths[:, None]
        total = torch.zeros(count, self.groups, length, device=q.device, dtype=self.wide)
        for head in range(heads):
            x = q[:, head].to(self.wide) @ k[:, head].to(self.wide).transpose(1, 2) * width**-0.5
            x = x.masked_fill(later, float("-inf"))
            share = self.share(x, self.noise.keys[head], positions[:, None], positions, tau_init)
            own = share.masked_fill(padding[:, :, None], 0).sum(dim=1)
            total[:, head % self.groups] += own
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
        places = torch.arange(chosen.shape[-1], device=chosen.device)
        for buffer, clear, fresh in (
            (self.scores, 0, scores.gather(-1, chosen)),
            (self.positions, -1, torch.where(chosen < lengths, chosen, -1).to(torch.int16)),
        ):
            buffer[ids] = clear
            buffer[ids[:, None, None], self.group[:, None], places] = fresh
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
        rank = torch.where((held < 0) | (held >= now), self.empty, rank)  # or a prompt's padding
        place = rank.argmin(dim=-1)
        where = (ids[:, None], self.group, place)
        self.positions[where] = step.positions[:, None].to(torch.int16).expand_as(place)
        self.scores[where] = 0
        self.steps[ids] += 1
        return place

    def hide(self, x: Tensor, step: Step) -> Tensor:
        """x [R, h, n], of the first n places -> the same with -inf where there is no token."""
        held = self.positions[step.rows.ids, :, : x.shape[-1]]
        hidden = (held < 0) | (held > step.positions[:, None, None])
        return x.masked_fill(hidden, float("-inf"))

    def observe(self, x: Tensor, step: Step) -> None:
        """Add what a step's queries give to the scores; x [R, h, n] as `hide` returns it."""
        ids, places = step.rows.ids, x.shape[-1]
        tau = self.temperature(self.steps[ids])
        held, now = self.positions[ids, :, :places].long(), step.positions[:, None, None]
        share = self.share(x, self.noise.keys[:, None], now, held, tau[:, None, None])
        if self.groups == 1:
            share = share.sum(dim=1, keepdim=True)
        self.scores[ids, :, :places] += share

    def reorder(self, rows: Tensor, sources: Tensor) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        for t in self.tensors:
            t[rows] = t[sources]
