"""Merging of neighbouring encoder frames that are nearly equal, once for each window.

As token merging (Bolya et al., arXiv 2210.09461), but of neighbours in time alone, so that each
group is a stretch of audio, and at the price of Ward (1963, "Hierarchical grouping to optimize an
objective function"): what a merge adds to the squared distances of the frames from the mean of
their group, n1 n2 / (n1 + n2) |mean1 - mean2|^2. A group of n frames is read as its mean, with
log n added to its score: a softmax then sees n frames that are all equal to the mean (proportional
attention, section 3.2 of the same paper).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.linear import at_least_float32

# One group in so many is merged into its neighbour in a round. On speech the squared distances are
# then 1.1 to 1.7 times those of merging one pair at a time, the cheapest first; with 16, at most
# 1.3 times, in up to twice the time.
SHARE = 8


def rounds(frames: int, groups: int) -> Iterator[int]:
    """How many groups there are after each round, from `frames` down to `groups`."""
    while frames > groups:
        frames = max(groups, frames - -(-frames // SHARE))
        yield frames


def merge_neighbours(
    x: Tensor, groups: int, scales: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge p frames into m = `groups` groups of neighbours, each window by itself.

    In each round those boundaries between groups fall that cost least, at equal costs the earlier
    ones, so a run of them makes one group. Sums are always in the same order.

    Arguments:
        x: [G, p, r], in any floating dtype.
        groups: m, 1 to p.
        scales: [r], factors on the columns where distances are measured.
    Returns:
        the groups' means [G, m, r] and sizes [G, m], both in at least float32, and the group of
        each frame [G, p] int64.
    """
    windows, frames = x.shape[:2]
    sums = x.to(at_least_float32(x.dtype))
    sizes = torch.ones((windows, frames), device=x.device, dtype=sums.dtype)
    group_of = torch.arange(frames, device=x.device).expand(windows, frames)
    for fewer in rounds(frames, groups):
        before = sums.shape[1]
        means = sums / sizes.unsqueeze(-1)
        steps = means[:, 1:] - means[:, :-1]
        if scales is not None:
            steps = steps * scales
        left, right = sizes[:, :-1], sizes[:, 1:]
        costs = left * right / (left + right) * steps.square().sum(dim=-1)
        fallen = costs.sort(dim=1, stable=True).indices[:, : before - fewer]
        begins = torch.ones((windows, before), device=x.device, dtype=torch.int64)
        begins.scatter_(1, fallen + 1, 0)
        merged = begins.cumsum(dim=1) - 1  # [G, before]: the new group of each group
        lengths = torch.zeros((windows, fewer), device=x.device, dtype=torch.int64)
        lengths.scatter_add_(1, merged, torch.ones_like(merged))
        sums = _sums(sums, lengths)
        sizes = _sums(sizes.unsqueeze(-1), lengths).squeeze(-1)
        group_of = merged.gather(1, group_of)
    return sums / sizes.unsqueeze(-1), sizes, group_of


def _sums(x: Tensor, lengths: Tensor) -> Tensor:
    """Sums of stretches, each in order: x [G, n, r], their lengths [G, m] -> [G, m, r]."""
    rows = x.flatten(0, 1)
    every = torch.arange(len(rows), device=x.device)
    ends = lengths.flatten().cumsum(dim=0)
    found = F.embedding_bag(every, rows, ends - lengths.flatten(), mode="sum")
    return found.unflatten(0, lengths.shape)
