"""Attention as the papers have it: one query, one head, one token at a time.

Row vectors and the letters of slim attention (arXiv 2503.05840): W_Q, W_K, W_V, W_O are [d, d] in
the orientation x W; head i owns columns i*d_k to (i+1)*d_k. Nothing is folded, cached or batched;
run it in float64.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slimwhisper.research.forms.compact import SHARE
from slimwhisper.research.forms.keyformer import Keyformer


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """One attention block's weights: [d, d] matrices for row vectors, [d] biases, heads."""

    w_q: Tensor
    b_q: Tensor
    w_k: Tensor
    w_v: Tensor
    b_v: Tensor
    w_o: Tensor
    b_o: Tensor
    heads: int


Rotations = Sequence[tuple[Tensor, Tensor]]  # of every head R [d_k, r] and R_v [d_k, r_v]


def columns_of(p: PlainAttention) -> list[slice]:
    """Each head's columns."""
    width = len(p.w_q) // p.heads
    return [slice(i * width, (i + 1) * width) for i in range(p.heads)]


def output(p: PlainAttention, heads: Sequence[Tensor]) -> Tensor:
    """What heads found, [d_k] each -> [d]."""
    return torch.cat(list(heads), dim=-1) @ p.w_o + p.b_v @ p.w_o + p.b_o


def attend(
    p: PlainAttention,
    x: Tensor,
    source: Tensor,
    causal: bool = False,
    rotations: Rotations | None = None,
) -> Tensor:
    """What every exact form computes, from keys and values: x [Q, d] over source [T, d] -> [Q, d].

    causal: a row of x sees the source up to its own place. rotations: those of ZACK (arXiv
    2408.04107), which take queries, keys and values to fewer columns.
    """
    hidden = torch.ones(len(x), len(source), dtype=torch.bool).triu(1) & causal
    heads = []
    for i, c in enumerate(columns_of(p)):
        queries = x @ p.w_q[:, c] + p.b_q[c]
        keys = source @ p.w_k[:, c]
        values = source @ p.w_v[:, c]
        if rotations is not None:
            r, r_v = rotations[i]
            queries, keys, values = queries @ r, keys @ r, values @ r_v @ r_v.T
        scores = queries @ keys.T * (c.stop - c.start) ** -0.5
        heads.append(scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ values)
    return output(p, heads)


def argtopk(values: Tensor, count: int) -> list[int]:
    """The places of the largest of [n], best first; all of them, if there are fewer."""
    return sorted(range(len(values)), key=lambda i: -float(values[i]))[:count]


# -- SparQ, arXiv 2312.04985 ---------------------------------------------------------------------


def sparq_group(
    queries: Sequence[Tensor], keys: Tensor, values: Tensor, d_k: int, r: int, k: int, local: int
) -> list[Tensor]:
    """Algorithm 1; of several queries that share keys and values [S, w], appendix B."""
    i1 = argtopk(sum(q.abs() for q in queries), r)
    approximate = []
    for q in queries:
        tau = math.sqrt(d_k * float(q[i1].abs().sum() / q.abs().sum()))
        approximate.append(torch.softmax(keys[:, i1] @ q[i1] / tau, dim=0))
    m = torch.zeros(len(keys), dtype=torch.float64)
    m[max(0, len(m) - local) :] = len(queries)
    i2 = argtopk(sum(approximate) + m, k)
    results = []
    for q, s_hat in zip(queries, approximate, strict=True):
        alpha = s_hat[i2].sum()
        s = torch.softmax(keys[i2] @ q / math.sqrt(d_k), dim=0)
        results.append(alpha * (s @ values[i2]) + (1 - alpha) * values.mean(dim=0))
    return results


def attend_sparq(
    p: PlainAttention, x: Tensor, source: Tensor, settings: Any, growing: bool
) -> Tensor:
    """A token x [d] over source [S, d]: every head for itself, over its keys and values."""
    q, keys, values = x @ p.w_q + p.b_q, source @ p.w_k, source @ p.w_v
    k = min(settings.k, len(source))
    local, r, d_k = int(settings.local * k) * growing, settings.r or len(x), len(x) // p.heads
    heads = [
        sparq_group([q[c]], keys[:, c], values[:, c], d_k, r, k, local)[0] for c in columns_of(p)
    ]
    return output(p, heads)


def attend_sparq_latent(
    p: PlainAttention, x: Tensor, source: Tensor, settings: Any, growing: bool
) -> Tensor:
    """The same where the source itself is the one key and value of all heads."""
    q, k = x @ p.w_q + p.b_q, min(settings.k, len(source))
    local, r, d_k = int(settings.local * k) * growing, settings.r or len(x), len(x) // p.heads
    folded = [q[c] @ p.w_k[:, c].T for c in columns_of(p)]
    result = sparq_group(folded, source, source, d_k, r, k, local)
    return output(p, [f @ p.w_v[:, c] for f, c in zip(result, columns_of(p), strict=True)])


# -- softmax sparsity, arXiv 2503.05840, section 2 -----------------------------------------------


