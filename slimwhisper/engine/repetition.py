"""Limits on what a text may repeat, for all rows in parallel: CTranslate2's `repetition_penalty`
(arXiv 1909.05858) and `no_repeat_ngram_size`.

Both look at the tokens that were sampled in this window, timestamps too, and not at the prompt.
Nothing is copied to the host. `RowState` allocates the limits when a text first has some.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RepetitionLimits:
    """The limits of each row."""

    penalties: Tensor  # [R] float64: logits are divided by it, or multiplied below 0; 1: none
    ngrams: Tensor  # [R] int64: tokens in a row that may occur once only; 0: no limit

    @staticmethod
    def allocate(rows: int, device: torch.device) -> "RepetitionLimits":
        """No limits."""
        return RepetitionLimits(
            torch.ones(rows, dtype=torch.float64, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """Both [R]."""
        return self.penalties, self.ngrams

    def start(self, rows: slice, penalty: float, ngram: int) -> None:
        """Set the limits of some rows."""
        self.penalties[rows] = penalty
        self.ngrams[rows] = ngram

    def apply(self, logits: Tensor, rows: slice, texts: Tensor, counts: Tensor, most: int) -> None:
        """Change the logits [R, V] of these rows' next tokens, float32 or float64.

        texts [R, L] int64, of which the first `counts` [R] tokens were sampled. most: the largest
        of the rows' `ngrams`.
        """
        _penalize(logits, texts, counts, self.penalties[rows].to(logits.dtype)[:, None])
        if most:
            _forbid_ngrams(logits, texts, counts, self.ngrams[rows][:, None], most)


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
    banned = torch.zeros_like(texts, dtype=logits.dtype).masked_fill_(repeats, float("-inf"))
    logits.scatter_add_(1, texts, banned)
