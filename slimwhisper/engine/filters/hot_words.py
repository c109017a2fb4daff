"""Hot words for all rows in parallel: where each text stands, and which token it prefers."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.filters.rules import NEVER, LogitFilter, State
from slimwhisper.engine.hot_words.automaton import ROOTS, HotWords, make_hot_words
from slimwhisper.engine.hot_words.tables import make_tables
from slimwhisper.engine.requests import Rules
from slimwhisper.engine.uploads import upload
from slimwhisper.types import SpecialTokens

# logits [R, V], the most likely tokens [R], and 1 for those to choose from, [V] -> tokens [R]
Draw = Callable[[Tensor, Tensor, Tensor], Tensor]
BLOCK = 256  # numbers of a row that a CPU compares at once


class BonusFilter(LogitFilter):
    """Texts gain bonuses, which beams are ranked with. Of such filters there is one at most."""

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        is_text = [0] * vocabulary.size
        for ids in vocabulary.texts:
            is_text[ids.start : ids.stop] = [1] * len(ids)
        self.texts = vocabulary.texts
        (self.is_text,) = upload(device, is_text)  # [V]: 1 or 0

    @abstractmethod
    def boosted(self, state: State, logits: Tensor) -> Tensor:
        """Logits or log-probabilities [R, V] with the bonuses, before any is taken back. The next
        call may overwrite them.
        """

    @abstractmethod
    def gained(self, state: State, tokens: Tensor) -> Tensor:
        """What the texts have gained with one of these tokens each, [R, n] -> [R, n] float32."""

    @abstractmethod
    def kept(self, rows: slice) -> Tensor:
        """What the texts in some rows have gained and keep if they end here: [R] float32."""

    def prefer(
        self,
        state: State,
        logits: Tensor,
        tokens: Tensor,
        logprobs: Tensor,
        draw: Draw | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The chosen text token of each row, or one that its bonus puts above it.

        A token that is no text stays: bonuses do not decide where a text or a segment ends.

        Arguments:
            logits: [R, V] by which tokens were chosen; those of banned tokens are -inf.
            tokens, logprobs: [R] int64 and floating.
            draw: draws tokens by logits; None: the most likely ones.
        Returns:
            tokens and logprobs, those of the model without the bonus.
        """
        boosted = self.boosted(state, logits)
        if self.texts == (range(self.texts[0].stop),):
            texts = boosted[:, : self.texts[0].stop]
        else:
            texts = boosted.masked_fill(self.is_text == 0, NEVER)
        preferred = argmax(texts)
        if draw is not None:
            preferred = draw(boosted, preferred, self.is_text)
        before, after, bonus, other = (
            source.gather(1, chosen[:, None]).squeeze(1)
            for source in (logits, boosted)
            for chosen in (tokens, preferred)
        )
        changed = (self.is_text[tokens] > 0) & (preferred != tokens)
        if draw is None:  # of equal ones, the first choice
            changed &= other > bonus
        gained = (after - before).masked_fill_(~changed, 0).to(logprobs.dtype)
        return torch.where(changed, preferred, tokens), logprobs + gained


def argmax(numbers: Tensor) -> Tensor:
    """The index of the largest number of each row, [R, n] -> [R] int64: the first one of equals."""
    size = numbers.shape[1] // BLOCK * BLOCK
    if numbers.device.type != "cpu" or not size:
        return numbers.argmax(dim=1)
    # PyTorch's argmax takes ten times as long as its maximum
    maxima = numbers[:, :size].unflatten(1, (-1, BLOCK)).amax(dim=2)
    if size < numbers.shape[1]:
        maxima = torch.cat([maxima, numbers[:, size:].amax(dim=1, keepdim=True)], dim=1)
    index = maxima.argmax(dim=1, keepdim=True) * BLOCK + torch.arange(BLOCK)
    index.clamp_(max=numbers.shape[1] - 1)
    return index.gather(1, numbers.gather(1, index).argmax(dim=1, keepdim=True)).squeeze(1)


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
