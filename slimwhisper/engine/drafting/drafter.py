"""Who guesses how texts go on, for `Speculation` to check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.engine.requests import Window

Choose = Callable[[Tensor], Tensor]  # logits [R, V], floating, may be changed -> tokens [R] int64


@dataclass(frozen=True, slots=True)
class Behind:
    """What a drafter reads: the last tokens of some texts."""

    rows: Rows
    here: Tensor  # [R] int64: the rows of the lane
    texts: Tensor  # [R, n] int64: all tokens of each text, its prompt first; then, any
    positions: Tensor  # [R, T] int64: where the last T are that the drafter has not read
    extent: int  # the largest position + 1, or more

    @property
    def tokens(self) -> Tensor:
        """[R, T] int64: those at the positions."""
        return self.texts.gather(1, self.positions)


class Drafter(Protocol):
    """Guesses how texts go on. A new kind of draft is a class with these methods."""

    cost: float  # of one more token, relative to a step without drafts

    def begin(self, first: int, windows: Sequence[Window], prompts: Tensor, rows: Rows) -> None:
        """Start the windows' texts in rows first, first + 1 ... of the lane, which the caches have
        at `rows`; prompts [R, T] int64, padded on the right.
        """

    def guess(self, behind: Behind, choose: Choose) -> Tensor:
        """The tokens [R] that follow. choose: the best by the window's rules, or the random one
        that the window will draw.
        """

    def by_row(self) -> Sequence[Tensor]:
        """What it keeps by row of the lane, [rows, ...]; rows move when a text ends."""

    def nbytes(self) -> int:
        """Bytes of what it keeps of the texts."""
