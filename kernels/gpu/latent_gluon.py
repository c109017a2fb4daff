"""Latent attention with its operands swapped, on compute capability 9.0: the kernel, in Gluon.

    S^T = Z Q~^T     O^T = Z^T P^T        Q~ [h, d] of a window, Z [T, d], P = softmax(S * scale)

The matrix unit of that GPU (wgmma) multiplies 64 rows at a time. Heads as rows would be 16 or 20
of 64, so here positions and columns are the rows, and the heads are the 16 columns of one product,
with 8 more of a second one for the 17th head and those after it.

One warp copies tiles of 64 positions into shared memory with the tensor memory accelerator, in
pieces of 128 columns. Each piece has two barriers: one says that it is loaded, the other that it
has been read for both products, so that the next one may take its place. At d = 1280 a single tile
fits beside the queries; what is then in flight are the pieces that the second product has finished
with. Four warps for each block of heads keep their O^T in registers and share nothing but the tile.

Splits, and what they leave for `combine`, are as in `latent`. `latent_swapped` launches it.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from slimwhisper.kernels.gpu.combine import part_of_positions, write_stats

TILE = gl.constexpr(64)  # positions
PIECE = gl.constexpr(128)  # columns
FEW, REST = gl.constexpr(16), gl.constexpr(8)  # heads of the two blocks
LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)

# Triton renamed it between 3.6 and 3.9
load_piece = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
part_of_window = gluon.jit(part_of_positions.fn)
write_part = gluon.jit(write_stats.fn)


def pieces_of(x: Tensor, rows: int) -> TensorDescriptor:
    """x [A, B, d] -> a descriptor for loads of [1, rows, PIECE]."""
    return TensorDescriptor.from_tensor(x, [1, rows, PIECE.value], LAYOUT)


@gluon.jit
def after(slot, SLOTS: gl.constexpr):
    """The next slot of the ring."""
    return gl.where(slot == SLOTS - 1, 0, slot + 1)


@gluon.jit
def turned(phase, slot):
    """The phase of a slot's barriers, which changes with each round."""
    return gl.where(slot == 0, phase ^ 1, phase)


@gluon.jit
def load_tiles(
    latent,  # descriptor of [S, T, d]
    slot,
    fetched,  # barrier, for the tile that is not full
    ring,  # shared [SLOTS, 1, TILE, PIECE]
    loaded,  # barriers of its pieces
    read,
    begin,
    end,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr,
):
    """Fills the ring with the positions [begin, end) of one slot; zeros from `end` on.

    The accelerator itself writes zeros beyond T. Positions from a window's length on may hold
    anything, NaN too, which a weight of zero would not hide.
    """
    pieces: gl.constexpr = D // PIECE
    rows: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 8], [2, 16], [1, 1], [1, 0]))
    to = 0
    phase = 1  # nothing is to be waited for in the first round
    for t in range(begin, end, TILE):
        full = t + TILE <= end
        first = to
        for i in range(pieces):
            mbarrier.wait(read.index(to), phase)
            if full or not HAS_LENGTHS:
                mbarrier.expect(loaded.index(to), TILE * PIECE * 2)
                load_piece(latent, [slot, t, i * PIECE], loaded.index(to), ring.index(to))
            else:
                mbarrier.expect(fetched, TILE * PIECE * 2)
                load_piece(latent, [slot, t, i * PIECE], fetched, ring.index(to))
            to = after(to, SLOTS)
            phase = turned(phase, to)
        if HAS_LENGTHS:
            if not full:
                mbarrier.wait(fetched, 0)
                for _i in range(pieces):
                    for row in gl.static_range(0, TILE, 8):
                        if t + row + 8 > end:
                            some = ring.index(first).reshape([TILE, PIECE]).slice(row, 8)
                            seen = t + row + gl.arange(0, 8, rows) < end
                            kept = some.load(rows.parent)
                            some.store(gl.where(seen[:, None], kept, gl.zeros_like(kept)))
                    fence_async_shared()
                    mbarrier.arrive(loaded.index(first), count=1)
                    first = after(first, SLOTS)


