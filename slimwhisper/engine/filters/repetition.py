"""Limits on what a text may repeat: CTranslate2's `repetition_penalty` (arXiv 1909.05858) and
`no_repeat_ngram_size`.

Both look at the tokens that were sampled in this window, timestamps too, and not at the prompt.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.filters.base import NEVER, LogitFilter, Texts
from slimwhisper.engine.requests import Rules
from slimwhisper.types import SpecialTokens


class Repetition(LogitFilter):
    """The limits of each row."""

    fixed = 2
    drafts = False  # the tokens of a draft are not among the texts' tokens

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        self.state = (  # both [R]
            # logits are divided by it, or multiplied below 0; 1: none
            torch.ones(rows, dtype=torch.float64, device=device),
            # tokens in a row that may occur once only; 0: no limit
            torch.zeros(rows, dtype=torch.int64, device=device),
        )

    @staticmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """The largest n-gram; None without any limit."""
        limited = (r for r in rules if r.repetition_penalty != 1 or r.no_repeat_ngram_size > 0)
        return max((r.no_repeat_ngram_size for r in limited), default=None)

    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """The same at each token."""
        shape = len(tokens) + 1
        return (
            np.full(shape, rules.repetition_penalty, dtype=np.float64),
            np.full(shape, rules.no_repeat_ngram_size),
        )

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """setting: the largest n-gram of the rows."""
        (penalties, ngrams), (tokens, counts, _) = texts.states[self], texts
        _penalize(logits, tokens, counts, penalties.to(logits.dtype)[:, None])
        if isinstance(setting, int) and setting:
            _forbid_ngrams(logits, tokens, counts, ngrams[:, None], setting)


def _penalize(logits: Tensor, texts: Tensor, counts: Tensor, penalties: Tensor) -> None:
    """Penalties [R, 1]. A token that occurs twice is written twice, with the same value."""
    index = torch.arange(texts.shape[1], device=texts.device)
    # behind the text, its first token again; a row without text writes what was there
    tokens = torch.where(index < counts[:, None], texts, texts[:, :1])
    before = logits.gather(1, tokens)
    after = torch.where(before < 0, before * penalties, before / penalties)
    logits.scatter_(1, tokens, torch.where(counts[:, None] > 0, after, before))


def _forbid_ngrams(logits: Tensor, texts: Tensor, counts: Tensor, sizes: Tensor, most: int) -> None:
    """Forbid each token of the text that follows the last `sizes - 1` [R, 1] tokens elsewhere."""
    index, counts = torch.arange(texts.shape[1], device=texts.device), counts[:, None]
    repeats = (sizes > 0) & (index >= sizes - 1) & (index < counts)
    for back in range(1, most):
        before = texts.gather(1, (index - back).clamp_(min=0).expand_as(texts))
        last = texts.gather(1, (counts - back).clamp_(min=0))
        repeats &= (before == last) | (back >= sizes)
    banned = torch.zeros_like(texts, dtype=logits.dtype).masked_fill_(repeats, NEVER)
    logits.scatter_add_(1, texts, banned)
