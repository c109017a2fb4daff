"""Combines the parts of a split attention on a GPU: the second step of flash-decoding.

Each part has its weighted sum, its largest score and its sum of weights, all in float32; an empty
part has the maximum -inf and the sum of weights 0.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slimwhisper.kernels.attention import Reads
from slimwhisper.kernels.configurations import Configuration


@dataclass(frozen=True, slots=True)
class PartialSums:
    """The results of the programs of a split attention, for `combine`."""

    sums: Tensor  # [M, splits, d] float32: sum of exp2(score - maximum) times the value
    stats: Tensor  # [M, splits, 2] float32: the maximum, in powers of 2, and the sum of weights

    @property
    def splits(self) -> int:
        """How many parts each query has."""
        return self.sums.shape[1]

    @staticmethod
    def allocate(queries: int, splits: int, width: int, device: torch.device) -> "PartialSums":
        """Buffers for M queries."""
        return PartialSums(
            torch.empty((queries, splits, width), dtype=torch.float32, device=device),
            torch.empty((queries, splits, 2), dtype=torch.float32, device=device),
        )


def empty_by_head(queries: Tensor) -> Tensor:
    """Like queries [N, h, d], laid out head by head, as the heads' maps are applied."""
    by_head = queries.transpose(0, 1)
    return torch.empty_like(by_head, memory_format=torch.contiguous_format).transpose(0, 1)


def launch_arguments(
    c: Configuration, reads: Reads, queries: Tensor, cache: Tensor, parts: PartialSums
) -> dict[str, Any]:
    """What the kernels of split attentions have in common, by name. cache: [S, ..., T, d]."""
    windows, length = reads.windows(len(cache)), cache.shape[-2]
    slots, block_table, lengths = reads.tensors(queries)
    return {
        "queries": queries,
        "sums": parts.sums,
        "stats": parts.stats,
        "slots": slots,
        "block_table": block_table,
        "lengths": lengths,
        "heads": queries.shape[1],
        "group": len(queries) // windows,
        "positions": reads.positions(length),
        "splits": parts.splits,
        "has_slots": int(reads.slots is not None),
        "has_lengths": int(reads.lengths is not None),
        "query_row_stride": queries.stride(0),
        "query_head_stride": queries.stride(1),
        "block_table_stride": 0 if reads.block_table is None else block_table.stride(0),
        "D": queries.shape[2],
        "BLOCK_Q": c.block_q,
        "BLOCK_T": c.block_t,
        "STAGES": c.stages,
        "PAGE": 0 if reads.block_table is None else length,
        "PRECISION": c.precision,
        "num_warps": c.warps,
        "num_stages": c.stages,
    }


# Arguments that are used outside the loops only. Triton would compile a kernel again where one of
# them is 1 or a multiple of 16. `has_slots` and `has_lengths` are 0 or 1: Triton 3.6 interprets no
# booleans.
NOT_SPECIALIZED = (
    *("heads", "group", "positions", "rows", "splits", "factor_stride", "bias_stride"),
    *("has_slots", "has_lengths"),
)

LOG2_E = tl.constexpr(math.log2(math.e))  # scores are in powers of 2


@triton.jit
def split_positions(
    lengths, slots, window, split, positions, splits, BLOCK_T, has_lengths, has_slots
):
    """The slot of a window, and the positions [begin, end) that one split of it reads."""
    length, slot = tl.cast(positions, tl.int32), window
    if has_lengths:
        length = tl.load(lengths + window).to(tl.int32)
    if has_slots:
        slot = tl.load(slots + window).to(tl.int64)
    size = tl.cdiv(tl.cdiv(length, splits), BLOCK_T) * BLOCK_T
    begin = split * size
    return slot, begin, tl.minimum(begin + size, length)


