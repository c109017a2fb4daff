"""What form `zack` learns: the rotations of each head's keys and values, and how much is kept.

Zeyu Zhang and Haiying Shen, arXiv 2408.04107; see `slimwhisper.cache.approximate.zack`. The paper
stacks Q over K, and V over W_O^T, as they are. Here each of the four is first divided by its
Frobenius norm, so that both of a pair have the same say: 1,500 frames do not outvote some dozen
queries, nor values the output.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.fold import Attention, Context

REMOVAL = 0.05  # what is dropped unless the user says otherwise


@dataclass(frozen=True, slots=True)
class ZackSettings:
    """How much is kept: by one of the first three; without any of them, `removal` is 0.05."""

    removal: float | None = None  # share of each head's singular values that may be dropped
    keep: float | None = None  # share of the values of K and V, over all heads and layers
    rank: int | None = None  # columns of K and of V, of every head
    multiple: int = 16  # ranks are rounded up to multiples of this; 1 where it exceeds d_k

    def __post_init__(self) -> None:
        """Raises ValueError for settings that make no sense."""
        names = ("removal", "keep", "rank")
        given = [f"{n}={getattr(self, n)}" for n in names if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of removal, keep and rank")
        if not given:
            object.__setattr__(self, "removal", REMOVAL)
        if self.removal is not None and not 0 <= self.removal < 1:
            raise ValueError(f"removal={self.removal}: give 0, which drops nothing, to below 1")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ValueError(f"keep={self.keep}: give a share above 0, up to 1")
        for name in ("rank", "multiple"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1")


def spectrum(block: Attention, asking: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations [2, h, d_k, d_k] and singular values [2, h, d_k] of one block, float64.

    asking [T_q, d], source [T_k, d]: recorded, what queries and what keys and values are made of.
    """

    def heads(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """[T, d] -> [h, T, d_k]."""
        bias = None if bias is None else bias.double()
        y = F.linear(x.double(), weight.double(), bias)
        return y.unflatten(-1, (block.heads, -1)).transpose(0, 1)

    out = block.out.double().unflatten(-1, (block.heads, -1)).transpose(0, 1)  # [h, d, d_k]
    pairs = (
        (heads(asking, block.query, block.query_bias), heads(source, block.key)),
        (heads(source, block.value), out),
    )
    found = []
    for pair in pairs:
        balanced = [m / m.norm(dim=(1, 2), keepdim=True).clamp(min=1e-300) for m in pair]
        stacked = torch.cat(balanced, dim=1)
        # R of a QR product has the same right singular vectors, in few rows
        small = torch.linalg.qr(stacked, mode="r").R
        missing = max(0, small.shape[2] - small.shape[1])  # fewer activations than columns
        _, singular, turned = torch.linalg.svd(F.pad(small, (0, 0, 0, missing)))
        found.append((turned.transpose(1, 2), singular))
    rotations, singular_values = zip(*found, strict=True)
    return torch.stack(rotations), torch.stack(singular_values)


def ranks(settings: ZackSettings, singular: Tensor) -> Tensor:
    """Singular values [..., d_k] in falling order -> how many columns to keep, [...] int64.

    removal: equation 6, over singular values and not their squares; the smallest r for which
    those after the r-th sum to at most this share of all. keep: blocks of `multiple` columns are
    sorted over all heads, layers and matrices by their share of their head's sum, and the first
    are kept, as many as there is room for; every head keeps one. All are rounded up to `multiple`.
    """
    width = singular.shape[-1]
    unit = settings.multiple if settings.multiple <= width else 1
    if settings.rank is not None:
        wanted = singular.new_full(singular.shape[:-1], settings.rank)
    elif settings.removal is not None:
        tails = singular.flip(-1).cumsum(-1).flip(-1)  # sums from each column on
        wanted = (tails > settings.removal * tails[..., :1]).sum(dim=-1)
    else:
        assert settings.keep is not None
        shares = singular / singular.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        shares = F.pad(shares, (0, -width % unit)).unflatten(-1, (-1, unit)).sum(dim=-1)
        shares[..., 0] = float("inf")
        starts = torch.arange(0, width, unit, device=singular.device)
        sizes = (width - starts).clamp(max=unit).expand_as(shares)
        order = shares.flatten().argsort(descending=True, stable=True)
        room = settings.keep * sizes.sum() * (1 + 1e-12)  # a share such as 0.1 is rounded
        chosen = torch.zeros_like(order, dtype=torch.bool)
        chosen[order] = sizes.flatten()[order].cumsum(0) <= room
        wanted = chosen.view_as(shares).sum(dim=-1) * unit
    return (-(-wanted.long() // unit) * unit).clamp(unit, width)


def learn(context: Context) -> dict[str, Tensor]:
    """A layer's `Folded.learned`: "keys" [d_k, sum of ranks] and "values", the rotations of all
    heads side by side, cut to their ranks; "ranks" [2, h], of keys and of values. All float64.
    """
    activations, attention = context.activations, context.attention
    assert activations is not None, "zack learns from recorded activations"
    if "zack" not in context.shared:
        context.shared["zack"] = [
            spectrum(block, activations.queries(attention, i), activations.of(attention, i))
            for i, block in enumerate(context.blocks)
        ]
    every = context.shared["zack"]
    rotations, _ = every[context.layer]
    kept = ranks(context.settings, torch.stack([s for _, s in every]))[context.layer]  # [2, h]
    keys, values = (
        torch.cat([r[:, :n] for r, n in zip(turned, sizes, strict=True)], dim=1)
        for turned, sizes in zip(rotations, kept.tolist(), strict=True)
    )
    return {"keys": keys, "values": values, "ranks": kept.double()}
