"""The interface of a rule for the next token: `whisper.decoding.LogitFilter`, for many texts.

What a filter knows of a text is its state: tensors with one row for each text. Rows move when a
window ends, beams copy them, and the tokens of a draft are rows of their own; so a filter works on
the states that it is given. On the device, nothing is copied to the host.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from slimwhisper.engine.requests import Rules
from slimwhisper.types import SpecialTokens

NEVER = float("-inf")

State = tuple[Tensor, ...]  # [R, ...] each
# logits [R, V], the most likely tokens [R], and 1 for those to choose from, [V] -> tokens [R]
Draw = Callable[[Tensor, Tensor, Tensor], Tensor]


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
    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[ArrayLike]:
        """A text's state before each of T tokens and after the last, on the host: [T + 1, ...]."""

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """Change the logits [R, V] of the texts' next tokens, float32 or float64."""

    def after(self, state: State, tokens: Tensor) -> State:
        """The state after one more token of each text, [R] int64."""
        return state


class BonusFilter(LogitFilter):
    """A filter that chooses other text tokens, by bonuses, and leaves log-probabilities alone. Of
    such filters there is one at most.
    """

    @abstractmethod
    def boosted(self, state: State, logits: Tensor) -> Tensor:
        """Logits or log-probabilities [R, V] with the bonuses. The next call may overwrite them."""

    @abstractmethod
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

    @abstractmethod
    def gained(self, state: State, tokens: Tensor) -> Tensor:
        """What the texts have gained with one of these tokens each, [R, n] -> [R, n] float32."""

    @abstractmethod
    def kept(self, state: State) -> Tensor:
        """What the texts have gained and will keep if they end here: [R] float32."""
