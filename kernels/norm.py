"""Add and layer norm: what a block adds to the residual stream, and the norm that comes next.

    total = x + addend          normed = LN(total) * weight + bias

The sum is rounded to the stream's dtype; the norm is computed in at least float32.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.attention import Latent


def scale_columns(normed: Tensor, column_scales: Tensor, offset: Tensor | None) -> Tensor:
    """A norm's output [..., d] as float8 stores it, before rounding: without the norm's bias, and
    with columns of a similar range. column_scales, offset: [d].
    """
    assert offset is not None
    return (normed - offset) / column_scales


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Where normed rows are stored: row r at position positions[r] of row ids[r] of a latent.

    A float8 latent stores what `scale_columns` returns; see `slimwhisper.cache.forms`.
    """

    latent: Latent  # values [rows, T, d]
    ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    column_scales: Tensor | None = None  # [d]
    offset: Tensor | None = None  # [d]

    def write(self, normed: Tensor) -> None:
        """Store normed [R, d], or [B, T, d] with R = B T."""
        normed = normed.flatten(0, -2)
        if self.column_scales is not None:
            normed = scale_columns(normed, self.column_scales, self.offset)
        self.latent.write((self.ids, self.positions), normed)


def add_norm(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    write: CacheWrite | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum and its layer norm.

    Arguments:
        x, addend: [R, d] or [B, T, d], one dtype; None: nothing is added. The addend
            is overwritten: its memory, which is still in a CPU's caches, may hold the sum.
        weight, bias: [d], at least float32.
        write: where to store the normed rows as well.
        shift: [d], at least float32, added to every row before the norm, but not to the sum.
    Returns:
        total and normed, like x.
    """
    total = x if addend is None else addend.add_(x)
    wide = total.to(weight.dtype)
    wide = wide if shift is None else wide + shift
    normed = F.layer_norm(wide, wide.shape[-1:], weight, bias).to(x.dtype)
    if write is not None:
        write.write(normed)
    return total, normed
