"""Hot words for all rows in parallel: where each text stands, and which token it prefers.

Nothing is copied to the host. `RowState` allocates this when a text first has hot words.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slimwhisper.engine.hot_words.automaton import ROOTS, HotWords, hot_words
from slimwhisper.engine.hot_words.tables import make_tables, replace_tables
from slimwhisper.engine.uploads import upload
from slimwhisper.tokens.vocabulary import Vocabulary

# logits [R, V] with bonuses, and the most likely text tokens [R] -> text tokens [R]
Draw = Callable[[Tensor, Tensor], Tensor]
BLOCK = 256  # numbers of a row that a CPU compares at once
NEVER = float("-inf")


class HotWordRows:
    """The tables of the lists in use, and the node of each row."""

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        self.lists = [hot_words(vocabulary, (), 0.0)]  # the first is empty
        self.tables = make_tables(self.lists, device)
        is_text = [0] * vocabulary.size
        for ids in vocabulary.texts:
            is_text[ids.start : ids.stop] = [1] * len(ids)
        self.texts = vocabulary.texts
        (self.is_text,) = upload(device, is_text)  # [V]: 1 or 0
        self.nodes = torch.zeros(rows, dtype=torch.int64, device=device)
        self.bonuses = torch.zeros(rows, dtype=torch.float32, device=device)  # gained by each text
        # [R, V]: a CPU takes longer for new memory than for the bonuses
        self._boosted = torch.empty(rows if device.type == "cpu" else 0, vocabulary.size)

    def use(self, lists: Sequence[HotWords]) -> bool:
        """Hold exactly these lists from now on, if one of them is new. Rows that stand in others
        become free. Returns whether tensors were replaced.
        """
        if all(words in self.lists for words in lists):
            return False
        device, kept = self.nodes.device, self.lists
        self.lists = [kept[0], *dict.fromkeys(words for words in lists if words is not kept[0])]
        new = make_tables(self.lists, device)
        begins = [self._first_node(words) if words in self.lists else -1 for words in kept]
        (moved,) = upload(device, begins)
        rows, firsts = self.tables.nodes[self.nodes][:, 3:].unbind(1)
        targets, inside = moved[rows // ROOTS], self.nodes - firsts
        self.nodes.copy_(torch.where(targets < 0, 0, targets + inside))
        return replace_tables(self.tables, new)

    def start(self, rows: slice, words: HotWords | None, tokens: Sequence[int]) -> None:
        """Start texts with these tokens in some rows."""
        words = words or self.lists[0]
        self.nodes[rows] = self._first_node(words) + words.walk(tokens)[-1]
        self.bonuses[rows] = 0

    def nodes_of(self, words: HotWords, tokens: Sequence[int]) -> list[int]:
        """The node before each of these tokens of a text, on the host."""
        begin = self._first_node(words)
        return [begin + node for node in words.walk(tokens)[:-1]]

    def _first_node(self, words: HotWords) -> int:
        before = self.lists[: self.lists.index(words)]
        return sum(len(other.roots) for other in before)

    # -- on the device ---------------------------------------------------------------------------

    def prefer(
        self,
        nodes: Tensor,
        logits: Tensor,
        tokens: Tensor,
        logprobs: Tensor,
        draw: Draw | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The chosen text token of each row, or one that its bonus puts above it.

        A token that is no text stays: hot words do not decide where a text or a segment ends.

        Arguments:
            nodes: [R] int64.
            logits: [R, V] by which tokens were chosen; those of banned tokens are -inf.
            tokens, logprobs: [R] int64 and floating.
            draw: draws text tokens by logits [R, V]; None: the most likely ones.
        Returns:
            tokens and logprobs, those of the model without the bonus.
        """
        boosted = self._boost(nodes, logits)
        if self.texts == (range(self.texts[0].stop),):
            texts = boosted[:, : self.texts[0].stop]
        else:
            texts = boosted.masked_fill(self.is_text == 0, NEVER)
        preferred = _argmax(texts) if draw is None else draw(boosted, _argmax(texts))
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

    def boosted(self, logprobs: Tensor, block: slice) -> Tensor:
        """Log-probabilities [R, V] of a block's rows with the bonuses, before anything is taken
        back. The next call may overwrite them.
        """
        return self._boost(self.nodes[block], logprobs)

    def _boost(self, nodes: Tensor, logits: Tensor) -> Tensor:
        fits = len(nodes) <= len(self._boosted)  # not what `verify` reads of a long draft
        return self.tables.boosted(nodes, logits, self._boosted[: len(nodes)] if fits else None)

    def bonuses_with(self, block: slice, tokens: Tensor) -> Tensor:
        """What the block's texts would have gained with one of these tokens each, [R, n]."""
        gained = self.tables.after(self.nodes[block], tokens)[1]
        return self.bonuses[block][:, None] + gained

    def advance(self, block: slice, tokens: Tensor, active: Tensor | None = None) -> None:
        """Record one more token [R] of the block's rows. active [R] bool: only of these."""
        nodes, gained = self.tables.after(self.nodes[block], tokens)
        if active is not None:
            nodes = torch.where(active, nodes, self.nodes[block])
            gained = gained * active
        self.nodes[block] = nodes
        self.bonuses[block] += gained

    def safe_bonuses(self, rows: slice) -> Tensor:
        """What the texts have gained, without what an unfinished phrase may lose: [R] float32."""
        return self.bonuses[rows] - self.tables.at_risk[self.nodes[rows]]


def _argmax(numbers: Tensor) -> Tensor:
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
