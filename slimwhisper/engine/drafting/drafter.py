"""The draft interface for speculative decoding: `Speculation` verifies what a `Drafter` guesses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from slimwhisper.cache.rows import Rows

Choose = Callable[[Tensor], Tensor]  # logits [R, V], floating, may be changed -> tokens [R] int64


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The input of a drafter: the last tokens of some texts."""

    rows: Rows
    texts: Tensor  # [R, n] int64: all tokens of each text, its prompt first, with any padding
    positions: Tensor  # [R, T] int64: of the last T tokens, which the drafter has not read
    extent: int  # the largest position + 1, or more

    @property
    def tokens(self) -> Tensor:
        """[R, T] int64: the tokens that the drafter has not read."""
        return self.texts.gather(1, self.positions)


class Drafter(Protocol):
    """Guesses the next tokens of texts. A new kind of draft is a class with these methods."""

    cost: float  # of one more token, relative to a step without drafts

    def begin(self, prompts: Tensor, rows: Rows) -> None:
        """Start texts: prompts [R, T] int64, padded on the right; rows: of the caches."""

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        """The next tokens [R]. choose: picks the best one by the window's rules, or the random one
        that the window will sample.
        """

    def nbytes(self) -> int:
        """Bytes of its cache of the texts."""
