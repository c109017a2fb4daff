"""Filters that choose other text tokens, by bonuses, and leave log-probabilities alone."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from slimwhisper.engine.filters.base import NEVER, LogitFilter, State
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
