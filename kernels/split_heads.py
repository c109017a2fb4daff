"""Attention by heads over kept keys and values, on a GPU: Triton, split over positions.

    softmax(q_i K_i^T / sqrt(d_k)) V_i          q [N, h, d_k], K, V [S, h, T, d_k]

The baseline's decode step: a program takes one head of one window, the queries of all rows that
share the window, and one part of its positions (flash-decoding); `combine` brings the parts
together.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.combine import Parts, combine
from slimwhisper.kernels.table import Configuration


@triton.jit
def split_heads_kernel(
    queries,
    keys,
    values,
    slots,
    sources,  # [B, T] int64: the slot that holds each position
    lengths,
    out,  # [N, h, d_k], written if there is one split
    sums,  # [N, h, SPLITS, d_k] float32, written otherwise
    stats,  # [N, h, SPLITS, 2] float32: maximum, in powers of 2, and weight
    scale_log2,  # log2(e) / sqrt(d_k)
    heads,
    group,  # rows of one window
    positions,
    query_row,  # strides, in elements
    query_head,
    out_row,
    out_head,
    kept_slot,  # of keys and values alike
    kept_head,
    kept_position,
    source_window,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: blocks of rows, heads of all windows, splits."""
    head, split = tl.program_id(1) % heads, tl.program_id(2)
    window = (tl.program_id(1) // heads).to(tl.int64)
    length, slot = positions, window
    if HAS_LENGTHS:
        length = tl.load(lengths + window).to(tl.int32)
    if HAS_SLOTS:
        slot = tl.load(slots + window).to(tl.int64)
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_T) * BLOCK_T
    begin = split * share
    end = tl.minimum(begin + share, length)

    member = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    real = member < group
    row = window * group + member
    column = tl.arange(0, D)
    at = queries + row * query_row + head * query_head
    q = tl.load(at[:, None] + column[None, :], mask=real[:, None], other=0.0)
    best = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_Q], tl.float32)
    mix = tl.zeros([BLOCK_Q, D], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        place = t + tl.arange(0, BLOCK_T)
        seen = place < end
        position = head * kept_head + place.to(tl.int64) * kept_position
        if HAS_SOURCES:
            at_source = sources + window * source_window + place
            holder = tl.load(at_source, mask=seen, other=0).to(tl.int64)
            position = position + holder * kept_slot
        else:
            position = position + slot * kept_slot
        tile = position[:, None] + column[None, :]
        k = tl.load(keys + tile, mask=seen[:, None], other=0.0)
        v = tl.load(values + tile, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        scores = tl.where(seen[None, :], scores * scale_log2, float("-inf"))
        new = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp2(best - new)
        p = tl.exp2(scores - new[:, None])
        weight = weight * shrink + tl.sum(p, 1)
        mix = tl.dot(p.to(v.dtype), v, mix * shrink[:, None], input_precision=PRECISION)
        best = new

    if SPLITS == 1:
        whole = mix / tl.where(weight > 0, weight, 1.0)[:, None]  # no position: zeros
        to = out + row * out_row + head * out_head
        tl.store(to[:, None] + column[None, :], whole.to(out.dtype.element_ty), mask=real[:, None])
    else:
        part = (row * heads + head) * SPLITS + split
        tl.store(sums + part[:, None] * D + column[None, :], mix, mask=real[:, None])
        tl.store(stats + part * 2, best, mask=real)
        tl.store(stats + part * 2 + 1, weight, mask=real)


def split_heads(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    configuration: Configuration,
    splits: int,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
    sources: Tensor | None = None,
) -> Tensor:
    """Attend head by head to a window's keys and values, on the device.

    Arguments:
        queries: [N, h, d_k], any strides with a contiguous last dimension, d_k a power of two; N a
            multiple of B, the windows, and neighbours of one window beside each other.
        keys, values: [S, h, T, d_k], same dtype, strided alike; S = B unless `slots` is given.
        slots, lengths, sources: as in `split_latent`.
    Returns:
        [N, h, d_k]; zeros where there is no position.
    """
    assert keys.stride() == values.stride()
    rows, heads, width = queries.shape
    chosen = sources if slots is None else slots
    windows = keys.shape[0] if chosen is None else len(chosen)
    group = rows // windows
    out = torch.empty((rows, heads, width), dtype=queries.dtype, device=queries.device)
    parts = Parts.allocate(rows * heads, splits, width, queries.device)
    c = configuration
    split_heads_kernel[triton.cdiv(group, c.block_q), windows * heads, splits](
        queries,
        keys,
        values,
        queries if slots is None else slots,
        queries if sources is None else sources,
        queries if lengths is None else lengths,
        out,
        parts.sums,
        parts.stats,
        width**-0.5 * math.log2(math.e),
        heads,
        group,
        keys.shape[2],
        *queries.stride()[:2],
        *out.stride()[:2],
        *keys.stride()[:3],
        0 if sources is None else sources.stride(0),
        D=width,
        BLOCK_Q=c.block_q,
        BLOCK_T=c.block_t,
        SPLITS=splits,
        STAGES=c.stages,
        HAS_SLOTS=slots is not None,
        HAS_SOURCES=sources is not None,
        HAS_LENGTHS=lengths is not None,
        PRECISION=c.precision,
        num_warps=c.warps,
        num_stages=c.stages,
    )
    return combine(parts, out) if splits > 1 else out


def split_heads_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """The same from the definition, window by window; at least float32 inside."""
    windows = keys.shape[0] if slots is None else len(slots)
    wide = torch.promote_types(queries.dtype, torch.float32)
    out = torch.zeros_like(queries)
    for b, asked in enumerate(queries.unflatten(0, (windows, -1))):
        slot = b if slots is None else int(slots[b])
        length = keys.shape[2] if lengths is None else int(lengths[b])
        k, v = keys[slot, :, :length].to(wide), values[slot, :, :length].to(wide)
        scores = asked.to(wide).transpose(0, 1) @ k.transpose(1, 2) * queries.shape[-1] ** -0.5
        out.unflatten(0, (windows, -1))[b] = (scores.softmax(dim=-1) @ v).transpose(0, 1)
    return out
