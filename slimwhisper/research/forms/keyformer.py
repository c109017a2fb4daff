"""Forms `keyformer` and `keyformer_latent`: a text of k tokens, however long it gets.

    Keyformer   Adnan et al., MLSys 2024, arXiv 2403.09054, Algorithm 1

Every query adds to the score of every token i in the cache

    exp((x_i + zeta_i) / tau) / sum_j exp((x_j + zeta_j) / tau),    x = q . k / sqrt(d_k)

with standard Gumbel noise zeta, drawn once for each head and token, and a temperature tau that
grows linearly from tau_init in the prompt to tau_end after T steps. A row keeps k tokens: a window
of the w most recent ones, and of the others the k - w with the highest scores, the KEY TOKENS.
Other methods are settings of the same store:

    H2O             Zhang et al., arXiv 2306.14048      noise=none,tau_end=1,recent=0.5
    window                                              recent=1
    StreamingLLM    Xiao et al., arXiv 2309.17453       recent=1,sinks=4

Algorithm 1 attends to k + 1 tokens and then evicts one. Here the token of a step replaces the
evicted one before it attends: budget k + 1 with w + 1 recent tokens is the algorithm with k and w.
(Most of the authors' own code attends to k tokens, too.) Tokens keep their original positions,
because Whisper adds positions to the embeddings and rotates nothing.

`keyformer` stores keys and values and chooses tokens for each head; `keyformer_latent` stores the
latent of `x`, once for all heads of a layer, and chooses by the sum of their scores. One choice for
all layers, the paper's "Shared", is not implemented. Buffers have k entries for each row, not
n_text_ctx. A prompt attends to itself densely; its best tokens are then kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.base import Buffers, DecodeStep, Rows, SelfLayer, StoreShape
from slimwhisper.cache.fold import Attention, Context, Folded
from slimwhisper.cache.forms import KV, X8, X
from slimwhisper.kernels.attention import Latent, head_attention
from slimwhisper.kernels.linear import at_least_float32, linear
from slimwhisper.research.forms.groups import LatentGroups, groups_of
from slimwhisper.types import Dims

NOISES = ("gumbel", "none")


def gumbel(seed: int, layer: int, heads: int, length: int) -> Tensor:
    """Standard Gumbel noise of every head and token of a layer, [h, length] float32. It does not
    depend on the row, so it is the same for any batch and for all beams.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
    uniform = torch.rand((heads, length), generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(1e-12, 1 - 1e-12).log()).log().float()


