"""Latent attention over a latent in float8 (e4m3), in one pass, on a GPU: Triton.

    softmax(Q~ Z^T * scale) Z          Q~ [N, h, d], Z [S, T, d] = factors [S, T] * float8 values

The algorithm is that of `latent`. Values are read two at a time, as words of 16 bits: matrix units
take their operands from shared memory in such words, so no byte is read alone. A word holds an even
and the next odd column; even and odd columns have separate products, and sums that are interleaved
at the end. The scores and the probabilities are multiplied by the factors.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.configurations import Configuration
from slimwhisper.kernels.gpu.combine import (
    LOG2_E,
    NOT_SPECIALIZED,
    PartialSums,
    combine_and_map,
    empty_by_head,
    softmax_step,
    split_positions,
    store_output,
    store_stats,
)
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.reads import ALL, Reads

E4M3_CAPABILITY = 89  # the lowest compute capability with an instruction for e4m3


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


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def split_latent8_kernel(
    queries,  # float16
    latent,  # words [S, T, d / 2]
    factors,  # [S, T] float32
    slots,
    block_table,  # [B, pages] int64: the pages of each window's text
    lengths,
    bias,  # [S, T] float32
    out,  # [N, h, d], written if there is one split
    sums,  # [B, group * h, splits, d] float32, written otherwise
    stats,  # [B, group * h, splits, 2] float32: maximum, in powers of 2; sum of weights
    scale_log2,  # scale * log2(e)
    heads,
    group,  # rows per window
    positions,
    splits,
    has_slots,
    lengths_per_window,
    factor_stride,  # strides, in elements
    query_row_stride,
    query_head_stride,
    out_row_stride,
    out_head_stride,
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
    CONVERT: tl.constexpr,
    PAGE: tl.constexpr,  # positions of a page; 0: without a block table
    HAS_BIAS: tl.constexpr,
):
    """Grid: blocks of queries (adjacent, so that they find the latent in L2), windows, splits."""
    window, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    window_queries = heads * group
    slot, begin, end = split_positions(
        lengths, slots, window, split, positions, splits, BLOCK_T, lengths_per_window, has_slots
    )

    query = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    valid = query < window_queries
    row, head = window * group + query // heads, query % heads
    query_pointers = queries + row * query_row_stride + head * query_head_stride
    column = tl.arange(0, BLOCK_D)
    WORDS: tl.constexpr = BLOCK_D // 2  # words per load
    word = tl.arange(0, WORDS)
    BLOCKS_D: tl.constexpr = D // BLOCK_D
    even_q = ()
    odd_q = ()
    even_acc = ()
    odd_acc = ()
    for i in tl.static_range(BLOCKS_D):
        q_block = tl.load(
            query_pointers[:, None] + (i * BLOCK_D + column)[None, :],
            mask=valid[:, None],
            other=0.0,
        )
        even_block, odd_block = tl.split(tl.reshape(q_block, [BLOCK_Q, WORDS, 2]))
        if SLICES > 1:
            even_block = tl.reshape(even_block, [BLOCK_Q, SLICES, WORDS // SLICES]).permute(1, 0, 2)
            odd_block = tl.reshape(odd_block, [BLOCK_Q, SLICES, WORDS // SLICES]).permute(1, 0, 2)
        even_q = even_q + (even_block,)
        odd_q = odd_q + (odd_block,)
        even_acc = even_acc + (tl.zeros([BLOCK_Q, WORDS], tl.float32),)
        odd_acc = odd_acc + (tl.zeros([BLOCK_Q, WORDS], tl.float32),)
    maximum = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_Q], tl.float32)

    for t in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        position = t + tl.arange(0, BLOCK_T)
        in_range = position < end
        if PAGE > 0:
            page_pointers = block_table + window * block_table_stride + position // PAGE
            slot_or_page = tl.load(page_pointers, mask=in_range, other=0).to(tl.int64)
            index = position % PAGE
        else:
            slot_or_page = slot
            index = position
        offset = slot_or_page * latent_slot_stride + index.to(tl.int64) * latent_position_stride
        tile_pointers = latent + offset[:, None] + word[None, :]
        words = ()
        for i in tl.static_range(BLOCKS_D):
            words = words + (tl.load(tile_pointers + i * WORDS, mask=in_range[:, None], other=0),)
        if SLICES > 1:  # each warp takes its slice of d, so that none reads the whole tile
            slice_scores = tl.zeros([SLICES, BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(BLOCKS_D):
                word_slices = tl.reshape(words[i], [BLOCK_T, SLICES, WORDS // SLICES]).permute(
                    1, 2, 0
                )
                even, odd = halves_of_e4m3(word_slices, CONVERT)
                slice_scores = tl.dot(even_q[i], even, slice_scores)
                slice_scores = tl.dot(odd_q[i], odd, slice_scores)
            scores = tl.sum(slice_scores, 0)
        else:
            scores = tl.zeros([BLOCK_Q, BLOCK_T], tl.float32)
            for i in tl.static_range(BLOCKS_D):
                even, odd = halves_of_e4m3(tl.trans(words[i]), CONVERT)
                scores = tl.dot(even_q[i], even, scores)
                scores = tl.dot(odd_q[i], odd, scores)
        # 2^8 times as much: the shifts' values are too small by that; and the probabilities times
        # the factors stay among the normal numbers of float16
        factor_pointers = factors + slot_or_page * factor_stride + index
        factor = tl.load(factor_pointers, mask=in_range, other=0.0) * 256.0
        scores = scores * factor[None, :]
        score_scale = scale_log2 * 0.00390625 if CONVERT else scale_log2
        scores = scores * score_scale
        if HAS_BIAS:
            position_bias = tl.load(bias + slot * bias_stride + position, mask=in_range, other=0.0)
            scores = scores + (position_bias * LOG2_E)[None, :]
        scores = tl.where(in_range[None, :], scores, float("-inf"))
        p, rescale, maximum, weight_sum = softmax_step(scores, maximum, weight_sum)
        p = (p * factor[None, :]).to(tl.float16)
        new_even_acc = ()
        new_odd_acc = ()
        for i in tl.static_range(BLOCKS_D):
            even, odd = halves_of_e4m3(words[i], CONVERT)
            new_even_acc = new_even_acc + (tl.dot(p, even, even_acc[i] * rescale[:, None]),)
            new_odd_acc = new_odd_acc + (tl.dot(p, odd, odd_acc[i] * rescale[:, None]),)
        even_acc = new_even_acc
        odd_acc = new_odd_acc

    out_pointers = out + row * out_row_stride + head * out_head_stride
    part = (window * window_queries + query) * splits + split
    for i in tl.static_range(BLOCKS_D):
        columns = (i * BLOCK_D + column)[None, :]
        sum_pointers = sums + part[:, None] * D + columns
        acc = tl.interleave(even_acc[i], odd_acc[i])
        if CONVERT:
            acc = acc * 0.00390625
        store_output(acc, weight_sum, out_pointers[:, None] + columns, sum_pointers, valid, splits)
    store_stats(stats, part, maximum, weight_sum, valid, splits)


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
        reads: which positions, with at most one length for each window, and `position_bias`; its
            `bias` is not used.
        maps: [h, d_k, d], every head's B_i^T, to be applied to the result.
    Returns:
        [N, h, d] float16, laid out head by head, or with `maps` [N, h, d_k] in their dtype; zeros
        for a window without positions.
    """
    assert latent.factors is not None
    rows, heads, width = queries.shape
    windows = reads.windows(len(latent))
    group, lengths_per_window = rows // windows, reads.lengths_per_window(windows)
    assert lengths_per_window <= 1
    out = empty_by_head(queries)
    parts = PartialSums.allocate(rows * heads, splits, width, queries.device)
    c = configuration
    words = latent.values.view(torch.uint16)
    blocks = triton.cdiv(group * heads, c.block_q)
    position_bias = reads.position_bias_tensor(queries)
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
        lengths_per_window,
        latent.factors.stride(0),
        *queries.stride()[:2],
        *out.stride()[:2],
        *words.stride()[:2],
        0 if reads.block_table is None else reads.block_table.stride(0),
        position_bias.stride(0),
        D=width,
        BLOCK_D=c.block_d,
        SLICES=c.slices,
        BLOCK_Q=c.block_q,
        BLOCK_T=c.block_t,
        STAGES=c.stages,
        CONVERT=_has_e4m3(queries.device),
        PAGE=0 if reads.block_table is None else words.shape[1],
        HAS_BIAS=reads.position_bias is not None,
        num_warps=c.warps,
        num_stages=c.stages,
    )
    return combine_and_map(parts, out, maps)


def _has_e4m3(device: torch.device) -> bool:
    """Whether the device has the instruction; Triton's interpreter has no instructions."""
    if triton.knobs.runtime.interpret:
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= E4M3_CAPABILITY
