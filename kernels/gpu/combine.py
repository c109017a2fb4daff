"""Combines the parts of a split attention on a GPU: the second step of flash-decoding.

Each part has its weighted sum, its largest score and the sum of its weights, all in float32; an
empty part has the weight 0 and the maximum -inf.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """What the programs of a split attention leave for `combine`."""

    sums: Tensor  # [M, splits, d] float32: sum of exp2(score - maximum) times the value
    stats: Tensor  # [M, splits, 2] float32: the maximum, in powers of 2, and the sum of weights

    @property
    def splits(self) -> int:
        """How many parts each query has."""
        return self.sums.shape[1]

    @staticmethod
    def allocate(
        queries: int, splits: int, width: int, device: torch.device, one: bool = False
    ) -> "Parts":
        """Empty buffers for M queries; for none with one split, unless a kernel stores that too."""
        if splits == 1 and not one:
            queries = 0
        return Parts(
            torch.empty((queries, splits, width), dtype=torch.float32, device=device),
            torch.empty((queries, splits, 2), dtype=torch.float32, device=device),
        )


def empty_by_head(queries: Tensor) -> Tensor:
    """Like queries [N, h, d], laid out head by head, as the heads' maps are applied."""
    rows, heads, width = queries.shape
    out = torch.empty((heads, rows, width), dtype=queries.dtype, device=queries.device)
    return out.transpose(0, 1)


# Numbers that are used outside the loops only. Triton would compile a kernel again where one of
# them is 1 or a multiple of 16, so each kernel is told not to. `has_slots` is 0 or 1: Triton 3.6
# interprets no booleans.
GENERAL = (
    *("heads", "group", "positions", "rows", "splits", "factor_slot", "bias_slot"),
    *("has_slots", "lengths_each"),
)

FAR = tl.constexpr(1 << 20)  # beyond all rows of a window
LEAST = tl.constexpr(-3e38)  # below all scores, and finite: what is -inf then weighs 0, not NaN
LOG2_E = tl.constexpr(math.log2(math.e))  # scores are in powers of 2


@triton.jit
def part_of_positions(
    lengths, slots, window, split, positions, splits, BLOCK_T, lengths_each, has_slots
):
    """The slot of a window, and the positions [begin, end) that one split of it reads.

    lengths_each: as `Reads.lengths_each`; the last one of a window is its largest.
    """
    length, slot = tl.cast(positions, tl.int32), window
    if lengths_each:
        length = tl.load(lengths + window * lengths_each + (lengths_each - 1)).to(tl.int32)
    if has_slots:
        slot = tl.load(slots + window).to(tl.int64)
    share = tl.cdiv(tl.cdiv(length, splits), BLOCK_T) * BLOCK_T
    begin = split * share
    return slot, begin, tl.minimum(begin + share, length)


@triton.jit
def weigh(scores, best, weight):
    """Adds a tile's scores [Q, T], in powers of 2, to an online softmax (arXiv 1805.02867).

    The maximum begins with -inf, or with `LEAST` where all scores of a query may be -inf.
    Returns the tile's weights [Q, T] and, each [Q], the factor that older sums shrink by, the new
    maximum and the new sum of weights.
    """
    new = tl.maximum(best, tl.max(scores, 1))
    shrink = tl.exp2(best - new)
    p = tl.exp2(scores - new[:, None])
    return p, shrink, new, weight * shrink + tl.sum(p, 1)


@triton.jit
def write_mix(mix, weight, out_at, sums_at, real, splits):
    """Store a weighted sum [Q, n]: divided, in the result, or undivided, in the part's sums."""
    if splits == 1:
        share = 1.0 / tl.where(weight > 0, weight, 1.0)  # no position: zeros
        whole = (mix * share[:, None]).to(out_at.dtype.element_ty)
        tl.store(out_at, whole, mask=real[:, None])
    else:
        tl.store(sums_at, mix, mask=real[:, None])


@triton.jit
def write_stats(stats, part, best, weight, real, splits):
    """Store what `combine` needs of a part: maximum and weight, each [Q]."""
    if splits > 1:
        tl.store(stats + part * 2, best, mask=real)
        tl.store(stats + part * 2 + 1, weight, mask=real)


