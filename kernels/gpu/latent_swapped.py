"""Latent attention with its operands swapped, for large models on compute capability 9.0.

The kernel is in `latent_gluon`, which needs a Triton that has Gluon as this one is used. No GPU has
run it yet: docs/gpu.md says how it was checked.
"""

import math

import torch
from torch import Tensor

from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.reads import ALL, Reads

# d of the models it serves: heads, and pieces that fit into shared memory beside the queries
SHAPES = {1024: (16, 12), 1280: (20, 10)}


def serves(queries: Tensor, latent: Latent, reads: Reads) -> bool:
    """Whether the kernel can run these arguments of `swapped_latent`."""
    values = latent.values
    halves = queries.dtype == values.dtype and values.dtype in (torch.float16, torch.bfloat16)
    heads, width = queries.shape[1:]
    if not halves or reads.sources is not None or reads.position_bias is not None:
        return False
    if reads.lengths_each(reads.windows(len(latent))) > 1:
        return False
    if width not in SHAPES or SHAPES[width][0] != heads:
        return False
    # what the tensor memory accelerator asks for: 16 bytes
    return all(
        t.stride(2) == 1 and t.data_ptr() % 16 == 0 and not any(s % 8 for s in t.stride()[:2])
        for t in (queries, values)
    )


def swapped_latent(
    queries: Tensor,
    latent: Latent,
    scale: float,
    splits: int,
    reads: Reads = ALL,
    maps: Tensor | None = None,
) -> Tensor:
    """Attend with every head's folded query to its window's latent.

    Arguments:
        queries: [N, h, d] float16 or bfloat16; N is a multiple of B, the number of windows, and the
            rows of one window are adjacent; `serves` must hold.
        latent: values [S, T, d] of the same dtype; S = B unless `reads` has slots.
        scale: factor on the scores.
        splits: parts of the positions.
        reads: which positions; its `bias` is not used; no `sources`, no `position_bias`.
        maps: [h, d_k, d], as in `split_latent`.
    Returns:
        [N, h, d], laid out head by head, or with `maps` [N, h, d_k]; zeros for a window without
        positions.
    """
    from slimwhisper.kernels.gpu.combine import Parts, empty_by_head, finish
    from slimwhisper.kernels.gpu.latent_gluon import (
        FEW,
        REST,
        TILE,
        pieces_of,
        swapped_latent_kernel,
    )

    rows, heads, width = queries.shape
    values, slots, lengths = latent.values, reads.slots, reads.lengths
    out = empty_by_head(queries)
    parts = Parts.allocate(rows * heads, splits, width, queries.device)
    swapped_latent_kernel[rows, splits](
        pieces_of(queries, FEW.value),
        pieces_of(queries, REST.value),
        pieces_of(values, TILE.value),
        out if slots is None else slots,
        out if lengths is None else lengths,
        out,
        parts.sums,
        parts.stats,
        scale * math.log2(math.e),
        values.shape[1],
        rows // reads.windows(len(latent)),
        *out.stride()[:2],
        HEADS=heads,
        D=width,
        SLOTS=SHAPES[width][1],
        SPLITS=splits,
        HAS_SLOTS=slots is not None,
        HAS_LENGTHS=lengths is not None,
        num_warps=4,
    )
    return finish(parts, out, maps)
