"""All filters, and those that a row group uses."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.filters.base import BonusFilter, LogitFilter, State, Texts
from slimwhisper.engine.filters.hot_words import HotWordFilter
from slimwhisper.engine.filters.repetition import Repetition
from slimwhisper.engine.filters.suppression import Suppression
from slimwhisper.engine.filters.timestamps import Timestamps
from slimwhisper.engine.requests import Rules
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.types import SpecialTokens

# in the order in which they are applied
FILTERS: tuple[type[LogitFilter], ...] = (Suppression, Repetition, Timestamps, HotWordFilter)

InUse = tuple[tuple[LogitFilter, Hashable], ...]  # filters, each with its setting


class Filters:
    """The filters that the texts of a row group have had use for so far."""

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        self.rows, self.vocabulary, self.device = rows, vocabulary, device
        self.timestamps = Timestamps(rows, vocabulary, device)  # whose kernel chooses tokens, too
        self.made: dict[type[LogitFilter], LogitFilter] = {Timestamps: self.timestamps}

    @property
    def bonus(self) -> BonusFilter | None:
        """The filter with bonuses, once a text has used one."""
        return next((f for f in self.made.values() if isinstance(f, BonusFilter)), None)

    def tensors(self) -> Iterator[Tensor]:
        """The states of all rows, [rows, ...] each."""
        for f in self.made.values():
            yield from f.state

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
        settings = ((kind, kind.setting(rules)) for kind in FILTERS)
        return tuple(
            (self.made[kind], setting) for kind, setting in settings if setting is not None
        )

    def start(self, rows: slice, states: Sequence[Tensor]) -> None:
        """Start texts in some rows, in states in the order of `tensors`."""
        for tensor, started in zip(self.tensors(), states, strict=True):
            tensor[rows] = started

    def view(self, in_use: InUse, rows: slice) -> dict[LogitFilter, State]:
        """The states of some rows."""
        return {f: tuple(t[rows] for t in f.state) for f, _ in in_use}

    def changing(self, in_use: InUse) -> Iterator[Tensor]:
        """Of the states of all rows, what changes with each token."""
        for f, _ in in_use:
            yield from f.state[f.fixed :]

    def at_end(self, rules: Rules, tokens: Sequence[int]) -> list[NDArray[Any]]:
        """A text's states after some tokens, [...] each, in the order of `tensors`."""
        return [np.asarray(t)[-1] for f in self.made.values() for t in f.along(rules, tokens)]

    def advance(
        self,
        rows: slice,
        states: Mapping[LogitFilter, State],
        tokens: Tensor,
        active: Tensor | None = None,
    ) -> None:
        """Record one more token [R] of texts in these states, in some rows. active [R] bool: of
        these alone; the others get the states as they are.
        """
        for f, state in states.items():
            every = zip(f.state, state, f.after(state, tokens), strict=True)
            for tensor, before, after in list(every)[f.fixed :]:
                tensor[rows] = after if active is None else torch.where(active, after, before)

    def apply(self, in_use: InUse, logits: Tensor, texts: Texts) -> None:
        """Change the logits [R, V] of the texts' next tokens."""
        for f, setting in in_use:
            f.apply(logits, texts, setting)

    def most_likely(
        self, in_use: InUse, logits: Tensor, texts: Texts, kernels: Kernels
    ) -> tuple[Tensor, Tensor]:
        """Each text's most likely next token by all filters, and its log-probability: [R] int64,
        [R] floating. logits [R, V] may be changed.
        """
        others = tuple(pair for pair in in_use if pair[0] is not self.timestamps)
        self.apply(others, logits, texts)
        tokens, logprobs = self.timestamps.most_likely(logits, texts, kernels)
        bonus = bonus_of(in_use)
        if bonus is None:
            return tokens, logprobs
        return bonus.prefer(texts.states[bonus], logits, tokens, logprobs)


def bonus_of(in_use: InUse) -> BonusFilter | None:
    """The filter with bonuses, if there is one."""
    return next((f for f, _ in in_use if isinstance(f, BonusFilter)), None)