@gluon.jit
def attend(
    q,  # shared [d / PIECE, 1, BLOCK, PIECE]: queries of a block of heads
    weights,  # shared [BLOCK, TILE], for P
    asked,  # barrier: the queries are loaded
    ring,
    loaded,
    read,
    out,  # of the window's row, written if there is one split
    sums,  # of the window's first head and this split, written otherwise
    stats,
    out_head,
    scale_log2,
    begin,
    end,
    FIRST: gl.constexpr,  # head of the block
    BLOCK: gl.constexpr,
    HEADS: gl.constexpr,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    SPLITS: gl.constexpr,
):
    """The positions [begin, end) for one block of heads, with online softmax (arXiv 1805.02867)."""
    pieces: gl.constexpr = D // PIECE
    fragment: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    by_head: gl.constexpr = gl.SliceLayout(0, fragment)
    by_row: gl.constexpr = gl.SliceLayout(1, fragment)
    best = gl.full([BLOCK], float("-inf"), gl.float32, by_head)
    weight = gl.full([BLOCK], 0.0, gl.float32, by_head)
    mix = ()  # O^T, [PIECE, BLOCK] each
    for _i in gl.static_range(pieces):
        mix = mix + (gl.zeros([PIECE, BLOCK], gl.float32, fragment),)
    mbarrier.wait(asked, 0)
    at = 0
    phase = 0
    for t in range(begin, end, TILE):
        first = at
        scores = warpgroup_mma_init(gl.zeros([TILE, BLOCK], gl.float32, fragment))
        for i in range(pieces):  # no static range: its addresses would fill the registers
            mbarrier.wait(loaded.index(at), phase)
            z = ring.index(at).reshape([TILE, PIECE])
            asking = q.index(i).reshape([BLOCK, PIECE]).permute((1, 0))
            scores = warpgroup_mma(z, asking, scores, is_async=True)
            at = after(at, SLOTS)
            phase = turned(phase, at)
        scores = warpgroup_mma_wait(0, deps=[scores])

        seen = t + gl.arange(0, TILE, by_row) < end
        scores = gl.where(seen[:, None], scores * scale_log2, float("-inf"))
        new = gl.maximum(best, gl.max(scores, 0))
        shrink = gl.exp2(best - new)
        p = gl.exp2(scores - new[None, :])
        weight = weight * shrink + gl.sum(p, 0)
        best = new
        weights.permute((1, 0)).store(p.to(weights.dtype))
        fence_async_shared()

        moving = ()
        done = ()
        here = first
        for i in gl.static_range(pieces):
            z = ring.index(here).reshape([TILE, PIECE]).permute((1, 0))
            shrunk = mix[i] * shrink[None, :]
            moving = moving + (warpgroup_mma(z, weights.permute((1, 0)), shrunk, is_async=True),)
            here = after(here, SLOTS)
            if i > 0:  # the product before this one is complete: its piece may be replaced
                done = done + (warpgroup_mma_wait(1, deps=[moving[i - 1]]),)
                mbarrier.arrive(read.index(first), count=1)
                first = after(first, SLOTS)
        mix = done + (warpgroup_mma_wait(0, deps=[moving[pieces - 1]]),)
        mbarrier.arrive(read.index(first), count=1)

    head = FIRST + gl.arange(0, BLOCK, by_head)
    real = head < HEADS
    column = gl.arange(0, PIECE, by_row)
    share = 1.0 / gl.where(weight > 0, weight, 1.0)  # no position: zeros
    for i in gl.static_range(pieces):
        columns = (i * PIECE + column)[:, None]
        if SPLITS == 1:
            whole = (mix[i] * share[None, :]).to(out.dtype.element_ty)
            gl.store(out + (head * out_head)[None, :] + columns, whole, mask=real[None, :])
        else:
            gl.store(sums + (head * SPLITS * D)[None, :] + columns, mix[i], mask=real[None, :])
    write_part(stats, head * SPLITS, best, weight, real, SPLITS)


