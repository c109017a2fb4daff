"""Add and layer norm in one launch on a GPU, with the normed row put into its cache: Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.norm import Place

EPSILON = 1e-5  # as in `torch.nn.LayerNorm`


@triton.jit
def e4m3_of(value):
    """float32 within float8's range -> the byte of the nearest e4m3, ties to even.

    By integers, as compute capability 8.0 has no such instruction.
    """
    bits = value.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # below 2^-6 float8 counts in steps of 2^-9, which are the last bit of 2^14 + |value|
    small = (tl.abs(value) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    byte = tl.where(size < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)
    return byte.to(tl.uint8)


@triton.jit
def add_norm_kernel(
    x,  # [R, d], contiguous, as all that is [R, d]
    addend,
    total,
    normed,
    weight,  # [d] float32
    bias,
    kept,  # [rows, T, d]; of a float8 latent its bytes
    factors,  # [rows, T] float32, in float8
    ids,
    positions,
    columns,  # [d], in float8
    offset,
    kept_row,  # strides, in elements
    kept_position,
    factor_row,
    epsilon,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_ADDEND: tl.constexpr,
    HAS_PLACE: tl.constexpr,
    EIGHT: tl.constexpr,
):
    """Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    at = row * D + column
    kind: tl.constexpr = x.dtype.element_ty
    sum_ = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDEND:
        sum_ += tl.load(addend + at, mask=inside, other=0.0).to(tl.float32)
        rounded = sum_.to(kind)
        tl.store(total + at, rounded, mask=inside)
        sum_ = rounded.to(tl.float32)
    centred = tl.where(inside, sum_ - tl.sum(sum_, 0) / D, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / D + epsilon)
    w = tl.load(weight + column, mask=inside, other=0.0)
    b = tl.load(bias + column, mask=inside, other=0.0)
    out = (centred * scale * w + b).to(kind)
    tl.store(normed + at, out, mask=inside)
    if HAS_PLACE:
        row_of = tl.load(ids + row).to(tl.int64)
        position = tl.load(positions + row).to(tl.int64)
        to = kept + row_of * kept_row + position * kept_position + column
        if EIGHT:
            shift = tl.load(offset + column, mask=inside, other=0.0).to(tl.float32)
            step = tl.load(columns + column, mask=inside, other=1.0).to(tl.float32)
            # rounded after each operation, as PyTorch's operators are
            moved = (out.to(tl.float32) - shift).to(kind).to(tl.float32)
            scaled = tl.div_rn(moved, step).to(kind).to(tl.float32)
            factor = tl.div_rn(tl.maximum(tl.max(tl.abs(scaled), 0), 1e-30), 448.0)
            tl.store(to, e4m3_of(tl.div_rn(scaled, factor)), mask=inside)
            tl.store(factors + row_of * factor_row + position, factor)
        else:
            tl.store(to, out, mask=inside)


def add_norm_by_triton(
    x: Tensor, addend: Tensor | None, weight: Tensor, bias: Tensor, place: Place | None = None
) -> tuple[Tensor, Tensor]:
    """`slimwhisper.kernels.norm.add_norm` on the device: x [R, d] or [B, T, d], same results but
    for rounding.
    """
    x = x.contiguous()
    width = x.shape[-1]
    normed = torch.empty_like(x)
    total = x if addend is None else torch.empty_like(x)
    eight = place is not None and place.latent.factors is not None
    nothing = x
    if place is None:
        kept, factors, ids, positions = nothing, nothing, nothing, nothing
    else:
        kept, ids, positions = place.latent.values, place.ids, place.positions
        factors = nothing if place.latent.factors is None else place.latent.factors
        kept = kept.view(torch.uint8) if eight else kept
    columns = nothing if place is None or place.columns is None else place.columns
    offset = nothing if place is None or place.offset is None else place.offset
    add_norm_kernel[(x.numel() // width,)](
        x,
        nothing if addend is None else addend.contiguous(),
        total,
        normed,
        weight,
        bias,
        kept,
        factors,
        ids,
        positions,
        columns,
        offset,
        0 if place is None else kept.stride(0),
        0 if place is None else kept.stride(1),
        factors.stride(0) if eight else 0,
        EPSILON,
        D=width,
        BLOCK_D=triton.next_power_of_2(width),
        HAS_ADDEND=addend is not None,
        HAS_PLACE=place is not None,
        EIGHT=eight,
        num_warps=4,
    )
    return total, normed
