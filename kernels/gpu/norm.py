"""Add and layer norm in one launch on a GPU, with the normed row stored in its cache: Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.attention import CacheWrite

EPSILON = 1e-5  # as in `torch.nn.LayerNorm`


@triton.jit
def e4m3_of(value):
    """float32 within float8's range -> the byte of the nearest e4m3, ties to even.

    In integers, as compute capability 8.0 has no instruction for it.
    """
    bits = value.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # below 2^-6 float8 counts in steps of 2^-9, which are the last bit of 2^14 + |value|
    small = (tl.abs(value) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    byte = tl.where(magnitude < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)
    return byte.to(tl.uint8)


@triton.jit
def add_norm_kernel(
    x,  # [R, d], contiguous, as all that is [R, d]
    addend,
    total,
    normed,
    weight,  # [d] float32
    bias,
    shift,
    cache,  # [rows, T, d]; of a float8 latent its bytes
    factors,  # [rows, T] float32, in float8
    ids,
    positions,
    column_scales,  # [d], in float8
    offset,
    cache_row_stride,  # strides, in elements
    cache_position_stride,
    factor_stride,
    epsilon,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_ADDEND: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_WRITE: tl.constexpr,
    FP8: tl.constexpr,
):
    """Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    valid = column < D
    index = row * D + column
    DTYPE: tl.constexpr = x.dtype.element_ty
    sum_ = tl.load(x + index, mask=valid, other=0.0).to(tl.float32)
    if HAS_ADDEND:
        sum_ += tl.load(addend + index, mask=valid, other=0.0).to(tl.float32)
        rounded = sum_.to(DTYPE)
        tl.store(total + index, rounded, mask=valid)
        sum_ = rounded.to(tl.float32)
    if HAS_SHIFT:
        sum_ += tl.load(shift + column, mask=valid, other=0.0)
    centred = tl.where(valid, sum_ - tl.sum(sum_, 0) / D, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / D + epsilon)
    w = tl.load(weight + column, mask=valid, other=0.0)
    b = tl.load(bias + column, mask=valid, other=0.0)
    out = (centred * scale * w + b).to(DTYPE)
    tl.store(normed + index, out, mask=valid)
    if HAS_WRITE:
        cache_row = tl.load(ids + row).to(tl.int64)
        position = tl.load(positions + row).to(tl.int64)
        pointers = cache + cache_row * cache_row_stride + position * cache_position_stride + column
        if FP8:
            shift = tl.load(offset + column, mask=valid, other=0.0).to(tl.float32)
            column_scale = tl.load(column_scales + column, mask=valid, other=1.0).to(tl.float32)
            # rounded after each operation, as PyTorch's operators are
            shifted = (out.to(tl.float32) - shift).to(DTYPE).to(tl.float32)
            scaled = tl.div_rn(shifted, column_scale).to(DTYPE).to(tl.float32)
            factor = tl.div_rn(tl.maximum(tl.max(tl.abs(scaled), 0), 1e-30), 448.0)
            tl.store(pointers, e4m3_of(tl.div_rn(scaled, factor)), mask=valid)
            tl.store(factors + cache_row * factor_stride + position, factor)
        else:
            tl.store(pointers, out, mask=valid)


def add_norm_by_triton(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    write: CacheWrite | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """`kernels.attention.add_norm` on the device: x [R, d] or [B, T, d], same results but for
    rounding. None: weight and bias are not float32.
    """
    if weight.dtype != torch.float32:
        return None
    x, width, strides = x.contiguous(), x.shape[-1], (0, 0, 0)
    normed, total = torch.empty_like(x), x if addend is None else torch.empty_like(x)
    cache = factors = ids = positions = column_scales = offset = x  # which is not read for them
    fp8 = False
    if write is not None:
        latent, fp8 = write.latent, write.latent.factors is not None
        cache = latent.values.view(torch.uint8) if fp8 else latent.values
        factors = x if latent.factors is None else latent.factors
        ids, positions = write.ids.contiguous(), write.positions.contiguous()
        column_scales = x if write.column_scales is None else write.column_scales
        offset = x if write.offset is None else write.offset
        strides = *cache.stride()[:2], factors.stride(0) if fp8 else 0
    add_norm_kernel[(x.numel() // width,)](
        x,
        x if addend is None else addend.contiguous(),
        total,
        normed,
        weight,
        bias,
        x if shift is None else shift,
        cache,
        factors,
        ids,
        positions,
        column_scales,
        offset,
        *strides,
        EPSILON,
        D=width,
        BLOCK_D=triton.next_power_of_2(width),
        HAS_ADDEND=addend is not None,
        HAS_SHIFT=shift is not None,
        HAS_WRITE=write is not None,
        FP8=fp8,
        num_warps=4,
    )
    return total, normed
