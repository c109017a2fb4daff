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

from slimwhisper.kernels.attention import ALL, Reads
from slimwhisper.kernels.configurations import Configuration
from slimwhisper.kernels.gpu.combine import (
    NOT_SPECIALIZED,
    PartialSums,
    combine,
    launch_arguments,
    offsets_of,
    softmax_step,
    split_positions,
)


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
    has_lengths,
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
    PRECISION: tl.constexpr,
):
    """Grid: blocks of rows, heads of all windows, splits."""
    head, split = tl.program_id(1) % heads, tl.program_id(2)
    window = (tl.program_id(1) // heads).to(tl.int64)
    slot, begin, end = split_positions(
        lengths, slots, window, split, positions, splits, BLOCK_T, has_lengths, has_slots
    )

    index = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    valid = index < group
    row = window * group + index
    column = tl.arange(0, D)
    query_pointers = queries + row * query_row_stride + head * query_head_stride
    q = tl.load(query_pointers[:, None] + column[None, :], mask=valid[:, None], other=0.0)
    maximum = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, D], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        position = t + tl.arange(0, BLOCK_T)
        in_range = position < end
        pages = block_table + window * block_table_stride
        offset = offsets_of(
            pages, slot, position, in_range, cache_slot_stride, cache_position_stride, PAGE
        )
        offset = offset + head * cache_head_stride
        tile = offset[:, None] + column[None, :]
        k = tl.load(keys + tile, mask=in_range[:, None], other=0.0)
        v = tl.load(values + tile, mask=in_range[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        scores = tl.where(in_range[None, :], scores * scale_log2, float("-inf"))
        p, rescale, maximum, weight_sum = softmax_step(scores, maximum, weight_sum)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)

    if splits == 1:
        out_pointers = out + row * out_row_stride + head * out_head_stride
        inverse = 1.0 / tl.where(weight_sum > 0, weight_sum, 1.0)  # no position: zeros
        output = (acc * inverse[:, None]).to(out.dtype.element_ty)
        tl.store(out_pointers[:, None] + column[None, :], output, mask=valid[:, None])
    else:
        part = (row * heads + head) * splits + split
        tl.store(sums + part[:, None] * D + column[None, :], acc, mask=valid[:, None])
        tl.store(stats + part * 2, maximum, mask=valid)
        tl.store(stats + part * 2 + 1, weight_sum, mask=valid)


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
    windows, c = reads.windows(len(keys)), configuration
    out = torch.empty((rows, heads, width), dtype=queries.dtype, device=queries.device)
    stored = rows * heads if splits > 1 else 0
    parts = PartialSums.allocate(stored, splits, width, queries.device)
    split_heads_kernel[triton.cdiv(rows // windows, c.block_q), windows * heads, splits](
        keys=keys,
        values=values,
        out=out,
        scale_log2=width**-0.5 * math.log2(math.e),
        out_row_stride=out.stride(0),
        out_head_stride=out.stride(1),
        cache_slot_stride=keys.stride(0),
        cache_head_stride=keys.stride(1),
        cache_position_stride=keys.stride(2),
        **launch_arguments(c, reads, queries, keys, parts),
    )
    return combine(parts, out)
