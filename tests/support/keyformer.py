"""Keyformer (arXiv 2403.09054) straight from its Algorithm 1: one query, one head, one token at a
time, in float64, over lists of what is kept. Letters as in `tests.support.formulas`.

`zeta(head, query, token)` is the noise, `tau(step)` the temperature, step 0 being the prompt.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.formulas import PlainAttention

Zeta = Callable[[int, int, int], float]


def logits(q: Tensor, keys: Tensor, tokens: Sequence[int]) -> list[float]:
    """Unnormalised: x_j = q . k_j / sqrt(d_k), of some rows of keys [n, d_k]."""
    return [float(q @ keys[j]) / math.sqrt(len(q)) for j in tokens]


def softmax(x: Sequence[float]) -> list[float]:
    largest = max(x)
    powers = [math.exp(v - largest) for v in x]
    return [p / sum(powers) for p in powers]


@dataclass
class Block:
    """One block's projections of a text or of audio, by head."""

    p: PlainAttention

    def columns(self, head: int) -> slice:
        width = len(self.p.w_q) // self.p.heads
        return slice(head * width, (head + 1) * width)

    def query(self, x: Tensor, head: int) -> Tensor:
        c = self.columns(head)
        return x @ self.p.w_q[:, c] + self.p.b_q[c]

    def key(self, x: Tensor, head: int) -> Tensor:
        return x @ self.p.w_k[:, self.columns(head)]

    def value(self, x: Tensor, head: int) -> Tensor:
        return x @ self.p.w_v[:, self.columns(head)]

    def output(self, heads: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(heads)) @ self.p.w_o + self.p.b_v @ self.p.w_o + self.p.b_o


def reduced(
    kept: Iterable[int], score: dict[int, float], now: int, k: int, w: int, sinks: int
) -> list[int]:
    """The k tokens that are kept at position `now`: sinks, the w recent ones, and key tokens."""
    kept = list(kept)
    safe = [i for i in kept if i < sinks or i > now - w]
    others = sorted((i for i in kept if i not in safe), key=lambda i: -score[i])
    return sorted(safe + others[: k - len(safe)])


def decode(
    p: PlainAttention,
    text: Tensor,
    prompt: int,
    *,
    k: int,
    w: int,
    sinks: int,
    zeta: Zeta,
    tau: Callable[[int], float],
    shared: bool,
) -> tuple[Tensor, list[list[int]]]:
    """text [n, d], its first `prompt` tokens at once, the others in steps -> outputs [n, d] and the
    tokens that each head keeps in the end.
    """
    block, heads = Block(p), range(p.heads)
    keys = [block.key(text, head) for head in heads]
    values = [block.value(text, head) for head in heads]
    score: list[dict[int, float]] = [{} for _ in heads]  # f, of each head
    kept: list[list[int]] = [[] for _ in heads]
    outputs = []

    def attend(t: int, step: int) -> None:
        mixed = []
        for head in heads:
            x = logits(block.query(text[t], head), keys[head], kept[head])
            own = kept[head]
            mixed.append(sum(a * values[head][j] for a, j in zip(softmax(x), own, strict=True)))
            noisy = [(v + zeta(head, t, j)) / tau(step) for v, j in zip(x, own, strict=True)]
            for j, share in zip(own, softmax(noisy), strict=True):
                score[head][j] = score[head].get(j, 0.0) + share
        outputs.append(block.output(mixed))

    def reduce(now: int) -> None:
        summed = {j: sum(score[h].get(j, 0.0) for h in heads) for j in kept[0]}
        for head in heads:
            by = summed if shared else score[head]
            kept[head] = reduced(kept[head], by, now, k, w, sinks)

    for t in range(prompt):  # the prompt sees all of itself
        kept = [[*range(t + 1)] for _ in heads]
        attend(t, 0)
    reduce(prompt - 1)
    for t in range(prompt, len(text)):
        for head in heads:
            kept[head].append(t)
            score[head][t] = 0.0
        reduce(t)
        attend(t, t - prompt + 1)
    return torch.stack(outputs), kept


def read_audio(
    blocks: Sequence[PlainAttention],
    audio: Tensor,
    asked: Sequence[Tensor],
    prompt: int,
    *,
    budget: int,
    after: int,
    zeta: Callable[[int, int, int, int], float],
    tau: float,
) -> tuple[list[Tensor], list[int]]:
    """Cross-attention of several layers that evict frames together.

    audio [p, d]; asked, per layer [n, d], of which the first `prompt` are a prompt's.
    zeta(layer, head, query, frame): the prompt's queries are numbered up to -1. Returns, per layer,
    outputs [n, d], and the frames that are kept in the end.
    """
    frames = list(range(len(audio)))
    score = [0.0] * len(audio)
    outputs: list[list[Tensor]] = [[] for _ in blocks]
    for t in range(len(asked[0])):
        if t == prompt + after:
            best = sorted(frames, key=lambda j: -score[j])
            frames = sorted(best[:budget])
        for layer, p in enumerate(blocks):
            block, mixed = Block(p), []
            for head in range(p.heads):
                keys, values = block.key(audio, head), block.value(audio, head)
                x = logits(block.query(asked[layer][t], head), keys, frames)
                attention = softmax(x)
                mixed.append(sum(a * values[j] for a, j in zip(attention, frames, strict=True)))
                noisy = [
                    (v + zeta(layer, head, t - prompt, j)) / tau
                    for v, j in zip(x, frames, strict=True)
                ]
                if t < prompt + after:
                    for j, share in zip(frames, softmax(noisy), strict=True):
                        score[j] += share
            outputs[layer].append(block.output(mixed))
    return [torch.stack(o) for o in outputs], frames
