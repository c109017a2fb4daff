"""SparQ attention as its paper has it, for one query: Ribar et al., arXiv 2312.04985, Algorithm 1.

Row vectors and the paper's letters, as in `tests.support.formulas`. Slow and plain: run it in
float64. The variant over a latent chooses one set of columns and of positions for all heads.
"""

import math

import torch
from torch import Tensor

from tests.support.formulas import PlainAttention


def argtopk(values: Tensor, count: int) -> list[int]:
    """The places of the largest of [n], best first; all of them, if there are fewer."""
    return sorted(range(len(values)), key=lambda i: -float(values[i]))[:count]


def approximate_weights(q: Tensor, keys: Tensor, i1: list[int], d_k: int) -> Tensor:
    """s^ [S], of a query q and keys [S, n] at the components i1; d_k: the head's width."""
    share = float(q[i1].abs().sum() / q.abs().sum())
    return torch.softmax(keys[:, i1] @ q[i1] / math.sqrt(d_k * share), dim=0)


def favoured(weights: Tensor, local: int) -> Tensor:
    """s^ + m."""
    m = torch.zeros_like(weights)
    m[max(0, len(m) - local) :] = 1
    return weights + m


def sparq_head(q: Tensor, keys: Tensor, values: Tensor, r: int, k: int, local: int) -> Tensor:
    """Algorithm 1: q [d_k], keys and values [S, d_k] -> y [d_k]."""
    i1 = argtopk(q.abs(), r)
    approximate = approximate_weights(q, keys, i1, len(q))
    i2 = argtopk(favoured(approximate, local), k)
    alpha = approximate[i2].sum()
    s = torch.softmax(keys[i2] @ q / math.sqrt(len(q)), dim=0)
    return alpha * (s @ values[i2]) + (1 - alpha) * values.mean(dim=0)


def attend_sparq(
    p: PlainAttention, x: Tensor, source: Tensor, r: int, k: int, local: int
) -> Tensor:
    """A block's output for one token: x [d], source [S, d] -> [d]."""
    width = len(x) // p.heads
    q, keys, values = x @ p.w_q + p.b_q, source @ p.w_k, source @ p.w_v
    found = []
    for i in range(p.heads):
        c = slice(i * width, (i + 1) * width)
        found.append(sparq_head(q[c], keys[:, c], values[:, c], r, k, local))
    return torch.cat(found) @ p.w_o + p.b_v @ p.w_o + p.b_o


def attend_sparq_latent(
    p: PlainAttention,
    x: Tensor,
    source: Tensor,
    r: int,
    k: int,
    local: int,
) -> Tensor:
    """The same where the source itself is kept, and all heads share what is read of it."""
    width = len(x) // p.heads
    q = x @ p.w_q + p.b_q
    columns = [slice(i * width, (i + 1) * width) for i in range(p.heads)]
    folded = [q[c] @ p.w_k[:, c].T for c in columns]  # [d] each
    i1 = argtopk(sum(f.abs() / f.abs().sum() for f in folded), r)
    approximate = [approximate_weights(f, source, i1, width) for f in folded]
    i2 = argtopk(favoured(sum(approximate) / p.heads, local), k)
    found = []
    for c, f, s_hat in zip(columns, folded, approximate, strict=True):
        alpha = s_hat[i2].sum()
        s = torch.softmax(source[i2] @ f / math.sqrt(width), dim=0)
        mixed = alpha * (s @ source[i2]) + (1 - alpha) * source.mean(dim=0)
        found.append(mixed @ p.w_v[:, c])
    return torch.cat(found) @ p.w_o + p.b_v @ p.w_o + p.b_o
