"""Latent attention over a latent kept in float8 (e4m3), in one pass, on a GPU: Triton.

    softmax(Q~ Z^T * scale) Z          Q~ [N, h, d], Z [S, T, d] = factors [S, T] * float8 values

The plan is that of `latent`. Values are read two at a time, as words of 16 bits: matrix
units take their operands from shared memory in such words, so nothing is read byte by byte. A word
holds an even and the next odd column; each kind has its own products, and sums that are interleaved
at the end. The scores and the probabilities are multiplied by the factors.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.configurations import Configuration
from slimwhisper.kernels.gpu.combine import (
    GENERAL,
    LOG2_E,
    Parts,
    empty_by_head,
    finish,
    part_of_positions,
    weigh,
    write_mix,
    write_stats,
)
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.reads import ALL, Reads

CONVERTS = 89  # the least compute capability that has an instruction for e4m3


# PTX: two words of two e4m3 each -> their low and their high values, two float16 each
CONVERSION = tl.constexpr("""{
    .reg .b16 a, b;
    .reg .b32 x, y;
    mov.b32 {a, b}, $2;
    cvt.rn.f16x2.e4m3x2 x, a;
    cvt.rn.f16x2.e4m3x2 y, b;
    prmt.b32 $0, x, y, 0x5410;
    prmt.b32 $1, x, y, 0x7632;
}""")


@triton.jit
def halves_of_e4m3(words, CONVERT: tl.constexpr):
    """Words of two e4m3 -> the low and the high one as float16.

    CONVERT: their value, by an instruction; else 2^-8 times their value, by moving bits. Both are
    exact.
    """
    if CONVERT:
        low, high = tl.inline_asm_elementwise(
            CONVERSION, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    else:
        low = ((words & 0x80) << 8) | ((words & 0x7F) << 7)
        high = (words & 0x8000) | ((words & 0x7F00) >> 1)
        low = low.to(tl.uint16).to(tl.float16, bitcast=True)
        high = high.to(tl.uint16).to(tl.float16, bitcast=True)
    return low, high


@triton.jit(do_not_specialize=GENERAL)
def split_latent8_kernel(
    queries,  # float16
    latent,  # words [S, T, d / 2]
    factors,  # [S, T] float32
    slots,
    table,  # [B, pages] int64: the pages of each window's text
    lengths,
    bias,  # [S, T] float32
    out,  # [N, h, d], written if there is one split
    sums,  # [B, group * h, splits, d] float32, written otherwise
    stats,  # [B, group * h, splits, 2] float32: maximum, in powers of 2, and weight
    scale_log2,  # scale * log2(e)
    heads,
    group,  # rows per window
    positions,
    splits,
    has_slots,
    lengths_each,
    factor_slot,  # strides, in elements
    query_row,
    query_head,
    out_row,
    out_head,
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
    CONVERT: tl.constexpr,
    PAGE: tl.constexpr,  # positions of a page; 0: without a table
    HAS_BIAS: tl.constexpr,
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
    HALF: tl.constexpr = PIECE // 2  # words per load
    word = tl.arange(0, HALF)
    pieces: tl.constexpr = D // PIECE
    even_q = ()
    odd_q = ()
    even_mix = ()
    odd_mix = ()
    for i in tl.static_range(pieces):
        part = tl.load(at[:, None] + (i * PIECE + column)[None, :], mask=real[:, None], other=0.0)
        even_part, odd_part = tl.split(tl.reshape(part, [BLOCK_Q, HALF, 2]))
        if SLICES > 1:
            even_part = tl.reshape(even_part, [BLOCK_Q, SLICES, HALF // SLICES]).permute(1, 0, 2)
            odd_part = tl.reshape(odd_part, [BLOCK_Q, SLICES, HALF // SLICES]).permute(1, 0, 2)
        even_q = even_q + (even_part,)
        odd_q = odd_q + (odd_part,)
        even_mix = even_mix + (tl.zeros([BLOCK_Q, HALF], tl.float32),)
        odd_mix = odd_mix + (tl.zeros([BLOCK_Q, HALF], tl.float32),)
    best = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_Q], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        place = t + tl.arange(0, BLOCK_T)
        seen = place < end
        if PAGE > 0:
            at_page = table + window * table_window + place // PAGE
            holder = tl.load(at_page, mask=seen, other=0).to(tl.int64)
            inside = place % PAGE
        else:
            holder = slot
            inside = place
        position = holder * latent_slot + inside.to(tl.int64) * latent_position
        tile = latent + position[:, None] + word[None, :]
        words = ()
        for i in tl.static_range(pieces):
            words = words + (tl.load(tile + i * HALF, mask=seen[:, None], other=0),)
        if SLICES > 1:  # each warp takes its slice of d, so that none reads the whole tile
            sliced = tl.zeros([SLICES, BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(pieces):
                cut = tl.reshape(words[i], [BLOCK_T, SLICES, HALF // SLICES]).permute(1, 2, 0)
                even, odd = halves_of_e4m3(cut, CONVERT)
                sliced = tl.dot(even_q[i], even, sliced)
                sliced = tl.dot(odd_q[i], odd, sliced)
            scores = tl.sum(sliced, 0)
        else:
            scores = tl.zeros([BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(pieces):
                even, odd = halves_of_e4m3(tl.trans(words[i]), CONVERT)
                scores = tl.dot(even_q[i], even, scores)
                scores = tl.dot(odd_q[i], odd, scores)
        # 2^8 times as much: the shifts' values are too small by that; and the probabilities times
        # the factors stay among the normal numbers of float16
        factor = tl.load(factors + holder * factor_slot + inside, mask=seen, other=0.0) * 256.0
        scores = scores * factor[None, :]
        scale_of_scores = scale_log2 * 0.00390625 if CONVERT else scale_log2
        scores = scores * scale_of_scores
        if HAS_BIAS:
            added = tl.load(bias + slot * bias_slot + place, mask=seen, other=0.0)
            scores = scores + (added * LOG2_E)[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        p, shrink, best, weight = weigh(scores, best, weight)
        p = (p * factor[None, :]).to(tl.float16)
        even_fresh = ()
        odd_fresh = ()
        for i in tl.static_range(pieces):
            even, odd = halves_of_e4m3(words[i], CONVERT)
            even_fresh = even_fresh + (tl.dot(p, even, even_mix[i] * shrink[:, None]),)
            odd_fresh = odd_fresh + (tl.dot(p, odd, odd_mix[i] * shrink[:, None]),)
        even_mix = even_fresh
        odd_mix = odd_fresh

    to = out + row * out_row + head * out_head
    part_of = (window * total + asked) * splits + split
    for i in tl.static_range(pieces):
        columns = (i * PIECE + column)[None, :]
        sums_at = sums + part_of[:, None] * D + columns
        mix = tl.interleave(even_mix[i], odd_mix[i])
        if CONVERT:
            mix = mix * 0.00390625
        write_mix(mix, weight, to[:, None] + columns, sums_at, real, splits)
    write_stats(stats, part_of, best, weight, real, splits)


def split_latent8(
    queries: Tensor,
    latent: Latent,
    scale: float,
    configuration: Configuration,
    splits: int,
    reads: Reads = ALL,
    maps: Tensor | None = None,
) -> Tensor:
    """Attend with every head's folded query to its window's float8 latent, on the device.

    Arguments:
        queries: [N, h, d] float16, any strides with a contiguous last dimension; N is a multiple of
            B, the number of windows, and the rows of one window are adjacent.
        latent: values [S, T, d] float8_e4m3fn, likewise strided, rows aligned to 16 bytes; factors
            [S, T] float32 contiguous along T; S = B unless `reads` has slots.
        scale: factor on the scores.
        reads: which positions, without lengths of rows, and `position_bias`; its
            `bias` is not used.
        maps: [h, d_k, d], every head's B_i^T, to be applied to the result.
    Returns:
        [N, h, d] float16, laid out head by head, or with `maps` [N, h, d_k] in their dtype; zeros
        for a window without positions.
    """
    assert latent.factors is not None
    rows, heads, width = queries.shape
    windows = reads.windows(len(latent))
    group, each = rows // windows, reads.lengths_each(windows)
    assert each <= 1
    out = empty_by_head(queries)
    parts = Parts.allocate(rows * heads, splits, width, queries.device)
    c = configuration
    words = latent.values.view(torch.uint16)
    blocks = triton.cdiv(group * heads, c.block_q)
    position_bias = reads.bias_of_positions(queries)
    split_latent8_kernel[blocks, windows, splits](
        queries,
        words,
        latent.factors,
        *reads.tensors(queries),
        position_bias,
        out,
        parts.sums,
        parts.stats,
        scale * math.log2(math.e),
        heads,
        group,
        reads.positions(words.shape[1]),
        splits,
        int(reads.slots is not None),
        each,
        latent.factors.stride(0),
        *queries.stride()[:2],
        *out.stride()[:2],
        *words.stride()[:2],
        0 if reads.table is None else reads.table.stride(0),
        position_bias.stride(0),
        D=width,
        PIECE=c.piece,
        SLICES=c.slices,
        BLOCK_Q=c.block_q,
        BLOCK_T=c.block_t,
        STAGES=c.stages,
        CONVERT=_converts(queries.device),
        PAGE=0 if reads.table is None else words.shape[1],
        HAS_BIAS=reads.position_bias is not None,
        num_warps=c.warps,
        num_stages=c.stages,
    )
    return finish(parts, out, maps)


def _converts(device: torch.device) -> bool:
    """Whether the device has the instruction; Triton's interpreter has no instructions."""
    if triton.knobs.runtime.interpret:
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= CONVERTS