@triton.jit
def offsets_of(pages, slot, position, in_range, slot_stride, position_stride, PAGE: tl.constexpr):
    """Where the positions of a tile lie in the cache, in elements: in a slot, or in the window's
    `pages` of PAGE positions, if that is not 0.
    """
    if PAGE > 0:
        page = tl.load(pages + position // PAGE, mask=in_range, other=0).to(tl.int64)
        return page * slot_stride + (position % PAGE) * position_stride
    return slot * slot_stride + position.to(tl.int64) * position_stride


@triton.jit
def softmax_step(scores, maximum, weight_sum):
    """Adds a tile's scores [Q, T], in powers of 2, to an online softmax (arXiv 1805.02867).

    The maximum begins with -inf; a tile has a position.
    Returns the tile's weights [Q, T] and, each [Q], the factor for the older sums, the new maximum
    and the new sum of weights.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    rescale = tl.exp2(maximum - new_maximum)
    p = tl.exp2(scores - new_maximum[:, None])
    return p, rescale, new_maximum, weight_sum * rescale + tl.sum(p, 1)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def combine_kernel(
    sums,
    stats,
    out,
    heads,
    splits,
    out_row_stride,  # in elements
    out_head_stride,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,  # splits, or a few more
):
    """Grid: queries, in the order of `sums`, which is that of (row, head)."""
    query = tl.program_id(0).to(tl.int64)
    maximum = tl.full([], float("-inf"), tl.float32)
    for split in tl.static_range(MAX_SPLITS):
        part_stats = stats + (query * splits + split) * 2
        part_maximum = tl.load(part_stats, mask=split < splits, other=float("-inf"))
        maximum = tl.maximum(maximum, part_maximum)
    maximum = tl.where(maximum > float("-inf"), maximum, 0.0)  # no position: no weight either
    column = tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_D], tl.float32)
    weight_sum = tl.zeros([], tl.float32)
    for split in tl.range(0, splits):
        part = query * splits + split
        weight = tl.load(stats + part * 2 + 1)
        # without a weight, its sum was never written; no branch, so that all loads are in flight
        part_maximum = tl.load(stats + part * 2, mask=weight > 0, other=float("-inf"))
        factor = tl.exp2(part_maximum - maximum)
        written = column < tl.where(weight > 0, D, 0)
        total += factor * tl.load(sums + part * D + column, mask=written, other=0.0)
        weight_sum += factor * weight
    total = total / tl.where(weight_sum > 0, weight_sum, 1.0)
    out_pointers = out + (query // heads) * out_row_stride + (query % heads) * out_head_stride
    tl.store(out_pointers + column, total.to(out.dtype.element_ty), mask=column < D)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def combine_mapped_kernel(
    sums,
    stats,
    maps,  # [h, WIDTH, D], contiguous
    out,
    rows,
    heads,
    splits,
    out_row_stride,  # in elements
    out_head_stride,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,  # divides D
    MAX_SPLITS: tl.constexpr,  # splits, or a few more
    PRECISION: tl.constexpr,
):
    """Grid: blocks of rows, heads."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = row < rows
    part = (row * heads + head) * splits
    maximum = tl.full([BLOCK_N], float("-inf"), tl.float32)
    for split in tl.static_range(MAX_SPLITS):
        written = row < tl.where(split < splits, rows, 0)
        part_maximum = tl.load(stats + (part + split) * 2, mask=written, other=float("-inf"))
        maximum = tl.maximum(maximum, part_maximum)
    maximum = tl.where(maximum > float("-inf"), maximum, 0.0)  # no position: no weight either
    weight_sum = tl.zeros([BLOCK_N], tl.float32)
    factors = ()
    for split in tl.static_range(MAX_SPLITS):
        part_stats = stats + (part + split) * 2
        written = row < tl.where(split < splits, rows, 0)
        weight = tl.load(part_stats + 1, mask=written, other=0.0)
        # without a weight, its sum was never written
        factor = tl.exp2(tl.load(part_stats, mask=written, other=0.0) - maximum)
        factors = factors + (tl.where(weight > 0, factor, 0.0),)
        weight_sum += factors[split] * weight
    inverse = 1.0 / tl.where(weight_sum > 0, weight_sum, 1.0)
    column = tl.arange(0, BLOCK_D)
    width = tl.arange(0, WIDTH)
    output = tl.zeros([BLOCK_N, WIDTH], tl.float32)
    for begin in range(0, D, BLOCK_D):
        acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for split in tl.static_range(MAX_SPLITS):
            sum_pointers = sums + (part + split)[:, None] * D + begin + column[None, :]
            weighted = (factors[split] > 0)[:, None]
            acc += factors[split][:, None] * tl.load(sum_pointers, mask=weighted, other=0.0)
        map_pointers = maps + (head * WIDTH + width)[:, None] * D + begin + column[None, :]
        map_block = tl.load(map_pointers)
        acc = (acc * inverse[:, None]).to(map_block.dtype)
        output = tl.dot(acc, tl.trans(map_block), output, input_precision=PRECISION)
    out_pointers = out + row[:, None] * out_row_stride + head * out_head_stride + width[None, :]
    tl.store(out_pointers, output.to(out.dtype.element_ty), mask=valid[:, None])


ROWS = 16  # of a program of `combine_mapped`: the size of the matrix units
BLOCK_D = 64  # columns of its step
# of `combine_mapped`, at most: three steps' parts then fit in shared memory, loaded while others
# are used. With more, its few programs would wait for each; `combine` has one program a query, and
# cuBLAS multiplies by the maps.
MAX_MAPPED_SPLITS = 4


def combine_mapped(parts: PartialSums, maps: Tensor, out: Tensor) -> Tensor:
    """The combined parts of N h queries times every head's map: fills `out` [N, h, d_k].

    maps: [h, d_k, d], contiguous, in the dtype of `out`; d_k a power of two, at least 16.
    """
    rows, heads, width = out.shape
    d = maps.shape[2]
    combine_mapped_kernel[triton.cdiv(rows, ROWS), heads](
        parts.sums,
        parts.stats,
        maps,
        out,
        rows,
        heads,
        parts.splits,
        *out.stride()[:2],
        D=d,
        WIDTH=width,
        BLOCK_N=ROWS,
        BLOCK_D=min(d & -d, BLOCK_D),
        MAX_SPLITS=triton.next_power_of_2(parts.splits),
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    return out


def combine(parts: PartialSums, out: Tensor) -> Tensor:
    """Fill `out` [N, h, d] from the parts of N h queries, if there are any; zeros where no part has
    a position.
    """
    if not len(parts.sums):
        return out
    _, heads, width = out.shape
    combine_kernel[(parts.sums.shape[0],)](
        parts.sums,
        parts.stats,
        out,
        heads,
        parts.splits,
        *out.stride()[:2],
        D=width,
        BLOCK_D=triton.next_power_of_2(width),
        MAX_SPLITS=triton.next_power_of_2(parts.splits),
        num_warps=4,
    )
    return out


def combine_and_map(parts: PartialSums, out: Tensor, maps: Tensor | None) -> Tensor:
    """The result of a split attention, which is in `parts`, or in `out` if these are empty:
    [N, h, d], or with maps [h, d_k, d] each head's times its map, [N, h, d_k].
    """
    if maps is None:
        return combine(parts, out)
    mapped = maps.new_empty(*out.shape[:2], maps.shape[1])
    if len(parts.sums) and parts.splits <= MAX_MAPPED_SPLITS:
        return combine_mapped(parts, maps, mapped)
    heads = combine(parts, out).transpose(0, 1).to(maps.dtype)
    torch.bmm(heads, maps.transpose(1, 2), out=mapped.transpose(0, 1))
    return mapped
