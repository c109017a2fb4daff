"""Multi-head attention over kept keys and values, on a GPU: Triton, split over positions.

    softmax(q_i K_i^T / sqrt(d_k)) V_i          q [N, h, d_k], K, V [S, h, T, d_k]

The baseline's decode step: a program takes one head of one window, the queries of all rows that
share the window, and one part of its positions (flash-decoding); `combine` combines the parts.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.configurations import Configuration
from slimwhisper.kernels.gpu.combine import (
    FAR,
    GENERAL,
    LEAST,
    Parts,
    combine,
    part_of_positions,
    weigh,
    write_mix,
    write_stats,
)
from slimwhisper.kernels.reads import ALL, Reads


@triton.jit(do_not_specialize=GENERAL)
def split_heads_kernel(
    queries,
    keys,
    values,
    slots,
    table,  # [B, pages] int64: the pages of each window's text
    lengths,
    out,  # [N, h, d_k], written if there is one split
    sums,  # [N, h, SPLITS, d_k] float32, written otherwise
    stats,  # [N, h, SPLITS, 2] float32: maximum, in powers of 2, and weight
    scale_log2,  # log2(e) / sqrt(d_k)
    heads,
    group,  # rows per window
    positions,
    splits,
    has_slots,
    lengths_each,
    query_row,  # strides, in elements
    query_head,
    out_row,
    out_head,
    kept_slot,  # of keys and values alike
    kept_head,
    kept_position,
    table_window,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    PAGE: tl.constexpr,  # positions of a page; 0: without a table
    HAS_LIMITS: tl.constexpr,  # a window's rows end one after the other
    PRECISION: tl.constexpr,
):
    """Grid: blocks of rows, heads of all windows, splits."""
    head, split = tl.program_id(1) % heads, tl.program_id(2)
    window = (tl.program_id(1) // heads).to(tl.int64)
    slot, begin, end = part_of_positions(
        lengths, slots, window, split, positions, splits, BLOCK_T, lengths_each, has_slots
    )

    member = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    real = member < group
    row = window * group + member
    column = tl.arange(0, D)
    at = queries + row * query_row + head * query_head
    q = tl.load(at[:, None] + column[None, :], mask=real[:, None], other=0.0)
    best = tl.full([BLOCK_Q], LEAST if HAS_LIMITS else float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_Q], tl.float32)
    mix = tl.zeros([BLOCK_Q, D], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        place = t + tl.arange(0, BLOCK_T)
        seen = place < end
        if PAGE > 0:
            at_page = table + window * table_window + place // PAGE
            page = tl.load(at_page, mask=seen, other=0).to(tl.int64)
            position = page * kept_slot + (place % PAGE) * kept_position
        else:
            position = slot * kept_slot + place.to(tl.int64) * kept_position
        position = position + head * kept_head
        tile = position[:, None] + column[None, :]
        k = tl.load(keys + tile, mask=seen[:, None], other=0.0)
        v = tl.load(values + tile, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        counted = seen[None, :]
        if HAS_LIMITS:
            first = tl.load(lengths + window * lengths_each).to(tl.int32)
            least = tl.where(seen, place - first + 1, FAR)  # the first row that counts it
            counted = least[None, :] <= member[:, None]
        scores = tl.where(counted, scores * scale_log2, float("-inf"))
        p, shrink, best, weight = weigh(scores, best, weight)
        mix = tl.dot(p.to(v.dtype), v, mix * shrink[:, None], input_precision=PRECISION)

    to = out + row * out_row + head * out_head
    part = (row * heads + head) * splits + split
    sums_at = sums + part[:, None] * D + column[None, :]
    write_mix(mix, weight, to[:, None] + column[None, :], sums_at, real, splits)
    write_stats(stats, part, best, weight, real, splits)


def split_heads(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    configuration: Configuration,
    splits: int,
    reads: Reads = ALL,
) -> Tensor:
    """Attend head by head to a window's keys and values, on the device.

    Arguments:
        queries: [N, h, d_k], any strides with a contiguous last dimension, d_k a power of two; N is
            a multiple of B, the number of windows, and the rows of one window are adjacent.
        keys, values: [S, h, T, d_k], same dtype and strides; S = B unless `reads` has slots.
        reads: as in `split_latent`.
    Returns:
        [N, h, d_k]; zeros for a window without positions.
    """
    assert keys.stride() == values.stride()
    rows, heads, width = queries.shape
    windows = reads.windows(len(keys))
    group = rows // windows
    out = torch.empty((rows, heads, width), dtype=queries.dtype, device=queries.device)
    parts = Parts.allocate(rows * heads, splits, width, queries.device)
    c = configuration
    split_heads_kernel[triton.cdiv(group, c.block_q), windows * heads, splits](
        queries,
        keys,
        values,
        *reads.tensors(queries),
        out,
        parts.sums,
        parts.stats,
        width**-0.5 * math.log2(math.e),
        heads,
        group,
        reads.positions(keys.shape[2]),
        splits,
        int(reads.slots is not None),
        reads.lengths_each(windows),
        *queries.stride()[:2],
        *out.stride()[:2],
        *keys.stride()[:3],
        0 if reads.table is None else reads.table.stride(0),
        D=width,
        BLOCK_Q=c.block_q,
        BLOCK_T=c.block_t,
        STAGES=c.stages,
        PAGE=0 if reads.table is None else keys.shape[2],
        HAS_LIMITS=reads.lengths_each(windows) > 1,
        PRECISION=c.precision,
        num_warps=c.warps,
        num_stages=c.stages,
    )
    return combine(parts, out) if splits > 1 else out


def split_heads_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    reads: Reads = ALL,
) -> Tensor:
    """The same from the definition, window by window, in at least float32: [N, h, d_k] -> same."""
    windows = reads.windows(len(keys))
    wide = torch.promote_types(queries.dtype, torch.float32)
    out = torch.zeros_like(queries)
    for b, asked in enumerate(queries.unflatten(0, (windows, -1))):
        slot = b if reads.slots is None else int(reads.slots[b])
        length = reads.longest(b, windows)
        k, v = keys[slot, :, :length].to(wide), values[slot, :, :length].to(wide)
        scores = asked.to(wide).transpose(0, 1) @ k.transpose(1, 2) * queries.shape[-1] ** -0.5
        weights = reads.seen(scores.transpose(0, 1), b, windows).softmax(dim=-1).transpose(0, 1)
        out.unflatten(0, (windows, -1))[b] = (weights @ v).transpose(0, 1)
    return out
