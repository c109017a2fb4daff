"""LoRA's and DoRA's formulas, in float64 (arXiv 2106.09685, 2312.03732, 2402.09353; PEFT's layout).

The merged weight is W + s B A, with A [r, in], B [out, r], s = alpha / r or alpha / sqrt(r). With a
magnitude m [out], DoRA's, it is that with every row scaled to the norm m.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Factors:
    """What an adapter adds to one weight; tensors of any floating dtype."""

    down: Tensor  # A: [r, in], of a convolution [r, in, k], of an embedding [r, V]
    up: Tensor  # B: [out, r], of a convolution [out, r, 1], of an embedding [d, r]
    alpha: float
    root: bool = False  # rank-stabilized: divided by sqrt(r) instead of r
    magnitude: Tensor | None = None  # DoRA's: [out], of a convolution [1, out, 1]
    embedding: bool = False

    @property
    def scaling(self) -> float:
        rank = self.down.shape[0]
        return self.alpha / (sqrt(rank) if self.root else rank)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight that it fits; (-1,) where the factors do not fit each other."""
        down, up = self.down.shape, self.up.shape
        fits = len(down) == len(up) in (2, 3) and up[1] == down[0] and all(n == 1 for n in up[2:])
        if not fits or (self.embedding and len(down) == 3):
            return (-1,)
        return (down[1], up[0]) if self.embedding else (up[0], *down[1:])

    def merged(self, weight: Tensor) -> Tensor:
        """weight float64, [out, in], [out, in, k] or [V, d] -> the same, merged."""
        down, up = self.down.double(), self.up.double()
        added = (up.flatten(1) @ down.flatten(1)) * self.scaling
        total = weight + (added.T if self.embedding else added.view_as(weight))
        if self.magnitude is None:
            return total
        magnitude = self.magnitude.double().flatten()
        if self.embedding:  # [V, d]: each of the d columns has its norm
            return total * (magnitude / torch.linalg.vector_norm(total, dim=0))
        rows = total.flatten(1)
        factor = magnitude / torch.linalg.vector_norm(rows, dim=1)
        return (rows * factor[:, None]).view_as(weight)
