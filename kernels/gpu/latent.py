"""Latent attention in one pass over the latent, on a GPU: Triton, split over positions.

    softmax(Q~ Z^T * scale) Z          Q~ [N, h, d], Z [S, T, d]

A program takes some queries of one window and one part of its positions. It reads a tile of the
latent once, for the scores and for the weighted sum, and keeps a running maximum and sum (online
softmax, arXiv 1805.02867); `combine` combines the parts (flash-decoding).
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.attention import ALL, Reads
from slimwhisper.kernels.configurations import Configuration
from slimwhisper.kernels.gpu.combine import (
    LOG2_E,
    NOT_SPECIALIZED,
    PartialSums,
    combine_and_map,
    empty_by_head,
    launch_arguments,
    offsets_of,
    softmax_step,
    split_positions,
)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def split_latent_kernel(
    queries,
    latent,  # [S, T, d]
    slots,
    block_table,  # [B, pages] int64: the pages of each window's text
    lengths,
    bias,  # [S, T] float32
    sums,  # [B, group * h, splits, d] float32
    stats,  # [B, group * h, splits, 2] float32: maximum, in powers of 2; sum of weights
    scale_log2,  # scale * log2(e)
    heads,
    group,  # rows per window
    positions,
    splits,
    has_slots,
    has_lengths,
    query_row_stride,  # strides, in elements
    query_head_stride,
    latent_slot_stride,
    latent_position_stride,
    block_table_stride,
    bias_stride,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # columns per load, a power of two that divides D
    SLICES: tl.constexpr,  # of these columns, one per warp; 1: plain products
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    PAGE: tl.constexpr,  # positions of a page; 0: without a block table
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: blocks of queries (adjacent, so that they find the latent in L2), windows, splits."""
    window, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    window_queries = heads * group
    slot, begin, end = split_positions(
        lengths, slots, window, split, positions, splits, BLOCK_T, has_lengths, has_slots
    )

    query = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    valid = query < window_queries
    row, head = window * group + query // heads, query % heads
    query_pointers = queries + row * query_row_stride + head * query_head_stride
    column = tl.arange(0, BLOCK_D)
    BLOCKS_D: tl.constexpr = D // BLOCK_D
    q = ()
    acc = ()
    for i in tl.static_range(BLOCKS_D):
        q_block = tl.load(
            query_pointers[:, None] + (i * BLOCK_D + column)[None, :],
            mask=valid[:, None],
            other=0.0,
        )
        if SLICES > 1:
            q_block = tl.reshape(q_block, [BLOCK_Q, SLICES, BLOCK_D // SLICES]).permute(1, 0, 2)
        q = q + (q_block,)
        acc = acc + (tl.zeros([BLOCK_Q, BLOCK_D], tl.float32),)
    maximum = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_Q], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        position = t + tl.arange(0, BLOCK_T)
        in_range = position < end
        pages = block_table + window * block_table_stride
        offset = offsets_of(
            pages, slot, position, in_range, latent_slot_stride, latent_position_stride, PAGE
        )
        tile_pointers = latent + offset[:, None] + column[None, :]
        z = ()
        for i in tl.static_range(BLOCKS_D):
            z = z + (tl.load(tile_pointers + i * BLOCK_D, mask=in_range[:, None], other=0.0),)
        if SLICES > 1:  # each warp takes its slice of d, so that none reads the whole tile
            slice_scores = tl.zeros([SLICES, BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(BLOCKS_D):
                z_slices = tl.reshape(z[i], [BLOCK_T, SLICES, BLOCK_D // SLICES]).permute(1, 2, 0)
                slice_scores = tl.dot(q[i], z_slices, slice_scores, input_precision=PRECISION)
            scores = tl.sum(slice_scores, 0)
        else:
            scores = tl.zeros([BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(BLOCKS_D):
                scores = tl.dot(q[i], tl.trans(z[i]), scores, input_precision=PRECISION)
        scores = scores * scale_log2
        if HAS_BIAS:
            position_bias = tl.load(bias + slot * bias_stride + position, mask=in_range, other=0.0)
            scores = scores + (position_bias * LOG2_E)[None, :]
        scores = tl.where(in_range[None, :], scores, float("-inf"))
        p, rescale, maximum, weight_sum = softmax_step(scores, maximum, weight_sum)
        new_acc = ()
        for i in tl.static_range(BLOCKS_D):
            acc_block = acc[i] * rescale[:, None]
            acc_block = tl.dot(p.to(z[i].dtype), z[i], acc_block, input_precision=PRECISION)
            new_acc = new_acc + (acc_block,)
        acc = new_acc

    # with one split too: the division and the output's address would take registers that d = 1280
    # needs
    part = (window * window_queries + query) * splits + split
    for i in tl.static_range(BLOCKS_D):
        columns = (i * BLOCK_D + column)[None, :]
        sum_pointers = sums + part[:, None] * D + columns
        tl.store(sum_pointers, acc[i], mask=valid[:, None])
    tl.store(stats + part * 2, maximum, mask=valid)
    tl.store(stats + part * 2 + 1, weight_sum, mask=valid)


def split_latent(
    queries: Tensor,
    latent: Tensor,
    scale: float,
    configuration: Configuration,
    splits: int,
    reads: Reads = ALL,
    maps: Tensor | None = None,
) -> Tensor:
    """Attend with every head's folded query to its window's latent, on the device.

    Arguments:
        queries: [N, h, d], any strides with a contiguous last dimension; N is a multiple of B, the
            number of windows, and the rows of one window are adjacent.
        latent: [S, T, d] of the same dtype, likewise strided; S = B unless `reads` has slots.
        scale: factor on the scores.
        reads: which positions, and `position_bias`; its `bias` is not used.
        maps: [h, d_k, d], every head's B_i^T, to be applied to the result.
    Returns:
        [N, h, d], laid out head by head, or with `maps` [N, h, d_k]; zeros for a window without
        positions.
    """
    rows, heads, width = queries.shape
    windows, c = reads.windows(len(latent)), configuration
    parts = PartialSums.allocate(rows * heads, splits, width, queries.device)
    position_bias = reads.position_bias_tensor(queries)
    split_latent_kernel[triton.cdiv(rows // windows * heads, c.block_q), windows, splits](
        latent=latent,
        bias=position_bias,
        scale_log2=scale * math.log2(math.e),
        latent_slot_stride=latent.stride(0),
        latent_position_stride=latent.stride(1),
        bias_stride=position_bias.stride(0),
        BLOCK_D=c.block_d,
        SLICES=c.slices,
        HAS_BIAS=reads.position_bias is not None,
        **launch_arguments(c, reads, queries, latent, parts),
    )
    return combine_and_map(parts, empty_by_head(queries), maps)
