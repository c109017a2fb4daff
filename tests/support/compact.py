"""Form `compact` from its definitions: window by window, frame by frame, head by head, in float64.

What it reads is a window whose frames have been replaced: each by the mean of its group, and that
by what the basis leaves of it. Attention to those is the exact form's, in `formulas`.
"""

import itertools
import math

import torch
from torch import Tensor

from slimwhisper.cache.approximate.neighbours import SHARE
from slimwhisper.cache.fold import Attention


def groups_of(x: Tensor, groups: int) -> list[list[int]]:
    """The frames of each group: x [p, r] -> `groups` lists."""
    found = [[t] for t in range(len(x))]
    while len(found) > groups:
        costs = []
        for b, (one, other) in enumerate(itertools.pairwise(found)):
            step = x[one].mean(dim=0) - x[other].mean(dim=0)
            n, m = len(one), len(other)
            costs.append((float(n * m / (n + m) * (step @ step)), b))
        count = min(len(found) - groups, math.ceil(len(found) / SHARE))
        fallen = {b for _, b in sorted(costs)[:count]}
        fewer: list[list[int]] = []
        for b, members in enumerate(found):
            if b - 1 in fallen:
                fewer[-1].extend(members)
            else:
                fewer.append(list(members))
        found = fewer
    return found


def replaced(x: Tensor, groups: list[list[int]]) -> Tensor:
    """x [p, r] -> [p, r], each frame the mean of its group."""
    found = x.clone()
    for members in groups:
        found[members] = x[members].mean(dim=0)
    return found


def shrunk(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] of x [n, d], by columns."""
    n, d = x.shape
    mean, covariance = x.mean(dim=0), torch.zeros(d, d, dtype=torch.float64)
    for row in x:
        covariance += torch.outer(row - mean, row - mean) / n
    for i in range(d):
        for j in range(d):
            covariance[i, j] *= 1 if i == j else n / (d + n)
    return mean, covariance


def output_change(
    block: Attention, asking: tuple[Tensor, Tensor], covariance: Tensor, lost: Tensor
) -> float:
    """What a loss of covariance `lost` [d, d] in a latent of `covariance` [d, d] costs a layer,
    head by head: through keys and through values, each relative to the loss of all of the latent.

    asking: mean [d] and covariance [d, d] of what queries are made of.
    """
    mean, spread = asking
    width = len(mean) // block.heads
    sums = torch.zeros(2, 2, dtype=torch.float64)  # keys and values; of this loss, and of all
    for i in range(block.heads):
        at = slice(i * width, (i + 1) * width)
        w_q, b_q, w_k = block.query[at].T, block.query_bias[at], block.key[at].T
        answer = block.value[at].T @ block.out[:, at].T  # [d, d]: B_i W_O,i
        asks = w_q.T @ spread @ w_q + torch.outer(mean @ w_q + b_q, mean @ w_q + b_q)
        follows = torch.trace(answer.T @ covariance @ answer)
        for n, change in enumerate((lost, covariance)):
            sums[0, n] += follows * torch.trace(w_k @ asks @ w_k.T @ change) / width
            sums[1, n] += torch.trace(answer.T @ change @ answer)
    return float((sums[:, 0] / sums[:, 1]).sum())
