"""ZACK (arXiv 2408.04107) from its description, one head at a time and nothing folded.

Letters and orientation as in `tests.support.formulas`: row vectors, x W. Run it in float64.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.support.formulas import PlainAttention


def decompose(p: PlainAttention, asking: Tensor, source: Tensor) -> list[list[tuple]]:
    """For every head: (R, singular values) of Q over K, and of V over W_O^T."""
    width = p.w_q.shape[1] // p.heads
    found = []
    for i in range(p.heads):
        columns = slice(i * width, (i + 1) * width)
        q = asking @ p.w_q[:, columns] + p.b_q[columns]
        k, v = source @ p.w_k[:, columns], source @ p.w_v[:, columns]
        pairs = (q, k), (v, p.w_o[columns].T)
        head = []
        for one, other in pairs:
            both = torch.cat([one / one.pow(2).sum().sqrt(), other / other.pow(2).sum().sqrt()])
            _, singular, turned = torch.linalg.svd(both, full_matrices=False)
            head.append((turned.T, singular))
        found.append(head)
    return found


def rank_of(singular: Sequence[float], removal: float) -> int:
    """Equation 6: the smallest r for which the sum after the r-th is at most this share."""
    for r in range(len(singular) + 1):
        if sum(singular[r:]) <= removal * sum(singular):
            return r
    raise AssertionError


def attend_zack(
    p: PlainAttention,
    rotations: Sequence[tuple[Tensor, Tensor]],
    x: Tensor,
    source: Tensor,
    hidden: Tensor | None = None,
) -> Tensor:
    """rotations: of every head R [d_k, r] and R_v [d_k, r_v], cut to their ranks."""
    width = x.shape[1] // p.heads
    total = p.b_v @ p.w_o + p.b_o
    for i, (r, r_v) in enumerate(rotations):
        columns = slice(i * width, (i + 1) * width)
        queries = (x @ p.w_q[:, columns] + p.b_q[columns]) @ r
        keys, values = source @ p.w_k[:, columns] @ r, source @ p.w_v[:, columns] @ r_v
        scores = queries @ keys.T * width**-0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        total = total + scores.softmax(dim=-1) @ values @ (r_v.T @ p.w_o[columns])
    return total
