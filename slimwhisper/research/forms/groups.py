"""Attention in groups, for approximate forms: G groups of g queries that share keys and values.

With keys and values, every head is a group of one query of width d_k. With a latent, which is key
and value of all heads, there is one group: the folded queries (`slimwhisper.cache.forms`) of width
d.
"""

from torch import Tensor

from slimwhisper.cache.fold import Folded
from slimwhisper.cache.kv import HeadAttention
from slimwhisper.cache.latent import LatentAttention, latent_of
from slimwhisper.kernels.dispatch import Kernels


class HeadGroups(HeadAttention):
    """Over keys and values: G = h, g = 1, w = d_k."""

    def __init__(self, weights: Folded, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        self.count, self.scale = weights.heads, self.width**-0.5

    to_store = HeadAttention.keys_values  # [R, T, d] -> keys and values, each [R, G, T, w]
    group_queries = HeadAttention.queries  # [R, 1, d] -> [R, G, g, w]
    group_output = HeadAttention.output  # [R, G, g, w] -> [R, 1, d]

    def by_head(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[R, T, d] -> queries, keys and values of every head, each [R, h, T, d_k]."""
        return self.queries(x), *self.keys_values(x)


class LatentGroups(LatentAttention):
    """Over a latent: G = 1, g = h, w = d. The methods are those of `HeadGroups`."""

    def __init__(self, weights: Folded, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        self.count, self.width = 1, weights.width

    def to_store(self, x: Tensor) -> tuple[Tensor, ...]:
        return (latent_of(self.weights, x).unsqueeze(1),)

    def group_queries(self, x: Tensor) -> Tensor:
        return self.fold_queries(self.queries(x)[:, 0]).unsqueeze(1)

    def by_head(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent, maps = latent_of(self.weights, x), (self.weights.key_map, self.weights.value_map)
        keys, values = (self.mapped(latent, m) for m in maps)
        return self.queries(x).transpose(1, 2), keys, values

    def group_output(self, mixed: Tensor) -> Tensor:
        maps = self.weights.value_map
        assert maps is not None
        by_head = self.kernels.multiply_heads(mixed[:, 0], maps, transpose=True)  # [R, h, d_k]
        return self.output(by_head.unsqueeze(1))


def groups_of(weights: Folded, kernels: Kernels) -> HeadGroups | LatentGroups:
    """The groups of a block, by the way it was folded."""
    return (HeadGroups if weights.key_map is None else LatentGroups)(weights, kernels)


def per_row(read: tuple[Tensor, Tensor | None], count: int) -> Tensor:
    """The result of `Rows.of_slots` or `of_rows` -> [count, ...], one entry for each row."""
    t, indices = read
    t = t if indices is None else t[indices]
    return t if len(t) == count else t.repeat_interleave(count // len(t), dim=0)