@gluon.jit
def swapped_latent_kernel(
    queries,  # descriptor of [N, h, d], for loads of [1, FEW, PIECE]
    rest,  # the same, for loads of [1, REST, PIECE]
    latent,  # descriptor of [S, T, d], for loads of [1, TILE, PIECE]
    slots,
    lengths,
    out,  # [N, h, d], written if there is one split
    sums,  # [N, h, SPLITS, d] float32, written otherwise
    stats,  # [N, h, SPLITS, 2] float32: maximum, in powers of 2, and weight
    scale_log2,  # scale * log2(e)
    positions,
    group,  # rows per window
    out_row,  # strides, in elements
    out_head,
    HEADS: gl.constexpr,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    SPLITS: gl.constexpr,
    HAS_SLOTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr,
):
    """Grid: rows (those of a window adjacent, so that they find its latent in L2), splits. Four
    warps for each block of heads, and one that loads.
    """
    pieces: gl.constexpr = D // PIECE
    blocks: gl.constexpr = 2 if HEADS > FEW else 1
    row, split = gl.program_id(0), gl.program_id(1)
    window = (row // group).to(gl.int64)
    slot, begin, end = part_of_window(
        lengths, slots, window, split, positions, SPLITS, TILE, HAS_LENGTHS, HAS_SLOTS
    )
    slot = slot.to(gl.int32)
    out += row.to(gl.int64) * out_row
    part = row.to(gl.int64) * HEADS * SPLITS + split
    sums += part * D
    stats += part * 2

    flat: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    ring = gl.allocate_shared_memory(latent.dtype, [SLOTS, 1, TILE, PIECE], latent.layout)
    q = gl.allocate_shared_memory(latent.dtype, [pieces, 1, FEW, PIECE], latent.layout)
    p = gl.allocate_shared_memory(latent.dtype, [FEW, TILE], flat)
    loaded = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bars)
    read = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bars)
    asked = gl.allocate_shared_memory(gl.int64, [1], bars)
    fetched = gl.allocate_shared_memory(gl.int64, [1], bars)
    for i in gl.static_range(SLOTS):
        mbarrier.init(loaded.index(i), count=1)
        mbarrier.init(read.index(i), count=blocks)
    mbarrier.init(asked, count=1)
    mbarrier.init(fetched, count=pieces)
    fence_async_shared()
    mbarrier.expect(asked, (FEW + REST * (blocks - 1)) * D * 2)
    for i in gl.static_range(pieces):
        load_piece(queries, [row, 0, i * PIECE], asked, q.index(i))

    # fmt: off
    if blocks == 1:
        gl.warp_specialize(
            [
                (
                    attend,
                    (
                        q, p, asked, ring, loaded, read,
                        out, sums, stats, out_head, scale_log2,
                        begin, end, 0, FEW, HEADS, D, SLOTS, SPLITS,
                    ),
                ),
                (
                    load_tiles,
                    (
                        latent, slot, fetched, ring, loaded, read,
                        begin, end, D, SLOTS, HAS_LENGTHS,
                    ),
                ),
            ],
            [1],
            [96],  # registers of a thread; `attend` takes what is left
        )
    else:
        q_rest = gl.allocate_shared_memory(latent.dtype, [pieces, 1, REST, PIECE], latent.layout)
        p_rest = gl.allocate_shared_memory(latent.dtype, [REST, TILE], flat)
        for i in gl.static_range(pieces):
            load_piece(rest, [row, FEW, i * PIECE], asked, q_rest.index(i))
        gl.warp_specialize(
            [
                (
                    attend,
                    (
                        q, p, asked, ring, loaded, read,
                        out, sums, stats, out_head, scale_log2,
                        begin, end, 0, FEW, HEADS, D, SLOTS, SPLITS,
                    ),
                ),
                (
                    attend,
                    (
                        q_rest, p_rest, asked, ring, loaded, read,
                        out, sums, stats, out_head, scale_log2,
                        begin, end, FEW, REST, HEADS, D, SLOTS, SPLITS,
                    ),
                ),
                (
                    load_tiles,
                    (
                        latent, slot, fetched, ring, loaded, read,
                        begin, end, D, SLOTS, HAS_LENGTHS,
                    ),
                ),
            ],
            [4, 1],
            [168, 80],  # the first block takes what is left
        )
    # fmt: on
