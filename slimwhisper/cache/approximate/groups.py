"""What the approximate forms see of a block: G groups of g queries, each with keys and values.

Of keys and values, every head is a group of one query of width d_k. Of a latent, which is one key
and value for all heads, all of them are one group, of the folded queries (`slimwhisper.cache.fold`)
of width d.
"""

import torch
from torch import Tensor

from slimwhisper.cache.fold import Folded
from slimwhisper.cache.kv import HeadAttention
from slimwhisper.cache.latent import LatentAttention, kept
from slimwhisper.kernels.dispatch import Kernels


class HeadGroups(HeadAttention):
    """Of keys and values: G = h, g = 1, w = d_k."""

    def __init__(self, weights: Folded, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        self.count, self.scale = weights.heads, self.width**-0.5

    def kept(self, x: Tensor) -> tuple[Tensor, ...]:
        """[R, T, d] -> what is kept, keys and values, each [R, G, T, w]."""
        return self.keys_values(x)

    def asked(self, x: Tensor) -> Tensor:
        """[R, 1, d] -> [R, G, g, w]."""
        return self.queries(x)

    def by_head(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[R, T, d] -> queries, keys and values of every head, each [R, h, T, d_k]."""
        return self.queries(x), *self.keys_values(x)

    def found(self, mixed: Tensor) -> Tensor:
        """[R, G, g, w] -> [R, 1, d]."""
        return self.output(mixed)


class LatentGroups(LatentAttention):
    """Of a latent: G = 1, g = h, w = d. The methods are those of `HeadGroups`."""

    def __init__(self, weights: Folded, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        self.count, self.width = 1, weights.width

    def kept(self, x: Tensor) -> tuple[Tensor, ...]:
        return (kept(self.weights, x).unsqueeze(1),)

    def asked(self, x: Tensor) -> Tensor:
        return self.fold_queries(self.queries(x)[:, 0]).unsqueeze(1)

    def by_head(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent = kept(self.weights, x)
        return self.queries(x).transpose(1, 2), self.keys(latent), self.values(latent)

    def found(self, mixed: Tensor) -> Tensor:
        maps = self.weights.value_map
        assert maps is not None
        by_head = torch.bmm(mixed[:, 0].transpose(0, 1), maps.transpose(1, 2))  # [h, R, d_k]
        return self.output(by_head.transpose(0, 1).unsqueeze(1))


def groups_of(weights: Folded, kernels: Kernels) -> HeadGroups | LatentGroups:
    """Those of a block as it was folded."""
    return (HeadGroups if weights.key_map is None else LatentGroups)(weights, kernels)


def for_each(kept: tuple[Tensor, Tensor | None], count: int) -> Tensor:
    """What `Rows.of_slots` or `of_rows` gives -> [count, ...]: one of it for each row."""
    t, chosen = kept
    t = t if chosen is None else t[chosen]
    return t if len(t) == count else t.repeat_interleave(count // len(t), dim=0)
