"""Attention from its definition, for kernels of a GPU."""

import torch
from torch import Tensor

from slimwhisper.kernels.attention import ALL, Latent, Reads
from slimwhisper.kernels.gpu.combine import PartialSums


def heads_reference(
    queries: Tensor, keys: Tensor, values: Tensor, reads: Reads = ALL, scale: float | None = None
) -> Tensor:
    """As `Kernels.heads`, window by window, in at least float32; keys and values may have one head
    for all: queries [N, h, d_k] -> [N, h, d_k].
    """
    if reads.block_table is not None:
        keys, values = reads.gathered(keys, 2), reads.gathered(values, 2)
        reads = Reads(lengths=reads.lengths)
    windows, wide = reads.windows(len(keys)), torch.promote_types(queries.dtype, torch.float32)
    scale, out = queries.shape[-1] ** -0.5 if scale is None else scale, torch.zeros_like(queries)
    lengths = None if reads.lengths is None else reads.lengths.view(windows, -1)
    for b, rows in enumerate(queries.unflatten(0, (windows, -1))):
        slot = b if reads.slots is None else int(reads.slots[b])
        longest = None if lengths is None else int(lengths[b, -1])
        k, v = (t[slot, :, :longest].to(wide) for t in (keys, values))
        scores = rows.to(wide).transpose(0, 1) @ k.mT * scale  # [h, rows, T]
        if reads.position_bias is not None:
            scores += reads.position_bias[slot, :longest]
        if lengths is not None:
            past = torch.arange(k.shape[1], device=k.device) >= lengths[b][:, None]
            scores = scores.masked_fill(past, float("-inf"))
        out.unflatten(0, (windows, -1))[b] = (scores.softmax(dim=-1) @ v).transpose(0, 1)
    return out


def latent_reference(queries: Tensor, latent: Latent, scale: float, reads: Reads = ALL) -> Tensor:
    """As `Kernels.latent` without maps, of a float8 latent too: [N, h, d] -> [N, h, d]."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    values = latent.dequantized(wide)[:, None]
    return heads_reference(queries, values, values, reads, scale)


def combine_reference(parts: PartialSums, out: Tensor) -> Tensor:
    """As `combine`, in float64: fills `out` [N, h, d]."""
    maxima, weights = parts.stats.double().unbind(-1)
    written = weights > 0
    maximum = maxima.masked_fill(~written, float("-inf")).amax(dim=1, keepdim=True)
    factors = torch.where(written, torch.exp2(maxima - maximum), 0.0)
    sums = parts.sums.double().masked_fill(~written[..., None], 0.0)
    total = (factors[..., None] * sums).sum(dim=1)
    weight_sum = (factors * weights.masked_fill(~written, 0.0)).sum(dim=1, keepdim=True)
    return out.copy_((total / weight_sum.where(weight_sum > 0, 1.0)).view(out.shape))
