"""Attention from its definition, and calls of it in every way that kernels read."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.kernels.attention import ALL, Latent, Reads

NAN = float("nan")
SEEDS = st.integers(0, 2**20)  # of `make_call`


def heads_reference(
    queries: Tensor, keys: Tensor, values: Tensor, reads: Reads = ALL, scale: float | None = None
) -> Tensor:
    """As `Kernels.heads` where window b reads slot b, by PyTorch in the operands' dtype; keys and
    values may have one head for all: queries [N, h, d_k] -> [N, h, d_k].
    """
    windows, out = len(keys), torch.zeros_like(queries)
    for b, rows in enumerate(queries.unflatten(0, (windows, -1))):
        length = keys.shape[2] if reads.lengths is None else int(reads.lengths[b])
        if not length:
            continue
        mask = None
        if reads.position_bias is not None:
            mask = reads.position_bias[b, None, :length].to(rows.dtype)
        kept = (t[b, :, :length].expand(rows.shape[1], -1, -1) for t in (keys, values))
        found = F.scaled_dot_product_attention(rows.transpose(0, 1), *kept, mask, scale=scale)
        out.unflatten(0, (windows, -1))[b] = found.transpose(0, 1)
    return out


def latent_reference(queries: Tensor, latent: Latent, scale: float, reads: Reads = ALL) -> Tensor:
    """As `Kernels.latent` without maps: [N, h, d] -> [N, h, d]."""
    values = latent.values[:, None]
    return heads_reference(queries, values, values, reads, scale)


@dataclass(frozen=True, repr=False)
class Call:
    """Attention of some windows."""

    queries: Tensor  # [N, h, d]
    keys: Tensor  # [S, h, T, d], or pages
    values: Tensor
    latent: Latent | None  # instead of keys and values, with a scale of d^-1/2
    reads: Reads
    own: Tensor  # [2, B, h, T, d]: what each window reads
    bias: Tensor | None  # [B, T]

    def __repr__(self) -> str:
        return f"queries {[*self.queries.shape]} of {[*self.keys.shape]}, {self.reads}"

    def expected(self, dtype: torch.dtype) -> Tensor:
        reads = Reads(lengths=self.reads.lengths, position_bias=self.bias)
        return heads_reference(self.queries.to(dtype), *self.own.to(dtype), reads)


def make_call(
    seed: int,
    dtype: torch.dtype,
    widths: Sequence[int],
    positions: Sequence[int],
    pages: Sequence[int] = (16,),
    shortest: int = 0,
    strides: Sequence[int] = (1,),
    latent: bool | None = None,
    heads: Sequence[int] = (1, 3, 6),
    device: torch.device | str = "cpu",
) -> Call:
    """Random numbers, read in any way, by the seed, and NaN wherever nothing may be read.

    shortest: the least length of what is read. strides: of positions, in their columns.
    latent: None: of keys and values, too.
    """
    ways = "slots pages lengths bias".split()
    generator, choice = torch.Generator().manual_seed(seed), random.Random(seed).choice
    kinds = {way for way in ways if choice((True, False))}
    is_latent = choice((True, False)) if latent is None else latent
    windows, head_count = choice((1, 2, 3)), choice(heads)
    group = choice((1, 2, 7, 17))  # rows of a window
    count, width = choice(positions), choice(widths)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    lengths = slots = table = bias = kept_bias = None
    if "lengths" in kinds or "pages" in kinds:
        lengths = torch.randint(shortest, count + 1, (windows,), generator=generator).to(device)
        lengths[0] = shortest
    longest = [count] * windows if lengths is None else lengths.tolist()
    own = normal(2, windows, 1 if is_latent else head_count, count, width)
    own = own[:1].expand_as(own) if is_latent else own
    if "pages" in kinds:
        page = choice(pages)
        each = -(-count // page)
        order = torch.randperm((windows + 2) * each, generator=generator)[: windows * each]
        table = order.view(windows, each).to(device)
        kept = own.new_full((2, (windows + 2) * each, own.shape[2], page, width), NAN)
        for b, length in enumerate(longest):
            t = torch.arange(length, device=device)
            kept[:, table[b, t // page], :, t % page] = own[:, b, :, t].permute(2, 0, 1, 3)
            table[b, -(-length // page) :] = 2**40  # never looked at
    else:
        places, order = windows, torch.arange(windows, device=device)
        if "slots" in kinds:
            places = windows + 2
            slots = order = torch.randperm(places, generator=generator)[:windows].to(device)
        columns = choice(strides) * width
        kept = own.new_full((2, places, own.shape[2], count + 5, columns), NAN)
        kept = kept[..., :count, :width]
        for b, length in enumerate(longest):
            kept[:, order[b], :, :length] = own[:, b, :, :length]
        if "bias" in kinds and is_latent:
            bias = normal(windows, count).float()
            kept_bias = bias.new_full((places, count + 3), NAN)[:, :count]
            kept_bias[order] = bias
    reads = Reads(slots, lengths, None, table, count, kept_bias)
    queries = 2 * normal(head_count, windows * group, width).transpose(0, 1)
    stored = Latent(kept[0, :, 0]) if is_latent else None
    return Call(queries, kept[0], kept[1], stored, reads, own, bias)