@triton.jit(do_not_specialize=GENERAL)
def combine_kernel(
    sums,
    stats,
    out,
    heads,
    splits,
    out_row,  # strides, in elements
    out_head,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MOST: tl.constexpr,  # splits, or a few more
):
    """Grid: queries, in the order of `sums`, which is that of (row, head)."""
    query = tl.program_id(0).to(tl.int64)
    best = tl.full([], float("-inf"), tl.float32)
    for split in tl.static_range(MOST):
        at = stats + (query * splits + split) * 2
        best = tl.maximum(best, tl.load(at, mask=split < splits, other=float("-inf")))
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    total = tl.zeros([BLOCK_D], tl.float32)
    weight = tl.zeros([], tl.float32)
    for split in tl.static_range(MOST):
        part = query * splits + split
        own = tl.load(stats + part * 2 + 1, mask=split < splits, other=0.0)
        if own > 0:  # else its sum was never written
            factor = tl.exp2(tl.load(stats + part * 2) - best)
            total += factor * tl.load(sums + part * D + column, mask=inside, other=0.0)
            weight += factor * own
    total = total / tl.where(weight > 0, weight, 1.0)
    to = out + (query // heads) * out_row + (query % heads) * out_head
    tl.store(to + column, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=GENERAL)
def combine_mapped_kernel(
    sums,
    stats,
    maps,  # [h, WIDTH, D], contiguous
    out,
    rows,
    heads,
    splits,
    out_row,  # strides, in elements
    out_head,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,  # divides D
    MOST: tl.constexpr,  # splits, or a few more
    PRECISION: tl.constexpr,
):
    """Grid: blocks of rows, heads."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = row < rows
    part = (row * heads + head) * splits
    best = tl.full([BLOCK_N], float("-inf"), tl.float32)
    for split in tl.static_range(MOST):
        held = row < tl.where(split < splits, rows, 0)
        own = tl.load(stats + (part + split) * 2, mask=held, other=float("-inf"))
        best = tl.maximum(best, own)
    best = tl.where(best > float("-inf"), best, 0.0)  # no position: no weight either
    weight = tl.zeros([BLOCK_N], tl.float32)
    factors = ()
    for split in tl.static_range(MOST):
        at, held = stats + (part + split) * 2, row < tl.where(split < splits, rows, 0)
        own = tl.load(at + 1, mask=held, other=0.0)
        # where no weight is, the sum was never written
        shrink = tl.exp2(tl.load(at, mask=held, other=0.0) - best)
        factors = factors + (tl.where(own > 0, shrink, 0.0),)
        weight += factors[split] * own
    share = 1.0 / tl.where(weight > 0, weight, 1.0)
    column = tl.arange(0, BLOCK_D)
    width = tl.arange(0, WIDTH)
    mapped = tl.zeros([BLOCK_N, WIDTH], tl.float32)
    for begin in range(0, D, BLOCK_D):
        mix = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for split in tl.static_range(MOST):
            at_sum = sums + (part + split)[:, None] * D + begin + column[None, :]
            used = (factors[split] > 0)[:, None]
            mix += factors[split][:, None] * tl.load(at_sum, mask=used, other=0.0)
        own_map = tl.load(maps + (head * WIDTH + width)[:, None] * D + begin + column[None, :])
        mix = (mix * share[:, None]).to(own_map.dtype)
        mapped = tl.dot(mix, tl.trans(own_map), mapped, input_precision=PRECISION)
    to = out + row[:, None] * out_row + head * out_head + width[None, :]
    tl.store(to, mapped.to(out.dtype.element_ty), mask=real[:, None])


ROWS = 16  # of a program of `combine_mapped`: the least that the matrix units take
BLOCK_D = 64  # columns of its step; with more, 16 parts would not fit into the registers


def stages_of(splits: int) -> int:
    """Steps of `combine_mapped` in flight: all parts of each are in shared memory."""
    return 3 if splits <= 4 else 1


def combine_mapped(parts: Parts, maps: Tensor, out: Tensor) -> Tensor:
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
        MOST=triton.next_power_of_2(parts.splits),
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=stages_of(parts.splits),
    )
    return out


def combine(parts: Parts, out: Tensor) -> Tensor:
    """Fill `out` [N, h, d] from the parts of N h queries; zeros where no part has a position."""
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
        MOST=triton.next_power_of_2(parts.splits),
        num_warps=4,
    )
    return out


def finish(parts: Parts, out: Tensor, maps: Tensor | None) -> Tensor:
    """What a split attention left, in `parts` or else in `out` [N, h, d], as the caller
    wants it: [N, h, d], or with maps [h, d_k, d] every head's sum times its map, [N, h, d_k].
    """
    if maps is None:
        return combine(parts, out) if len(parts.sums) else out
    shape = (*out.shape[:2], maps.shape[1])
    mapped = torch.empty(shape, dtype=maps.dtype, device=maps.device)
    if len(parts.sums):
        return combine_mapped(parts, maps, mapped)
    mixed = out.transpose(0, 1).to(maps.dtype)
    torch.bmm(mixed, maps.transpose(1, 2), out=mapped.transpose(0, 1))
    return mapped


def combine_reference(parts: Parts, out: Tensor) -> Tensor:
    """The same in PyTorch, in float64: fills `out` [N, h, d]."""
    best, weights = parts.stats.double().unbind(-1)
    held = weights > 0
    top = best.masked_fill(~held, float("-inf")).amax(dim=1, keepdim=True)
    factors = torch.where(held, torch.exp2(best - top), 0.0)
    sums = parts.sums.double().masked_fill(~held[..., None], 0.0)
    total = (factors[..., None] * sums).sum(dim=1)
    weight = (factors * weights.masked_fill(~held, 0.0)).sum(dim=1, keepdim=True)
    return out.copy_((total / weight.where(weight > 0, 1.0)).view(out.shape))
