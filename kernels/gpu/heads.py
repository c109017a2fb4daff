"""Multi-head attention over stored keys and values, on a GPU: Triton, split over positions.

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
    MIN_SCORE,
    NO_ROW,
    NOT_SPECIALIZED,
    PartialSums,
    combine,
    softmax_step,
    split_positions,
    store_output,
    store_stats,
)
from slimwhisper.kernels.reads import ALL, Reads


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def split_heads_kernel(
    queries,
    keys,
    values,
    slots,
    block_table,  # [B, pages] int64: the pages of each window's text
    lengths,
    out,  # [N, h, d_k], written if there is one split
    sums,  # [N, h, SPLITS, d_k] float32, written otherwise
    stats,  # [N, h, SPLITS, 2] float32: maximum, in powers of 2; sum of weights
    scale_log2,  # log2(e) / sqrt(d_k)
    heads,
    group,  # rows per window
    positions,
    splits,
    has_slots,
    lengths_per_window,
    query_row_stride,  # strides, in elements
    query_head_stride,
    out_row_stride,
    out_head_stride,
    cache_slot_stride,  # of keys and values alike
    cache_head_stride,
    cache_position_stride,
    block_table_stride,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    PAGE: tl.constexpr,  # positions of a page; 0: without a block table
    HAS_ROW_LENGTHS: tl.constexpr,  # each row of a window has its own
    PRECISION: tl.constexpr,
):
    """Grid: blocks of rows, heads of all windows, splits."""
    head, split = tl.program_id(1) % heads, tl.program_id(2)
    window = (tl.program_id(1) // heads).to(tl.int64)
    slot, begin, end = split_positions(
        lengths, slots, window, split, positions, splits, BLOCK_T, lengths_per_window, has_slots
    )

    index = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    valid = index < group
    row = window * group + index
    column = tl.arange(0, D)
    query_pointers = queries + row * query_row_stride + head * query_head_stride
    q = tl.load(query_pointers[:, None] + column[None, :], mask=valid[:, None], other=0.0)
    maximum = tl.full([BLOCK_Q], MIN_SCORE if HAS_ROW_LENGTHS else float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, D], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        position = t + tl.arange(0, BLOCK_T)
        in_range = position < end
        if PAGE > 0:
            page_pointers = block_table + window * block_table_stride + position // PAGE
            page = tl.load(page_pointers, mask=in_range, other=0).to(tl.int64)
            offset = page * cache_slot_stride + (position % PAGE) * cache_position_stride
        else:
            offset = slot * cache_slot_stride + position.to(tl.int64) * cache_position_stride
        offset = offset + head * cache_head_stride
        tile = offset[:, None] + column[None, :]
        k = tl.load(keys + tile, mask=in_range[:, None], other=0.0)
        v = tl.load(values + tile, mask=in_range[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        visible = in_range[None, :]
        if HAS_ROW_LENGTHS:
            first_length = tl.load(lengths + window * lengths_per_window).to(tl.int32)
            # the first row that reads the position
            first_row = tl.where(in_range, position - first_length + 1, NO_ROW)
            visible = first_row[None, :] <= index[:, None]
        scores = tl.where(visible, scores * scale_log2, float("-inf"))
        p, rescale, maximum, weight_sum = softmax_step(scores, maximum, weight_sum)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)

    out_pointers = out + row * out_row_stride + head * out_head_stride
    part = (row * heads + head) * splits + split
    sum_pointers = sums + part[:, None] * D + column[None, :]
    store_output(
        acc, weight_sum, out_pointers[:, None] + column[None, :], sum_pointers, valid, splits
    )
    store_stats(stats, part, maximum, weight_sum, valid, splits)


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
    parts = PartialSums.allocate(rows * heads, splits, width, queries.device)
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
        reads.lengths_per_window(windows),
        *queries.stride()[:2],
        *out.stride()[:2],
        *keys.stride()[:3],
        0 if reads.block_table is None else reads.block_table.stride(0),
        D=width,
        BLOCK_Q=c.block_q,
        BLOCK_T=c.block_t,
        STAGES=c.stages,
        PAGE=0 if reads.block_table is None else keys.shape[2],
        HAS_ROW_LENGTHS=reads.lengths_per_window(windows) > 1,
        PRECISION=c.precision,
        num_warps=c.warps,
        num_stages=c.stages,
    )
    return combine(parts, out) if splits > 1 else out
