"""Hot words: which tokens continue a phrase, what they gain, and where each text stands.

The automaton of a list: a text stands at the node of its longest end that begins a phrase. A token
that continues the phrase gains the phrase's bonus. What a node has gained so far and no complete
phrase covers is at risk: it is taken back by a token with which the phrase breaks off, except for
what a shorter end of the text keeps. A complete phrase keeps its bonus.

The automata of all lists in use stand one after the other, as tensors on a device. A node's number
counts from the first list's first node. List 0 is the empty one, of the texts without hot words.
Sizes are rounded up, so that a list seldom needs larger tensors than are there.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.devices import upload
from slimwhisper.engine.filters import FILTERS, NEVER, BonusFilter, Chosen, Draws, State
from slimwhisper.engine.requests import Rules
from slimwhisper.errors import OptionError
from slimwhisper.hot_words.options import Spelling, spellings
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import SpecialTokens

MOST_EDGES = 4_000_000
BEGIN, INSIDE = 0, 1  # the roots: where a word may begin without a space, and where not
ROOTS = 2

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class HotWords:
    """The automaton as flat arrays: N nodes, of which the first are the roots, and E edges.

    A node also has the edges of all shorter ends of its text, but for those of the root.
    """

    # by edge, sorted: node * V + token, with the node that follows and the bonus of the token
    # before `at_risk` of the edge's node is taken back
    keys: Integers
    following: Integers
    bonuses: Floats
    # by node
    roots: Integers  # [N]: where a text stands after a token that continues nothing
    at_risk: Floats  # [N]
    word_ends: NDArray[np.bool_]  # [V]: whether a word may begin after each token without a space

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The node before each of these tokens of a text, and after the last."""
        return list(accumulate(tokens, self._after, initial=BEGIN))

    def _after(self, node: int, token: int) -> int:
        for origin in (node, int(self.roots[node])):
            key = origin * len(self.word_ends) + token
            edge = int(np.searchsorted(self.keys, key))
            if edge < len(self.keys) and self.keys[edge] == key:
                return int(self.following[edge])
        return BEGIN if self.word_ends[token] else INSIDE


class _Trie:
    """The nodes while they are made: as lists, which are faster than arrays one by one."""

    def __init__(self, phrases: Sequence[Spelling], ends: NDArray[np.bool_]) -> None:
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


def make_hot_words(phrases: Sequence[Spelling], word_ends: NDArray[np.bool_]) -> HotWords:
    """The automaton of the phrases of a list. word_ends [V]: as of `HotWords`.

    Raises OptionError if the phrases have too much in common.
    """
    trie, size = _Trie(phrases, word_ends), len(word_ends)
    nodes = range(len(trie.children))
    keys, following, bonuses = list[int](), list[int](), list[float]()
    for node in nodes:
        for token, (child, bonus) in sorted(trie.edges(node).items()):
            keys.append(node * size + token)
            following.append(child)
            bonuses.append(bonus)
        if len(keys) > MOST_EDGES:
            raise OptionError("hot_words: too many phrases have parts in common; give fewer")
    return HotWords(
        np.array(keys, dtype=np.int64),
        np.array(following, dtype=np.int64),
        np.array(bonuses, dtype=np.float32),
        np.array(trie.roots, dtype=np.int64),
        np.array([trie.at_risk(n) for n in nodes], dtype=np.float32),
        word_ends,
    )


