"""Form `compact`: `e` with fewer frames and in fewer bits, alone or together.

    merge   neighbouring frames that are nearly equal become one
    float8  the latent is rounded to e4m3, with a factor for each position, as in `e8`

Frames are merged once, when a window is stored, so every layer, step and beam reads less. A text's
tokens are not merged.

This is token merging (Bolya et al., arXiv 2210.09461) of neighbours in time only, so that each
group is a stretch of audio, with the cost of Ward (1963, "Hierarchical grouping to optimize an
objective function"): what a merge adds to the squared distances of the frames from the mean of
their group, n1 n2 / (n1 + n2) |mean1 - mean2|^2. A group of n frames is read as its mean, with
log n added to its score, as if all n frames were equal to the mean (proportional attention,
section 3.2 of the same paper).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.base import Rows, StoreShape
from slimwhisper.cache.fold import Attention, Context, Folded
from slimwhisper.cache.forms import E8, E, Form
from slimwhisper.cache.latent import LatentCross, LatentStore, latent_of
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.types import Dims

# One group in 8 is merged into its neighbour in a round. On speech the squared distances are then
# 1.1 to 1.7 times those of merging one pair at a time, the cheapest first; with one in 16, at most
# 1.3 times, in up to twice the time.
SHARE = 8


def rounds(frames: int, groups: int) -> Iterator[int]:
    """The number of groups after each round, from `frames` down to `groups`."""
    while frames > groups:
        frames = max(groups, frames - -(-frames // SHARE))
        yield frames


def merge_neighbours(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Merge p frames into m = `groups` groups of neighbours, each window by itself.

    Each round removes the boundaries between groups that cost least, at equal costs the earlier
    ones; adjacent ones leave one group. The order of all sums is fixed.

    Arguments:
        x: [G, p, d], in any floating dtype.
        groups: m, 1 to p.
    Returns:
        the groups' means [G, m, d] and sizes [G, m], both in at least float32, and the group of
        each frame [G, p] int64.
    """
    windows, frames = x.shape[:2]
    sums = x.to(at_least_float32(x.dtype))
    sizes = torch.ones((windows, frames), device=x.device, dtype=sums.dtype)
    group_of = torch.arange(frames, device=x.device).expand(windows, frames)
    for remaining in rounds(frames, groups):
        count = sums.shape[1]
        means = sums / sizes.unsqueeze(-1)
        steps = means[:, 1:] - means[:, :-1]
        left, right = sizes[:, :-1], sizes[:, 1:]
        costs = left * right / (left + right) * steps.square().sum(dim=-1)
        removed = costs.sort(dim=1, stable=True).indices[:, : count - remaining]
        begins = torch.ones((windows, count), device=x.device, dtype=torch.int64)
        begins.scatter_(1, removed + 1, 0)
        merged = begins.cumsum(dim=1) - 1  # [G, count]: the new group of each group
        lengths = torch.zeros((windows, remaining), device=x.device, dtype=torch.int64)
        lengths.scatter_add_(1, merged, torch.ones_like(merged))
        sums = _sums(sums, lengths)
        sizes = _sums(sizes.unsqueeze(-1), lengths).squeeze(-1)
        group_of = merged.gather(1, group_of)
    return sums / sizes.unsqueeze(-1), sizes, group_of


def _sums(x: Tensor, lengths: Tensor) -> Tensor:
    """Sums of stretches, each in order: x [G, n, d], their lengths [G, m] -> [G, m, d]."""
    rows = x.flatten(0, 1)
    indices = torch.arange(len(rows), device=x.device)
    ends = lengths.flatten().cumsum(dim=0)
    sums = F.embedding_bag(indices, rows, ends - lengths.flatten(), mode="sum")
    return sums.unflatten(0, lengths.shape)


class CompactStore(LatentStore):
    """The latent of the audio, for all layers: [slots, m, d]; if frames are merged also log n of
    each group, [slots, m], and the group of each frame, [slots, p] int16.
    """

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        assert isinstance(weights.form, Compact)
        self.groups = weights.form.groups(shape.length)
        super().__init__(weights, replace(shape, length=self.groups))
        self.group_of: Tensor | None = None
        if self.groups < shape.length:
            wide, device = at_least_float32(shape.dtype), shape.device
            self.position_bias = torch.zeros((shape.count, self.groups), device=device, dtype=wide)
            size = (shape.count, shape.length)
            self.group_of = torch.zeros(size, device=device, dtype=torch.int16)
            self.tensors += (self.position_bias, self.group_of)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] -> latents [G, m, d] in `slots` [G] int64."""
        if self.position_bias is not None and self.group_of is not None:
            means, sizes, group_of = merge_neighbours(features, self.groups)
            self.position_bias[slots] = sizes.log()
            self.group_of[slots] = group_of.to(torch.int16)
            features = means.to(features.dtype)
        self.latent.write(slots, latent_of(self.weights, features))


class CompactCross(LatentCross):
    """Cross-attention of one layer to the store that all layers share."""

    store: CompactStore

    def __init__(
        self, weights: Folded, shape: StoreShape, store: CompactStore | None = None
    ) -> None:
        super().__init__(weights, shape, store or CompactStore(weights, shape))

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax: for each frame the
        score of its group, without log n.
        """
        scores = super().scores(x, rows, heads)
        if self.store.group_of is None:
            return scores
        group_of = self.store.group_of[rows.slots].long()[:, None, None]
        return scores.gather(3, group_of.expand(*scores.shape[:3], -1))

    def read_bytes(self, slot: int) -> float:
        """Of latents and their log n; only word timestamps read the groups of the frames."""
        read, bias = self.store.latent.tensors(), self.store.position_bias
        return sum(t[slot].nbytes for t in (read if bias is None else (*read, bias)))


@dataclass(frozen=True)
class Compact(Form):
    """`e` with few frames, also in float8. By default nothing is left out."""

    name, exact, shared, cross = "compact", False, True, CompactCross
    attentions = ("cross",)
    merge: float = 1.0  # the share of the audio's frames that remain
    float8: bool = False

    def __post_init__(self) -> None:
        self.require(0 < self.merge <= 1, "merge", "the share to keep, above 0, at most 1")

    def groups(self, frames: int) -> int:
        """m = ceil(merge p), how many of p frames remain."""
        return math.ceil(self.merge * frames - 1e-9)  # 0.07 of 1500 is 105

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        merges = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05)
        return [[f"merge={m}" for m in merges], [f"merge={m},float8=true" for m in (1, *merges)]]

    def fold(self, block: Attention, context: Context) -> Folded:
        """As `e`, or as `e8`."""
        return (E8() if self.float8 else E()).fold(block, context)