def attend_sparse(
    p: PlainAttention, x: Tensor, source: Tensor, threshold: float
) -> tuple[Tensor, int]:
    """A token x [d] over source [S, d]; and how many rows of V were read."""
    heads, read = [], 0
    for c in columns_of(p):
        q = (x @ p.w_q + p.b_q)[c]
        w = torch.softmax(source @ p.w_k[:, c] @ q / math.sqrt(len(q)), dim=0)
        kept = [t for t in range(len(source)) if w[t] >= threshold]
        read += len(kept)
        heads.append(w[kept] @ (source @ p.w_v[:, c])[kept])
    return output(p, heads), read


# -- ZACK, arXiv 2408.04107 ----------------------------------------------------------------------


def decompose(p: PlainAttention, queries: Tensor, source: Tensor) -> Iterator[list[tuple]]:
    """For every head: (R, singular values) of Q over K, and of V over W_O^T."""
    for c in columns_of(p):
        pairs = (
            (queries @ p.w_q[:, c] + p.b_q[c], source @ p.w_k[:, c]),
            (source @ p.w_v[:, c], p.w_o[c].T),
        )
        head = []
        for pair in pairs:
            both = torch.cat([one / one.pow(2).sum().sqrt() for one in pair])
            _, singular, rotation = torch.linalg.svd(both, full_matrices=False)
            head.append((rotation.T, singular))
        yield head


def rank_of(singular: Sequence[float], removal: float) -> int:
    """Equation 6: the smallest r for which the sum after the r-th is at most this share."""
    for r in range(len(singular) + 1):
        if sum(singular[r:]) <= removal * sum(singular):
            return r
    raise AssertionError


# -- Keyformer, arXiv 2403.09054, Algorithm 1 ----------------------------------------------------


def decode_keyformer(
    p: PlainAttention,
    text: Tensor,
    prompt: int,
    settings: Keyformer,
    noise: Tensor,
    length: int,
    by_head: bool,
) -> Tensor:
    """text [n, d], its first `prompt` tokens at once, the others in steps -> outputs [n, d].
    noise [h, length]: zeta of each head and token.
    """
    zeta = noise.tolist() if settings.noise == "gumbel" else torch.zeros_like(noise).tolist()
    k, w, last = settings.budget or length, settings.window(length), settings.steps or length // 2
    heads = columns_of(p)
    score: list[dict[int, float]] = [{} for _ in heads]  # f, of each head
    kept: list[list[int]] = [[] for _ in heads]
    outputs = []

    def attend(t: int, step: int) -> None:
        mixed = []
        tau = settings.tau_init + (settings.tau_end - settings.tau_init) / last * min(step, last)
        for head, c in enumerate(heads):
            own, q = kept[head], (text[t] @ p.w_q + p.b_q)[c]
            x = torch.stack([q @ (text[j] @ p.w_k[:, c]) / math.sqrt(len(q)) for j in own])
            mixed.append(x.softmax(0) @ torch.stack([text[j] @ p.w_v[:, c] for j in own]))
            noisy = (x + torch.tensor([zeta[head][j] for j in own])) / tau
            for j, share in zip(own, noisy.softmax(0).tolist(), strict=True):
                score[head][j] = score[head].get(j, 0.0) + share
        outputs.append(output(p, mixed))

    def reduce(now: int) -> None:
        summed = {j: sum(s.get(j, 0.0) for s in score) for j in kept[0]}
        for head, own in enumerate(kept):
            by = score[head] if by_head else summed
            safe = [i for i in own if i < settings.sinks or i > now - w]
            others = sorted((i for i in own if i not in safe), key=lambda i: -by[i])
            kept[head] = sorted(safe + others[: k - len(safe)])

    for t in range(prompt):  # the prompt sees all of itself
        kept = [[*range(t + 1)] for _ in heads]
        attend(t, 0)
    reduce(prompt - 1)
    for t in range(prompt, len(text)):
        for head in range(len(heads)):
            kept[head].append(t)
            score[head][t] = 0.0
        reduce(t)
        attend(t, t - prompt + 1)
    return torch.stack(outputs)


# -- merged frames -------------------------------------------------------------------------------


def groups_of(x: Tensor, groups: int) -> list[list[int]]:
    """The frames of each group: x [p, d] -> `groups` lists."""
    results = [[t] for t in range(len(x))]
    while len(results) > groups:
        costs = []
        for b, (one, other) in enumerate(itertools.pairwise(results)):
            step = x[one].mean(dim=0) - x[other].mean(dim=0)
            n, m = len(one), len(other)
            costs.append((float(n * m / (n + m) * (step @ step)), b))
        count = min(len(results) - groups, math.ceil(len(results) / SHARE))
        fallen = {b for _, b in sorted(costs)[:count]}
        fewer: list[list[int]] = []
        for b, members in enumerate(results):
            if b - 1 in fallen:
                fewer[-1].extend(members)
            else:
                fewer.append(list(members))
        results = fewer
    return results


@cache  # by the tensor itself
def merged(x: Tensor, groups: int) -> Tensor:
    """x [p, d] -> [p, d], each frame the mean of its group."""
    result = x.clone()
    for members in groups_of(x, groups):
        result[members] = x[members].mean(dim=0)
    return result
