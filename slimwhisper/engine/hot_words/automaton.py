"""The automaton of a list of hot words: which tokens continue a phrase, and what they gain.

A text stands at the node of its longest end that begins a phrase. A token that continues the phrase
gains the phrase's bonus. What a node has gained so far and no complete phrase covers is at risk: it
is taken back by a token with which the phrase breaks off, except for what a shorter end of the text
keeps. A complete phrase keeps its bonus.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import OptionError

MOST_EDGES = 4_000_000
BEGIN, INSIDE = 0, 1  # the roots: where a word may begin without a space, and where not
ROOTS = 2

# tokens of a phrase, the bonus of each, and whether the phrase may begin inside a word
Phrase = tuple[tuple[int, ...], float, bool]
Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class HotWords:
    """The automaton as flat arrays: N nodes, of which the first are the roots, and E edges.

    A node also has the edges of all shorter ends of its text, but for those of the root.
    """

    vocabulary: int  # its size, V
    # by edge, sorted: node * V + token, with the node that follows and the bonus of the token
    # before `at_risk` of the edge's node is taken back
    keys: Integers
    following: Integers
    bonuses: Floats
    # by node
    first_edges: Integers  # [N + 1]: node n has the edges first_edges[n] ... first_edges[n + 1] - 1
    roots: Integers  # [N]: where a text stands after a token that continues nothing
    at_risk: Floats  # [N]
    word_ends: NDArray[np.bool_]  # [V]: whether a word may begin after each token without a space

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The node before each of these tokens of a text, and after the last."""
        nodes = [BEGIN]
        for token in tokens:
            nodes.append(self._after(nodes[-1], token))
        return nodes

    def _after(self, node: int, token: int) -> int:
        for origin in (node, int(self.roots[node])):
            key = origin * self.vocabulary + token
            edge = int(np.searchsorted(self.keys, key))
            if edge < len(self.keys) and self.keys[edge] == key:
                return int(self.following[edge])
        return BEGIN if self.word_ends[token] else INSIDE


class _Trie:
    """The nodes while they are made: as lists, which are faster than arrays one by one."""

    def __init__(self, phrases: Sequence[Phrase], ends: NDArray[np.bool_]) -> None:
        self.children: list[dict[int, int]] = [{}, {}]
        self.tokens, self.points = [-1, -1], [0.0, 0.0]  # of the edge to the node
        self.complete = [False, False]
        for phrase in phrases:
            self._add(*phrase)
        count = len(self.children)
        self.shorter = [-1] * count  # the node of the longest shorter end; -1: a root
        self.roots = [BEGIN, INSIDE, *(BEGIN if ends[t] else INSIDE for t in self.tokens[ROOTS:])]
        self.covered = [0] * count  # tokens at the end of its text that complete a phrase
        # by token of its text, the bonus that no complete phrase covers
        self.open: list[tuple[float, ...]] = [()] * count
        self._link()

    def _add(self, tokens: Sequence[int], bonus: float, anywhere: bool) -> None:
        node = BEGIN
        for token in tokens:
            child = self.children[node].get(token)
            if child is None:
                child = len(self.children)
                self.children[node][token] = child
                self.children.append({})
                self.tokens.append(token)
                self.points.append(0.0)
                self.complete.append(False)
            if node == BEGIN and anywhere:
                self.children[INSIDE][token] = child
            self.points[child] = max(self.points[child], bonus)
            node = child
        self.complete[node] = True

    def _link(self) -> None:
        """Set what follows from shorter nodes, the shortest first."""
        waiting = deque((child, BEGIN, 1) for child in self.children[BEGIN].values())
        while waiting:
            node, parent, length = waiting.popleft()
            self.shorter[node] = shorter = self._shorter(parent, self.tokens[node])
            self.covered[node] = (
                length if self.complete[node] else self.covered[shorter] if shorter >= 0 else 0
            )
            points = (*self.open[parent], self.points[node])
            kept = length - self.covered[node]
            self.open[node] = (*points[:kept], *(0.0 for _ in points[kept:]))
            waiting += ((child, node, length + 1) for child in self.children[node].values())

    def _shorter(self, parent: int, token: int) -> int:
        if parent < ROOTS:
            return -1
        node = self.shorter[parent]
        while node >= 0:
            if token in self.children[node]:
                return self.children[node][token]
            node = self.shorter[node]
        return self.children[self.roots[parent]].get(token, -1)

    def at_risk(self, node: int) -> float:
        """What is taken back where its phrase breaks off."""
        return sum(self.open[node])

    def edges(self, node: int) -> dict[int, tuple[int, float]]:
        """Token -> the node that follows and the bonus, also of shorter ends."""
        edges: dict[int, tuple[int, float]] = {}
        while node >= 0:
            kept = self.at_risk(node)
            for token, child in self.children[node].items():
                edges.setdefault(token, (child, kept + self.points[child]))
            node = self.shorter[node]
        return edges


def make_hot_words(phrases: Sequence[Phrase], word_ends: NDArray[np.bool_]) -> HotWords:
    """The automaton of the phrases of a list. word_ends [V]: as of `HotWords`.

    Raises OptionError if the phrases have too much in common.
    """
    trie, size = _Trie(phrases, word_ends), len(word_ends)
    nodes, first = range(len(trie.children)), [0]
    keys, following, bonuses = list[int](), list[int](), list[float]()
    for node in nodes:
        for token, (child, bonus) in sorted(trie.edges(node).items()):
            keys.append(node * size + token)
            following.append(child)
            bonuses.append(bonus)
        first.append(len(keys))
        if len(keys) > MOST_EDGES:
            raise OptionError("hot_words: too many phrases have parts in common; give fewer")
    return HotWords(
        size,
        np.array(keys, dtype=np.int64),
        np.array(following, dtype=np.int64),
        np.array(bonuses, dtype=np.float32),
        np.array(first, dtype=np.int64),
        np.array(trie.roots, dtype=np.int64),
        np.array([trie.at_risk(n) for n in nodes], dtype=np.float32),
        word_ends,
    )
