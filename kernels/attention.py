"""What attention and norms read and write: a latent, or keys and values, at which positions; and
both in PyTorch.

Latent attention has one shared latent that is both keys and values, for every head's query:

    softmax(Q~ Z^T * scale) Z          Q~ [Q, d], Z [T, d]

Z is the encoder output (cache form `e`), the layer-normed input (`x`), or K, V or the first layer's
K (`k`, `v`, `hybrid`); Q~ holds the folded queries q_i W_K,i^T of all heads. One pass over Z serves
the scores and the weighted sum. `head_attention` is the baseline's, over stored keys and values.

A block adds to the residual stream, and the norm that comes next reads the sum (`add_norm`):

    total = x + addend          normed = LN(total) * weight + bias

The sum is rounded to the stream's dtype; the norm is computed in at least float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_ROWS = 32  # of a window in one call by heads; more, as in a prompt, go to flash-attention


@dataclass(frozen=True, slots=True)
class Reads:
    """For B windows over S slots of T positions; by default window b reads all of slot b."""

    slots: Tensor | None = None  # [B] int64: the slot that each window reads
    # to read only the first positions, both
    lengths: Tensor | None = None  # [B] int64, 0 to T: later positions are never read
    # builds the mask [B, 1, T] in the queries' dtype, -inf from there on; kernels that take
    # `lengths` do not need it
    bias: Callable[[], Tensor] | None = None
    # [B, >= T / page] int64, instead of `slots`: a block table. Position t of a window is position
    # t % page of page block_table[b, t // page]; the cache is [pages, page, ..]
    block_table: Tensor | None = None
    extent: int = 0  # T, with a block table
    # [S, T] float32, added to the scores of each position of a slot, for every query; only for the
    # latent kernels, and not with a block table
    position_bias: Tensor | None = None

    def windows(self, slots: int) -> int:
        """B, the number of windows, over `slots` slots."""
        ids = self.block_table if self.slots is None else self.slots
        return slots if ids is None else len(ids)

    def positions(self, length: int) -> int:
        """T, where a slot or a page of the cache has `length` positions."""
        return length if self.block_table is None else self.extent

    def gathered(self, cache: Tensor, dim: int) -> Tensor:
        """The positions of every window's text, side by side: cache [pages, .., page, ..], whose
        positions are dimension `dim`, -> [B, .., T, ..]. Zeros where a window has no token: there
        may be a NaN of another text, which would pass a mask.
        """
        assert self.block_table is not None
        page = cache.shape[dim]
        text = cache.view(torch.uint8) if cache.itemsize == 1 else cache
        text = text[self.block_table[:, : -(-self.extent // page)]]  # [B, n, .., page, ..]
        text = text.movedim(1, dim).flatten(dim, dim + 1).narrow(dim, 0, self.extent)
        if self.lengths is not None:
            unwritten = torch.arange(self.extent, device=cache.device) >= self.lengths[:, None]
            shape = [len(text), *[1] * (dim - 1), self.extent, *[1] * (text.ndim - dim - 1)]
            text = text.masked_fill(unwritten.view(shape), 0)
        return text.view(cache.dtype) if cache.itemsize == 1 else text

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """slots, block_table and lengths for a kernel, on the device of `like`.

        None becomes empty int64: for another type the kernel would be compiled again. Kernels step
        through them by 1, through the table's rows by its stride.
        """
        empty = like.new_empty(0, dtype=torch.int64)
        slots, table, lengths = self.slots, self.block_table, self.lengths
        return (
            empty if slots is None else slots.contiguous(),
            empty if table is None else table,
            empty if lengths is None else lengths.contiguous(),
        )

    def position_bias_tensor(self, like: Tensor) -> Tensor:
        """position_bias for a kernel, on the device of `like`; None becomes empty float32."""
        bias = self.position_bias
        return like.new_empty(0, dtype=torch.float32) if bias is None else bias


ALL = Reads()


FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Latent:
    """A stored latent: in the model's dtype, in float16, or as float8, or in whole numbers of 16
    bits, with a factor a position.
    """

    values: Tensor  # [S, T, d], or [S, G, T, d] for G groups
    factors: Tensor | None = None  # [S, T] float32: position t is factors[s, t] * values[s, t]

    @staticmethod
    def shapes(
        shape: tuple[int, ...], dtype: torch.dtype, fp8: bool
    ) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Of the tensors of a latent with values of a shape [..., T, d]. fp8: in float8."""
        kind = FP8 if fp8 else dtype
        factors = [(shape[:-1], torch.float32)] if kind in (FP8, torch.int16) else []
        return [(shape, kind), *factors]

    @staticmethod
    def allocate(
        shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, fp8: bool = False
    ) -> "Latent":
        """Zeros of shape [S, T, d]. fp8: in float8."""
        shapes = Latent.shapes(shape, dtype, fp8)
        return Latent(*(torch.zeros(size, device=device, dtype=kind) for size, kind in shapes))

    def tensors(self) -> tuple[Tensor, ...]:
        """values [S, T, d] and, in float8 or whole numbers, factors [S, T]."""
        return (self.values,) if self.factors is None else (self.values, self.factors)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> "Latent":
        """Some slots, or some positions of some slots."""
        return Latent(self.values[index], None if self.factors is None else self.factors[index])

    def write(self, index: Any, x: Tensor) -> None:
        """Store x [..., d] at the positions `index`."""
        if self.factors is None:
            self.values[index] = x.to(self.values.dtype)
            return
        wide, kept = x.to(torch.promote_types(x.dtype, torch.float32)), self.values
        if kept.dtype == torch.int16:  # the norm decides, as C needs it: attention.c
            factors = wide.norm(dim=-1).clamp_(min=1e-30) / torch.iinfo(torch.int16).max
            kept[index] = (wide / factors[..., None]).round_().to(torch.int16)
        else:
            factors = wide.abs().amax(dim=-1).clamp_(min=1e-30) / torch.finfo(FP8).max
            kept.view(torch.uint8)[index] = (wide / factors[..., None]).to(FP8).view(torch.uint8)
        self.factors[index] = factors.float()

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The values [S, T, d] in `dtype`."""
        values, factors = self.values, self.factors
        return (values if factors is None else values.float() * factors[..., None]).to(dtype)


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


# softmax(q_i K_i^T * scale) V_i for every head i, scale by default 1 / sqrt(d_k): queries [B, h, Q,
# d_k], keys and values [B, h, T, d_k], one dtype -> [B, h, Q, d_k]. A mask, broadcastable to [B, h,
# Q, T], is added to the scores; -inf hides a position, in which keys and values must be finite too.
# With `is_causal`, and then without a mask, query t sees only positions 0..t.
head_attention = F.scaled_dot_product_attention