@lru_cache(maxsize=8)
def word_ends(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """[V]: whether a word may begin after each token without a space: it ends with a sign that is
    no letter or digit, or is not text.
    """
    decode, ends = vocabulary.tokenizer().decode, np.ones(vocabulary.size, dtype=np.bool_)
    for ids in vocabulary.texts:
        for token in ids:
            last = decode([token])[-1:]
            # the bytes of a part of a character are no sign
            ends[token] = not (last.isalnum() or last == "\N{REPLACEMENT CHARACTER}")
    return ends


@lru_cache(maxsize=8)  # lists may be large
def hot_words(vocabulary: Vocabulary, lines: tuple[str, ...], bonus: float) -> HotWords:
    """The automaton of a list; equal ones are the same object. lines, bonus: as of `spellings`.

    Raises OptionError as `spellings` and `make_hot_words`.
    """
    return make_hot_words(spellings(vocabulary, lines, bonus), word_ends(vocabulary))


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
        out: [R, V] on a CPU to write them to, float32 as the logits are; None: a new tensor.
        """
        first_edges, counts, _, rows, _ = self.nodes.index_select(0, nodes).unbind(-1)
        outside = self.columns >= counts[:, None]
        edges = (first_edges[:, None] + self.columns).masked_fill_(outside, 0)
        tokens = self.keys[edges] - nodes[:, None] * len(self.word_continues)
        more = self.differences[edges].masked_fill_(outside, 0).to(logits.dtype)
        if out is None:
            boosted = self.first_bonuses[rows].to(logits.dtype).add_(logits)
        else:  # by NumPy: PyTorch's threads would spin after it, beside those of the kernels
            boosted, sums = out, out.numpy()
            for row, bonuses in enumerate(rows.tolist()):
                np.add(self.first_bonuses[bonuses].numpy(), logits[row].numpy(), out=sums[row])
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
    size = len(lists[0].word_ends)
    first_bonuses = np.zeros((_rounded(len(lists)) * ROOTS, size), dtype=np.float32)
    parts: list[list[NDArray[Any]]] = []
    node = edge = most = 0
    for number, h in enumerate(lists):
        nodes, rows = len(h.roots), h.roots + number * ROOTS
        first_edges = np.searchsorted(h.keys, np.arange(nodes + 1) * size)
        for root in (BEGIN, INSIDE):
            edges = slice(first_edges[root], first_edges[root + 1])
            first_bonuses[number * ROOTS + root, h.keys[edges] - root * size] = h.bonuses[edges]
        tokens, origins, counts = h.keys % size, h.keys // size, np.diff(first_edges)
        counts[:ROOTS] = 0
        by_node = (first_edges[:-1] + edge, counts, h.roots + node, rows, np.full(nodes, node))
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


class HotWordFilter(BonusFilter):
    """The tables of the lists in use. The state: the node of each row, int64, and what its text has
    gained, float32.
    """

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        size, is_text = vocabulary.size, [0] * vocabulary.size
        for ids in vocabulary.texts:
            is_text[ids.start : ids.stop] = [1] * len(ids)
        self.texts = vocabulary.texts
        (self.is_text,) = upload(device, is_text)  # [V]: 1 or 0
        self.lists = [make_hot_words((), np.ones(size, dtype=np.bool_))]  # the first is empty
        self.tables = make_tables(self.lists, device)
        nodes = torch.zeros(rows, dtype=torch.int64, device=device)
        self.state = nodes, torch.zeros(rows, dtype=torch.float32, device=device)
        # [R, V]: a CPU takes longer for new memory than for the bonuses
        self._boosted = torch.empty(rows if device.type == "cpu" else 0, size)

    @staticmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """Whether a window has a list."""
        return any(r.bonuses is not None for r in rules) or None

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Hold exactly the lists of these texts from now on, if one of them is new. Rows that stand
        in others become free.
        """
        lists = dict.fromkeys(r.bonuses for r in rules if r.bonuses is not None)
        if all(words in self.lists for words in lists):
            return False
        nodes, kept, old = self.state[0], self.lists, self.tables
        self.lists = [kept[0], *lists]
        begins = [self._first_node(words) if words in self.lists else -1 for words in kept]
        (moved,) = upload(nodes.device, begins)
        rows, firsts = old.nodes[nodes][:, 3:].unbind(1)
        targets = moved[rows // ROOTS]
        nodes.copy_(torch.where(targets < 0, 0, targets + nodes - firsts))
        self.tables = make_tables(self.lists, nodes.device, old)
        return self.tables is not old

    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """The nodes, and nothing gained yet."""
        words = rules.bonuses or self.lists[0]
        nodes = self._first_node(words) + np.array(words.walk(tokens))
        return nodes, np.zeros(len(nodes), dtype=np.float32)

    def _first_node(self, words: HotWords) -> int:
        before = self.lists[: self.lists.index(words)]
        return sum(len(other.roots) for other in before)

    # -- on the device ---------------------------------------------------------------------------

    def boosted(self, state: State, logits: Tensor) -> Tensor:
        """The bonuses of the rows' nodes."""
        fits = len(logits) <= len(self._boosted)  # not what `verify` reads of a long draft
        fits = fits and logits.dtype == self._boosted.dtype
        out = self._boosted[: len(logits)] if fits else None
        return self.tables.boosted(state[0], logits, out)

    def prefer(
        self, state: State, logits: Tensor, chosen: Chosen, draws: Draws | None = None
    ) -> Chosen:
        """The token whose bonus puts it above the chosen one."""
        (tokens, logprobs), boosted = chosen, self.boosted(state, logits)
        if self.texts == (range(self.texts[0].stop),):
            texts = boosted[:, : self.texts[0].stop]
        else:
            texts = boosted.masked_fill(self.is_text == 0, NEVER)
        if texts.device.type == "cpu":  # as in `boosted`
            preferred = torch.from_numpy(texts.numpy().argmax(axis=1))
        else:
            preferred = texts.argmax(dim=1)
        if draws is not None:
            preferred = draws.replaced(boosted, preferred, self.is_text)
        before, after, bonus, other = (
            source.gather(1, which[:, None]).squeeze(1)
            for source in (logits, boosted)
            for which in (tokens, preferred)
        )
        changed = (self.is_text[tokens] > 0) & (preferred != tokens)
        if draws is None:  # of equal ones, the first choice
            changed &= other > bonus
        gained = (after - before).masked_fill_(~changed, 0).to(logprobs.dtype)
        return torch.where(changed, preferred, tokens), logprobs + gained

    def gained(self, state: State, tokens: Tensor) -> Tensor:
        """[R, n] float32."""
        return state[1][:, None] + self.tables.after(state[0], tokens)[1]

    def after(self, state: State, tokens: Tensor) -> State:
        """The next nodes, and what was gained or taken back on the way."""
        nodes, gained = self.tables.after(state[0], tokens)
        return nodes, state[1] + gained

    def kept(self, rows: slice) -> Tensor:
        """Without what an unfinished phrase may lose."""
        nodes, bonuses = self.state
        return bonuses[rows] - self.tables.at_risk[nodes[rows]]


FILTERS.append(HotWordFilter)
