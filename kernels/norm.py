"""Add and layer norm: what a block adds to the residual stream, and the norm that comes next.

    total = x + addend          normed = LN(total) * weight + bias

The sum is rounded to the stream's dtype, as it is kept; the norm is computed in at least float32.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.latent import Latent


def scaled(normed: Tensor, columns: Tensor, offset: Tensor | None) -> Tensor:
    """What float8 keeps of a norm's output [..., d], before it is rounded: columns alike, and
    without the norm's bias. columns, offset: [d].
    """
    assert offset is not None
    return (normed - offset) / columns


@dataclass(frozen=True, slots=True)
class Place:
    """Where normed rows are kept: row r at position positions[r] of row ids[r] of a latent.

    A float8 latent keeps what `scaled` gives; see `slimwhisper.cache.fold`.
    """

    latent: Latent  # values [rows, T, d]
    ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    columns: Tensor | None = None  # [d]
    offset: Tensor | None = None  # [d]

    def write(self, normed: Tensor) -> None:
        """Keep normed [R, d]."""
        kept = normed if self.columns is None else scaled(normed, self.columns, self.offset)
        self.latent.write((self.ids, self.positions), kept)


def add_norm(
    x: Tensor, addend: Tensor | None, weight: Tensor, bias: Tensor, place: Place | None = None
) -> tuple[Tensor, Tensor]:
    """The sum and its layer norm.

    Arguments:
        x, addend: [R, d] or [B, T, d], one dtype; addend None: nothing is added. It is used up:
            its memory, which a CPU still has in its caches, may hold the sum.
        weight, bias: [d], at least float32.
        place: where to keep the normed rows as well; only with [R, d].
    Returns:
        total and normed, like x.
    """
    total = x if addend is None else addend.add_(x)
    wide = total.to(weight.dtype)
    normed = F.layer_norm(wide, wide.shape[-1:], weight, bias).to(x.dtype)
    if place is not None:
        place.write(normed)
    return total, normed
