"""The automata of all lists in use, one after the other, as tensors on a device.

A node's number counts from the first list's first node. List 0 is the empty one, of the texts
without hot words. Sizes are rounded up, so that a list seldom needs larger tensors than are there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.hot_words.automaton import BEGIN, INSIDE, ROOTS, HotWords
from slimwhisper.engine.uploads import upload

NO_KEY = torch.iinfo(torch.int64).max  # behind the last edge's


class Tables(NamedTuple):
    """N nodes, E edges and L lists. int64, unless it says float32."""

    # as of `HotWords`, by edge [E] and by node [N]
    keys: Tensor
    following: Tensor
    bonuses: Tensor  # float32
    differences: Tensor  # [E] float32: the bonus, less what the token gains at the node's root
    # [N, 5]: the node's first edge; how many it has, 0 for roots, which have `first_bonuses`; its
    # root; the root's row of `first_bonuses`; the list's first node, which is its root `BEGIN`
    nodes: Tensor
    at_risk: Tensor  # float32
    # [2 L, V] float32: the bonuses of the tokens that begin phrases, of each list at `BEGIN` and at
    # `INSIDE`; 0 for all others
    first_bonuses: Tensor
    word_continues: Tensor  # [V]: the root after each token, `BEGIN` or `INSIDE`
    columns: Tensor  # [W]: 0, 1 ...; W: the most edges of a node that is no root

    def after(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Texts at nodes [R] go on with tokens [R] or [R, n] -> the nodes after them, and what they
        gain in all, less than 0 where something is taken back, float32.
        """
        _, _, roots, _, begins = self.nodes[nodes].unbind(-1)
        keys = torch.stack([roots, nodes])[..., None] * len(self.word_continues)
        keys = keys + tokens.reshape(len(nodes), -1)  # [2, R, n]
        edges = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        found, following = self.keys[edges] == keys, self.following[edges]
        gained = self.bonuses[edges].masked_fill_(~found, 0)
        default = begins[:, None] + self.word_continues[tokens.reshape(len(nodes), -1)]
        default = torch.where(found[0], following[0], default)
        gained = torch.where(found[1], gained[1], gained[0]) - self.at_risk[nodes][:, None]
        following = torch.where(found[1], following[1], default)
        return following.view_as(tokens), gained.view_as(tokens)

    def boosted(self, nodes: Tensor, logits: Tensor, out: Tensor | None) -> Tensor:
        """Logits [R, V] after texts at nodes [R], with the bonuses before anything is taken back.
        out: [R, V] float32 to write them to; None: a new tensor.
        """
        first_edges, counts, _, rows, _ = self.nodes.index_select(0, nodes).unbind(-1)
        outside = self.columns >= counts[:, None]
        edges = (first_edges[:, None] + self.columns).masked_fill_(outside, 0)
        tokens = self.keys[edges] - nodes[:, None] * len(self.word_continues)
        more = self.differences[edges].masked_fill_(outside, 0).to(logits.dtype)
        first = torch.index_select(self.first_bonuses, 0, rows, out=out)
        boosted = first.to(logits.dtype).add_(logits)
        return boosted.scatter_add_(1, tokens.masked_fill_(outside, 0), more)


def _rounded(size: int) -> int:
    return 1 << (size - 1).bit_length() if size else 1


def _padded(array: NDArray[Any]) -> NDArray[Any]:
    more = _rounded(len(array)) - len(array)
    return np.pad(array, [(0, more), *((0, 0) for _ in array.shape[1:])])


def make_tables(
    lists: Sequence[HotWords], device: torch.device, old: Tables | None = None
) -> Tables:
    """The tables of these lists, of which the first is empty. old: tables that are not needed any
    more; they are filled anew and returned if their shapes fit.
    """
    shape = _rounded(len(lists)) * ROOTS, lists[0].vocabulary
    first_bonuses = np.zeros(shape, dtype=np.float32)
    parts: list[list[NDArray[Any]]] = []
    node = edge = most = 0
    for number, h in enumerate(lists):
        size, nodes, rows = h.vocabulary, len(h.roots), h.roots + number * ROOTS
        for root in (BEGIN, INSIDE):
            edges = slice(int(h.first_edges[root]), int(h.first_edges[root + 1]))
            first_bonuses[number * ROOTS + root, h.keys[edges] - root * size] = h.bonuses[edges]
        tokens, origins, counts = h.keys % size, h.keys // size, np.diff(h.first_edges)
        counts[:ROOTS] = 0
        by_node = (h.first_edges[:-1] + edge, counts, h.roots + node, rows, np.full(nodes, node))
        parts.append(
            [
                h.keys + node * size,
                h.following + node,
                h.bonuses,
                h.bonuses - first_bonuses[rows[origins], tokens],
                np.stack(by_node, axis=1),
                h.at_risk,
            ]
        )
        node, edge, most = node + nodes, edge + len(h.keys), max(most, int(counts.max()))
    joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    padded = [_padded(array) for array in joined]
    padded[0][len(joined[0]) :] = NO_KEY
    continues = np.where(lists[-1].word_ends, BEGIN, INSIDE)
    arrays = (*padded, first_bonuses, continues, np.arange(_rounded(most)))
    new = Tables(*upload(device, *arrays))
    if old is None or any(a.shape != b.shape for a, b in zip(old, new, strict=True)):
        return new
    for a, b in zip(old, new, strict=True):
        a.copy_(b)
    return old
