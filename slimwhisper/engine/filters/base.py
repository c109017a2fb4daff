"""The interface of a rule for the next token: `whisper.decoding.LogitFilter`, for many texts.

What a filter knows of a text is its state: tensors with one row for each text. Rows move when a
window ends, beams copy them, and the tokens of a draft are rows of their own; so a filter works on
the states that it is given. On the device, nothing is copied to the host.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.requests import Rules
from slimwhisper.types import SpecialTokens

NEVER = float("-inf")

State = tuple[Tensor, ...]  # [R, ...] each


class Texts(NamedTuple):
    """R texts before their next token."""

    tokens: Tensor  # [R, L] int64, of which the first `counts` were sampled
    counts: Tensor  # [R] int64
    states: dict["LogitFilter", State]  # of the filters in use

    def map(self, function: Callable[[Tensor], Tensor]) -> "Texts":
        """With each tensor changed."""
        states = {f: tuple(map(function, state)) for f, state in self.states.items()}
        return Texts(function(self.tokens), function(self.counts), states)

    def after(self, tokens: Tensor) -> "Texts":
        """The counts and states after one more token of each text, [R] int64."""
        states = {f: f.after(state, tokens) for f, state in self.states.items()}
        return Texts(self.tokens, self.counts + 1, states)


def side_by_side(moments: Sequence[Texts]) -> Texts:
    """T moments of R texts as [R, T, ...] each."""
    tokens, counts, states = zip(*moments, strict=True)
    columns = {f: zip(*(state[f] for state in states), strict=True) for f in states[0]}
    return Texts(
        torch.stack(tokens, dim=1),
        torch.stack(counts, dim=1),
        {f: tuple(torch.stack(t, dim=1) for t in column) for f, column in columns.items()},
    )


class LogitFilter:
    """A rule for the next token of the rows of a group. A new one is a class with these methods, in
    `table.FILTERS`.
    """

    fixed: ClassVar[int] = 0  # the first tensors of its state, which stay while a text lasts
    drafts: ClassVar[bool] = True  # whether texts with it may be drafted by `Speculation`
    state: State  # of all rows

    @abstractmethod
    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        """The state of rows that the filter leaves as they are."""

    @staticmethod
    @abstractmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """What `apply` must know on the host of some windows' rules, which graphs are recorded for.
        None: the windows have no use for the filter.
        """

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Hold what all texts of the group need. Returns whether tensors were replaced: graphs that
        read them must be recorded again.
        """
        return False

    @abstractmethod
    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """A text's state before each of T tokens and after the last: [T + 1, ...], on the host."""

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """Change the logits [R, V] of the texts' next tokens, float32 or float64."""

    def after(self, state: State, tokens: Tensor) -> State:
        """The state after one more token of each text, [R] int64."""
        return state
