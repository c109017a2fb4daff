"""Drafts from a text that the window is expected to follow: a script, or an earlier transcript
(prompt lookup decoding; Saxena 2023).

The expected text is searched for the longest end of what has been written so far, the prompt
included; what follows it there is the guess. So it finds its place again after every difference.
It has no timestamps: these are skipped in the search, and never guessed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.engine.drafting.drafter import Behind, Choose
from slimwhisper.engine.requests import Window

COST = 0.02  # a search, next to a step of the model
LONGEST = 8  # tokens that are compared
NONE = -1


class Lookup:
    """A `Drafter` without a model."""

    cost = COST

    def __init__(self, rows: int, special: int, device: torch.device) -> None:
        """special: the first token that is no text."""
        self.special = special
        self.expected = torch.full((rows, LONGEST), NONE, dtype=torch.int64, device=device)

    def begin(self, first: int, windows: Sequence[Window], prompts: Tensor, rows: Rows) -> None:
        """Take the windows' expected texts."""
        longest = max(len(w.expected) for w in windows)
        more = longest + LONGEST - self.expected.shape[1]
        if more > 0:
            self.expected = torch.nn.functional.pad(self.expected, (0, more), value=NONE)
        padded = [
            [*w.expected, *[NONE] * (self.expected.shape[1] - len(w.expected))] for w in windows
        ]
        given = torch.tensor(padded, device=self.expected.device)
        self.expected[first : first + len(windows)] = given

    def guess(self, behind: Behind, choose: Choose) -> Tensor:
        """[R] int64. A text of which nothing has been written begins at the beginning."""
        written = self._ends(behind)  # [R, LONGEST], the newest token first
        expected = self.expected[behind.here]
        length = torch.zeros_like(expected)  # of what agrees, before each place
        agrees = torch.ones_like(expected, dtype=torch.bool)
        for back in range(LONGEST):
            shifted = torch.nn.functional.pad(expected, (back + 1, 0), value=NONE)
            agrees = agrees & (shifted[:, : expected.shape[1]] == written[:, back, None])
            agrees &= written[:, back, None] != NONE
            length += agrees
        return expected.gather(1, length.argmax(dim=1, keepdim=True)).squeeze(1).clamp(min=0)

    def _ends(self, behind: Behind) -> Tensor:
        """The last text tokens of each row, the newest first: [R, LONGEST]."""
        count = behind.texts.shape[1]
        places = torch.arange(count, device=behind.texts.device)
        seen = (places <= behind.positions[:, -1:]) & (behind.texts < self.special)
        newest = torch.where(seen, places, NONE).topk(min(LONGEST, count), dim=1).values
        return torch.where(newest < 0, NONE, behind.texts.gather(1, newest.clamp(min=0)))

    def by_row(self) -> Sequence[Tensor]:
        """The expected texts."""
        return (self.expected,)

    def nbytes(self) -> int:
        """Bytes of the expected texts."""
        return self.expected.nbytes
