"""All filters, and those that a row group uses."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from slimwhisper.engine.filters.hot_words import BonusFilter, HotWordFilter
from slimwhisper.engine.filters.rules import (
    LogitFilter,
    Repetition,
    State,
    Suppression,
    Texts,
    Timestamps,
)
from slimwhisper.engine.requests import Rules
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.types import SpecialTokens

# in the order in which they are applied
FILTERS: tuple[type[LogitFilter], ...] = (Suppression, Repetition, Timestamps, HotWordFilter)

InUse = dict[LogitFilter, Hashable]  # filters, each with its setting


class Filters:
    """The filters that the texts of a row group have had use for so far."""

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        self.rows, self.vocabulary, self.device = rows, vocabulary, device
        self.timestamps = Timestamps(rows, vocabulary, device)  # whose kernel chooses tokens, too
        self.made: dict[type[LogitFilter], LogitFilter] = {Timestamps: self.timestamps}

    def tensors(self) -> Iterable[Tensor]:
        """The states of all rows, [rows, ...] each."""
        return chain.from_iterable(f.state for f in self.made.values())

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Make and prepare the filters that all texts of the group need. Returns whether tensors
        were replaced: graphs that read them must be recorded again.
        """
        for kind in FILTERS:
            if kind not in self.made and kind.setting(rules) is not None:
                self.made[kind] = kind(self.rows, self.vocabulary, self.device)
        return any([f.prepare(rules) for f in self.made.values()])

    def in_use(self, rules: Sequence[Rules]) -> InUse:
        """The filters that some windows use."""
        settings = {kind: kind.setting(rules) for kind in FILTERS}
        return {self.made[kind]: s for kind, s in settings.items() if s is not None}

    def most_likely(
        self, in_use: InUse, logits: Tensor, texts: Texts, kernels: Kernels
    ) -> tuple[Tensor, Tensor]:
        """Each text's most likely next token by all filters, and its log-probability: [R] int64,
        [R] floating. logits [R, V] may be changed.
        """
        for f, setting in in_use.items():
            if f is not self.timestamps:
                f.apply(logits, texts, setting)
        tokens, logprobs = self.timestamps.most_likely(logits, texts, kernels)
        bonus = bonus_of(in_use)
        if bonus is None:
            return tokens, logprobs
        return bonus.prefer(texts.states[bonus], logits, tokens, logprobs)


def advance(
    rows: slice,
    states: Mapping[LogitFilter, State],
    tokens: Tensor,
    active: Tensor | None = None,
) -> None:
    """Record one more token [R] of texts in these states, in some rows of a group. active [R] bool:
    of these alone; the others get the states as they are.
    """
    for f, state in states.items():
        every = zip(f.state, state, f.after(state, tokens), strict=True)
        for tensor, before, after in list(every)[f.fixed :]:
            tensor[rows] = after if active is None else torch.where(active, after, before)


def bonus_of(filters: Iterable[LogitFilter]) -> BonusFilter | None:
    """The filter with bonuses, if there is one among these."""
    return next((f for f in filters if isinstance(f, BonusFilter)), None)
