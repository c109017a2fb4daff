"""Latent attention in one pass over the latent, on a GPU: Triton, split over positions.

    softmax(Q~ Z^T * scale) Z          Q~ [N, h, d], Z [S, T, d]

A program takes some queries of one window and one part of its positions. It reads a tile of the
latent once, for the scores and for the weighted sum, and keeps a running maximum and sum (online
softmax, arXiv 1805.02867); `combine` combines the parts (flash-decoding). A latent kept in float8
has a kernel of its own, `latent8`.
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
    LOG2_E,
    Parts,
    empty_by_head,
    finish,
    part_of_positions,
    weigh,
)
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.reads import ALL, Reads


@triton.jit(do_not_specialize=GENERAL)
def split_latent_kernel(
    queries,
    latent,  # [S, T, d]
    slots,
    table,  # [B, pages] int64: the pages of each window's text
    lengths,
    bias,  # [S, T] float32
    sums,  # [B, group * h, splits, d] float32
    stats,  # [B, group * h, splits, 2] float32: maximum, in powers of 2, and weight
    scale_log2,  # scale * log2(e)
    heads,
    group,  # rows per window
    positions,
    splits,
    has_slots,
    lengths_each,
    query_row,  # strides, in elements
    query_head,
    latent_slot,
    latent_position,
    table_window,
    bias_slot,
    D: tl.constexpr,
    PIECE: tl.constexpr,  # columns per load, a power of two that divides D
    SLICES: tl.constexpr,  # of a piece, one per warp; 1: plain products
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    PAGE: tl.constexpr,  # positions of a page; 0: without a table
    HAS_BIAS: tl.constexpr,
    HAS_LIMITS: tl.constexpr,  # a window's rows end one after the other
    PRECISION: tl.constexpr,
):
    """Grid: blocks of queries (adjacent, so that they find the latent in L2), windows, splits."""
    window, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    total = heads * group
    slot, begin, end = part_of_positions(
        lengths, slots, window, split, positions, splits, BLOCK_T, lengths_each, has_slots
    )

    asked = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    real = asked < total
    row, head = window * group + asked // heads, asked % heads
    at = queries + row * query_row + head * query_head
    column = tl.arange(0, PIECE)
    pieces: tl.constexpr = D // PIECE
    q = ()
    mix = ()
    for i in tl.static_range(pieces):
        part = tl.load(at[:, None] + (i * PIECE + column)[None, :], mask=real[:, None], other=0.0)
        if SLICES > 1:
            part = tl.reshape(part, [BLOCK_Q, SLICES, PIECE // SLICES]).permute(1, 0, 2)
        q = q + (part,)
        mix = mix + (tl.zeros([BLOCK_Q, PIECE], tl.float32),)
    best = tl.full([BLOCK_Q], LEAST if HAS_LIMITS else float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_Q], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        place = t + tl.arange(0, BLOCK_T)
        seen = place < end
        if PAGE > 0:
            at_page = table + window * table_window + place // PAGE
            page = tl.load(at_page, mask=seen, other=0).to(tl.int64)
            position = page * latent_slot + (place % PAGE) * latent_position
        else:
            position = slot * latent_slot + place.to(tl.int64) * latent_position
        tile = latent + position[:, None] + column[None, :]
        z = ()
        for i in tl.static_range(pieces):
            z = z + (tl.load(tile + i * PIECE, mask=seen[:, None], other=0.0),)
        if SLICES > 1:  # each warp takes its slice of d, so that none reads the whole tile
            sliced = tl.zeros([SLICES, BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(pieces):
                cut = tl.reshape(z[i], [BLOCK_T, SLICES, PIECE // SLICES]).permute(1, 2, 0)
                sliced = tl.dot(q[i], cut, sliced, input_precision=PRECISION)
            scores = tl.sum(sliced, 0)
        else:
            scores = tl.zeros([BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(pieces):
                scores = tl.dot(q[i], tl.trans(z[i]), scores, input_precision=PRECISION)
        scores = scores * scale_log2
        if HAS_BIAS:
            added = tl.load(bias + slot * bias_slot + place, mask=seen, other=0.0)
            scores = scores + (added * LOG2_E)[None, :]
        counted = seen[None, :]
        if HAS_LIMITS:
            first = tl.load(lengths + window * lengths_each).to(tl.int32)
            least = tl.where(seen, place - first + 1, FAR) * heads  # the first query that counts it
            counted = least[None, :] <= asked[:, None]
        scores = tl.where(counted, scores, float("-inf"))
        p, shrink, best, weight = weigh(scores, best, weight)
        fresh = ()
        for i in tl.static_range(pieces):
            shrunk = mix[i] * shrink[:, None]
            shrunk = tl.dot(p.to(z[i].dtype), z[i], shrunk, input_precision=PRECISION)
            fresh = fresh + (shrunk,)
        mix = fresh

    # Also of one split: its division and its own address would take registers that d = 1280 needs
    part_of = (window * total + asked) * splits + split
    for i in tl.static_range(pieces):
        columns = (i * PIECE + column)[None, :]
        sums_at = sums + part_of[:, None] * D + columns
        tl.store(sums_at, mix[i], mask=real[:, None])
    tl.store(stats + part_of * 2, best, mask=real)
    tl.store(stats + part_of * 2 + 1, weight, mask=real)


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
    windows = reads.windows(len(latent))
    group = rows // windows
    out = empty_by_head(queries)
    parts = Parts.allocate(rows * heads, splits, width, queries.device, one=True)
    c = configuration
    blocks = triton.cdiv(group * heads, c.block_q)
    position_bias = reads.bias_of_positions(queries)
    split_latent_kernel[blocks, windows, splits](
        queries,
        latent,
        *reads.tensors(queries),
        position_bias,
        parts.sums,
        parts.stats,
        scale * math.log2(math.e),
        heads,
        group,
        reads.positions(latent.shape[1]),
        splits,
        int(reads.slots is not None),
        reads.lengths_each(windows),
        *queries.stride()[:2],
        *latent.stride()[:2],
        0 if reads.table is None else reads.table.stride(0),
        position_bias.stride(0),
        D=width,
        PIECE=c.piece,
        SLICES=c.slices,
        BLOCK_Q=c.block_q,
        BLOCK_T=c.block_t,
        STAGES=c.stages,
        PAGE=0 if reads.table is None else latent.shape[1],
        HAS_BIAS=reads.position_bias is not None,
        HAS_LIMITS=reads.lengths_each(windows) > 1,
        PRECISION=c.precision,
        num_warps=c.warps,
        num_stages=c.stages,
    )
    return finish(parts, out, maps)


def split_latent_reference(
    queries: Tensor,
    latent: Latent,
    scale: float,
    reads: Reads = ALL,
) -> Tensor:
    """The same from the definition, window by window, in at least float32: [N, h, d] -> same.

    Of a float8 latent too.
    """
    windows = reads.windows(len(latent))
    wide = torch.promote_types(queries.dtype, torch.float32)
    out = torch.zeros_like(queries)
    for b, asked in enumerate(queries.unflatten(0, (windows, -1))):
        slot = b if reads.slots is None else int(reads.slots[b])
        z = latent[slot : slot + 1].plain(wide)[0].to(wide)[: reads.longest(b, windows)]
        scores = asked.to(wide) @ z.T * scale
        if reads.position_bias is not None:
            scores = scores + reads.position_bias[slot, : len(z)]
        weights = reads.seen(scores, b, windows).softmax(dim=-1)
        out.unflatten(0, (windows, -1))[b] = weights @ z
    return out
