"""Drafts from a text that the window is expected to follow: a script, or an earlier transcript
(prompt lookup decoding; Saxena 2023).

The last tokens of the text so far, with its prompt, are searched in the expected text; the token
after the longest match is the guess. So the search recovers after every difference. The expected
text has no timestamps: these are skipped in the search, and never guessed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.cache.rows import Rows
from slimwhisper.engine.drafting.drafter import Choose, DraftContext
from slimwhisper.engine.requests import Window
from slimwhisper.engine.uploads import padded, upload

COST = 0.02  # of a search, relative to a step of the model
LONGEST = 8  # tokens compared
NONE = -1


class Lookup:
    """A `Drafter` without a model."""

    cost = COST

    def __init__(self, rows: int, special: int, device: torch.device) -> None:
        """special: the first token that is not text."""
        self.special = special
        self.expected = torch.full((rows, LONGEST), NONE, dtype=torch.int64, device=device)

    def begin(self, first: int, windows: Sequence[Window], prompts: Tensor, rows: Rows) -> None:
        """Store the windows' expected texts."""
        longest = max(len(w.expected) for w in windows)
        more = longest + LONGEST - self.expected.shape[1]
        if more > 0:
            self.expected = torch.nn.functional.pad(self.expected, (0, more), value=NONE)
        tokens = padded([w.expected for w in windows], NONE, self.expected.shape[1])
        (self.expected[first : first + len(windows)],) = upload(self.expected.device, tokens)

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        """[R] int64. An empty text begins at the beginning of the expected one."""
        ending = self._last_tokens(context)  # [R, LONGEST], the newest token first
        expected = self.expected[context.indices]
        length = torch.zeros_like(expected)  # of the match that ends before each position
        matches = torch.ones_like(expected, dtype=torch.bool)
        for back in range(LONGEST):
            shifted = torch.nn.functional.pad(expected, (back + 1, 0), value=NONE)
            matches = matches & (shifted[:, : expected.shape[1]] == ending[:, back, None])
            matches &= ending[:, back, None] != NONE
            length += matches
        return expected.gather(1, length.argmax(dim=1, keepdim=True)).squeeze(1).clamp(min=0)

    def _last_tokens(self, context: DraftContext) -> Tensor:
        """The last text tokens of each row, the newest first: [R, LONGEST]."""
        count = context.texts.shape[1]
        positions = torch.arange(count, device=context.texts.device)
        seen = (positions <= context.positions[:, -1:]) & (context.texts < self.special)
        newest = torch.where(seen, positions, NONE).topk(min(LONGEST, count), dim=1).values
        return torch.where(newest < 0, NONE, context.texts.gather(1, newest.clamp(min=0)))

    def by_row(self) -> Sequence[Tensor]:
        """The expected texts."""
        return (self.expected,)

    def nbytes(self) -> int:
        """Bytes of the expected texts."""
        return self.expected.nbytes
