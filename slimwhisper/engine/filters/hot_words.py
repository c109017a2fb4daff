"""Hot words for all rows in parallel: where each text stands, and which token it prefers."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.filters.base import State
from slimwhisper.engine.filters.bonus import BonusFilter
from slimwhisper.engine.hot_words.automaton import ROOTS, HotWords, make_hot_words
from slimwhisper.engine.hot_words.tables import make_tables
from slimwhisper.engine.requests import Rules
from slimwhisper.engine.uploads import upload
from slimwhisper.types import SpecialTokens


class HotWordFilter(BonusFilter):
    """The tables of the lists in use. The state: the node of each row, int64, and what its text has
    gained, float32.
    """

    drafts = False

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        super().__init__(rows, vocabulary, device)
        size = vocabulary.size
        self.lists = [make_hot_words((), np.ones(size, dtype=np.bool_))]  # the first is empty
        self.tables = make_tables(self.lists, device)
        nodes = torch.zeros(rows, dtype=torch.int64, device=device)
        self.state = nodes, torch.zeros(rows, dtype=torch.float32, device=device)
        # [R, V]: a CPU takes longer for new memory than for the bonuses
        self._boosted = torch.empty(rows if device.type == "cpu" else 0, size)

    @staticmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """Whether a window has a list."""
        return any(r.hot_words is not None for r in rules) or None

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Hold exactly the lists of these texts from now on, if one of them is new. Rows that stand
        in others become free.
        """
        lists = dict.fromkeys(r.hot_words for r in rules if r.hot_words is not None)
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
        words = rules.hot_words or self.lists[0]
        nodes = self._first_node(words) + np.array(words.walk(tokens))
        return nodes, np.zeros(len(nodes), dtype=np.float32)

    def _first_node(self, words: HotWords) -> int:
        before = self.lists[: self.lists.index(words)]
        return sum(len(other.roots) for other in before)

    # -- on the device ---------------------------------------------------------------------------

    def boosted(self, state: State, logits: Tensor) -> Tensor:
        """The bonuses of the rows' nodes."""
        fits = len(logits) <= len(self._boosted)  # not what `verify` reads of a long draft
        out = self._boosted[: len(logits)] if fits else None
        return self.tables.boosted(state[0], logits, out)

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