class KeptTokens(Buffers):
    """Which tokens the rows of one layer keep: G choices, one for each head, or one for all heads
    by the sum of their scores. A row's tokens fill its k entries from the left.
    """

    def __init__(self, weights: Folded, shape: StoreShape, groups: int) -> None:
        """groups: G, 1 or the number of heads."""
        settings = weights.form
        assert isinstance(settings, Keyformer)
        self.settings, self.groups, device = settings, groups, shape.device
        self.budget, self.window = settings.tokens(shape.length), settings.window(shape.length)
        self.duration = settings.steps or max(1, shape.length // 2)  # T
        self.wide = at_least_float32(shape.dtype)
        size = (shape.count, groups, self.budget)
        self.scores = torch.zeros(size, device=device, dtype=self.wide)
        self.positions = torch.full(size, -1, device=device, dtype=torch.int16)  # -1: empty
        self.steps = torch.zeros(shape.count, device=device, dtype=torch.int16)  # since the prompt
        super().__init__(self.scores, self.positions, self.steps)
        noise = gumbel(settings.seed, weights.layer, weights.heads, shape.length)
        self.noise = (noise * (settings.noise != "none")).to(device, self.wide)  # [h, length]

    def temperature(self, steps: Tensor) -> Tensor:
        """tau in the given steps since the prompt, [R] integers -> [R]."""
        first, last = self.settings.tau_init, self.settings.tau_end
        return first + (last - first) * steps.to(self.wide).clamp(max=self.duration) / self.duration

    def prompt(self, q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
        """The scores of prompt tokens from all queries of their prompt, at tau_init.

        q, k [R, h, T, d_k], lengths [R] int64 -> [R, G, T]. One head at a time, as there are T^2
        products.
        """
        (count, heads, length, width), tau = q.shape, self.settings.tau_init
        positions = torch.arange(length, device=q.device)
        later, padding = positions > positions[:, None], positions >= lengths[:, None]
        total = torch.zeros(count, self.groups, length, device=q.device, dtype=self.wide)
        for head in range(heads):
            x = q[:, head].to(self.wide) @ k[:, head].to(self.wide).mT * width**-0.5
            x = (x + self.noise[head, :length]).masked_fill(later, float("-inf"))
            weights = (x / tau).softmax(dim=-1).masked_fill(padding[:, :, None], 0)
            total[:, head % self.groups] += weights.sum(dim=1)
        return total

    def start(self, ids: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Choose the tokens to keep of new prompts, in rows `ids` [R] int64.

        scores [R, G, T] from `prompt`, lengths [R] -> the tokens of entries 0 to min(T, k) - 1,
        [R, G, min(T, k)] int64, in order; those past a row's length are padding.
        """
        positions = torch.arange(scores.shape[-1], device=scores.device)
        lengths = lengths[:, None, None]
        protected = (positions >= lengths - self.window) | (positions < self.settings.sinks)
        rank = scores.masked_fill(protected, float("inf")).masked_fill(positions >= lengths, -1)
        tokens = rank.topk(min(self.budget, rank.shape[-1])).indices.sort(dim=-1).values
        count = tokens.shape[-1]
        for buffer, empty, new in (
            (self.scores, 0, scores.gather(-1, tokens)),
            (self.positions, -1, torch.where(tokens < lengths, tokens, -1).to(torch.int16)),
        ):
            buffer[ids] = empty
            buffer[ids, :, :count] = new
        self.steps[ids] = 0
        return tokens

    def insert(self, step: DecodeStep) -> tuple[Tensor, Tensor, Tensor]:
        """Give every row's new token an entry: an empty one, else that of the worst token, which
        is evicted. Returns the entries: rows, groups and places in them, for [R, G].
        """
        ids, now = step.rows.ids, step.positions[:, None, None]
        positions = self.positions[ids].long()
        protected = (positions > now - self.window) | (positions < self.settings.sinks)
        rank = self.scores[ids].masked_fill(protected, float("inf"))
        # empty entries, or a prompt's padding, come before all tokens, from the left
        empty = torch.arange(-self.budget, 0, device=positions.device, dtype=self.wide)
        entry = torch.where((positions < 0) | (positions >= now), empty, rank).argmin(dim=-1)
        index = (ids[:, None], torch.arange(self.groups, device=entry.device), entry)
        self.positions[index] = step.positions[:, None].to(torch.int16).expand_as(entry)
        self.scores[index] = 0
        self.steps[ids] += 1
        return index

    def weights(self, x: Tensor, step: DecodeStep) -> Tensor:
        """Products x [R, h, n] of the first n entries -> the weights of attention, 0 for entries
        without a token. Updates the tokens' scores.
        """
        ids, count = step.rows.ids, x.shape[-1]
        positions = self.positions[ids, :, :count].long()  # [R, G, n]
        hidden = (positions < 0) | (positions > step.positions[:, None, None])
        x = x.masked_fill(hidden, float("-inf"))
        heads = torch.arange(len(self.noise), device=x.device)[:, None]
        noisy = x + self.noise[heads, positions.clamp(min=0)]
        added = (noisy / self.temperature(self.steps[ids])[:, None, None]).softmax(dim=-1)
        self.scores[ids, :, :count] += added if self.groups > 1 else added.sum(1, keepdim=True)
        return x.softmax(dim=-1)


class KeyformerSelf(SelfLayer):
    """Self-attention of one layer over k tokens: keys and values, each [rows, h, k, d_k], with a
    choice for each head, or a latent [rows, 1, k, d], with one choice.
    """

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.groups, self.length = groups_of(weights, shape.kernels), shape.length
        self.kept_tokens = KeptTokens(weights, shape, self.groups.count)
        size = (shape.count, self.groups.count, self.kept_tokens.budget, self.groups.width)
        float8 = weights.column_scales is not None
        self.buffers = [
            Latent.allocate(size, shape.device, shape.dtype, float8)
            for _ in range(1 if isinstance(self.groups, LatentGroups) else 2)
        ]
        tensors = [t for buffer in self.buffers for t in buffer.tensors()]
        super().__init__(*tensors, *self.kept_tokens.tensors)

    def read_bytes(self, row: int, tokens: int) -> float:
        """Of k tokens at most."""
        budget = self.kept_tokens.budget
        return sum(t[row].nbytes for t in self.tensors) * min(tokens, budget) / budget

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; keeps at most k tokens a row."""
        lengths, (q, keys, values) = rows.prompt_lengths(x.shape[1]), self.groups.by_head(x)
        scores = self.kept_tokens.prompt(q, keys, lengths)
        tokens = self.kept_tokens.start(rows.ids, scores, lengths)
        groups, entries = (torch.arange(n, device=x.device) for n in tokens.shape[1:])
        index = (rows.ids[:, None, None], groups[:, None], entries)
        for buffer, new in zip(self.buffers, self.groups.to_store(x), strict=True):
            for t in buffer.tensors():
                t[rows.ids] = 0  # the previous text: a NaN would pass the mask
            buffer.write(index, new.gather(2, tokens[..., None].expand(-1, -1, -1, new.shape[3])))
        mixed = head_attention(q, keys, values, is_causal=True)
        weights = self.groups.weights
        return linear(mixed.transpose(1, 2).flatten(2), weights.out, weights.out_bias)

    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; stores the token, in place of the worst one."""
        index, wide = self.kept_tokens.insert(step), self.kept_tokens.wide
        count = min(step.extent, self.kept_tokens.budget)  # entries with a token
        stored = []
        for buffer, new in zip(self.buffers, self.groups.to_store(x), strict=True):
            buffer.write(index, new[:, :, 0])
            read, ids = step.rows.of_rows(buffer)
            read = (read if ids is None else read[ids])[:, :, :count]
            stored.append(read.dequantized(wide))  # [R, G, n, w]
        scores = self.groups.group_queries(x).to(wide) @ stored[0].mT * self.groups.scale
        weights = self.kept_tokens.weights(scores.flatten(1, 2), step).view_as(scores)
        return self.groups.group_output((weights @ stored[-1]).to(x.dtype))


@dataclass(frozen=True)
class Keyformer(KV):
    """Keys and values of the tokens to keep; defaults of the paper, if it has one for Whisper."""

    name, exact, attentions, self_ = "keyformer", False, ("self",), KeyformerSelf
    budget: int | None = 224  # k, tokens of a row; half of Whisper's context; all: the context
    recent: float = 0.3  # w / k, section 4.4.4: 20 to 30 %; 1: only recent tokens, a window
    sinks: int = 0  # how many of the first tokens are always kept
    noise: str = "gumbel"  # or none
    tau_init: float = 1.0
    tau_end: float = 2.0
    steps: int | None = None  # T; all: half of the context, the most that Whisper samples
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        budget = math.inf if self.budget is None else self.budget
        self.require(budget >= 2, "budget", "at least 2 tokens, or all")
        self.require(0 < self.recent <= 1, "recent", "a share of the budget, above 0 up to 1")
        self.require(0 <= self.sinks < budget, "sinks", "0 or more, but less than the budget")
        if min(self.tau_init, self.tau_end) <= 0:
            raise ValueError("tau_init and tau_end: give temperatures above 0")
        self.require(self.steps is None or self.steps >= 1, "steps", "at least 1, or all")
        self.require(self.noise in NOISES, "noise", f"one of {', '.join(NOISES)}")
        self.require(self.seed >= 0, "seed", "0 or more")

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        return [[f"budget={max(8, dims.n_text_ctx // n)}" for n in (2, 4, 7, 10, 14, 20, 28)]]

    def tokens(self, length: int) -> int:
        """k in a context of `length` tokens."""
        return length if self.budget is None else min(self.budget, length)

    def window(self, length: int) -> int:
        """w in a context of `length` tokens: the recent ones, including the token of the step."""
        k = self.tokens(length)
        return max(1, min(round(self.recent * k), k - self.sinks))


@dataclass(frozen=True)
class KeyformerLatent(Keyformer):
    """The layer-normed input of the tokens to keep."""

    name = "keyformer_latent"
    float8: bool = False  # store the latent of `x8`

    @property
    def tensors(self) -> Sequence[str]:
        return X8().tensors if self.float8 else ()

    def fold(self, block: Attention, context: Context) -> Folded:
        """As `x`, or as `x8`."""
        return (X8(learned=self.learned) if self.float8 else X()).fold(block, context)

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        """Also in float8, and as a window."""
        (budgets,) = super().ladder(dims, part)
        variants = ("", ",float8=true", ",recent=1,float8=true")
        return [[budget + variant for budget in budgets] for variant in variants]
