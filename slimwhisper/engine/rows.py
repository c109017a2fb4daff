"""The rows of a group: each text's tokens, sums and rules, a few kB, on the device.

Active rows are the first ones, so that a step reads them in place. When a window ends, the last
window's rows move to its rows; the caches of audio and text stay where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from slimwhisper.cache.pool import pages_of
from slimwhisper.cache.rows import Rows
from slimwhisper.engine.hot_words.automaton import HotWords
from slimwhisper.engine.hot_words.rows import HotWordRows
from slimwhisper.engine.repetition import RepetitionLimits
from slimwhisper.engine.rules import NO_TOKEN, BannedTokens, TimestampState
from slimwhisper.engine.snapshots import TextBuffers
from slimwhisper.engine.tickets import Ticket
from slimwhisper.engine.uploads import padded
from slimwhisper.engine.verification import AcceptedPrefix
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Dims


@dataclass(slots=True)
class StepBatch:
    """The rows of one step; only `extent` changes while the tickets stay the same."""

    rows: Rows
    block: slice  # of the group's rows
    indices: Tensor  # [R] int64: the rows in `block`
    extent: int  # tokens to read of each row
    sampling_rows: Tensor | None  # [n] int64 within the block: temperature > 0
    timestamps: bool  # at least one row samples them
    logprobs: bool = False  # at least one row records each token's
    # the largest `no_repeat_ngram_size` of its rows; None: no row limits what it repeats
    ngrams: int | None = None
    hot_words: bool = False  # at least one row has some


class RowState:
    """Tensors [rows, ...], or [windows, ...] for what the rows of a window have in common."""

    def __init__(
        self, dims: Dims, device: torch.device, windows: int, width: int, scratch: tuple[int, int]
    ) -> None:
        """scratch: the row and the page of the caches that padding is written to."""
        rows = windows * width
        self.context, self.scratch = dims.n_text_ctx, scratch
        limit = dims.n_text_ctx // 2 + 1

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.texts = TextBuffers(
            last=zeros(rows),
            sampled=zeros(rows, limit),
            logprobs=zeros(rows, dtype=torch.float32),
            token_logprobs=zeros(rows, limit, dtype=torch.float32),
            no_speech=zeros(windows, dtype=torch.float32),
            bonuses=None,
        )
        self.row_indices = torch.arange(rows, device=device)
        self.positions = zeros(rows)
        self.temperatures = zeros(rows, dtype=torch.float32)
        self.keys = zeros(rows, limit)  # of random draws
        self.banned = BannedTokens.allocate(rows, device)
        self.stamps = TimestampState.allocate(rows, device)
        self.repetition: RepetitionLimits | None = None  # of all rows, once one has limits
        self.hot_words: HotWordRows | None = None  # of all rows, once one has some
        # where the caches have their texts and audio
        pages = pages_of(dims.n_text_ctx)
        self.locations = Rows(
            ids=torch.full((rows,), scratch[0], device=device),
            slots=zeros(windows),
            group=width,
            table=torch.full((rows, pages), scratch[1], device=device),
        )

    @property
    def width(self) -> int:
        """Rows of a window."""
        return self.locations.group

    @property
    def limit(self) -> int:
        """The most tokens that are sampled, plus one."""
        return self.keys.shape[1]

    @property
    def table(self) -> Tensor:
        """[rows, pages] int64: the block table."""
        assert self.locations.table is not None
        return self.locations.table

    def by_row(self) -> Sequence[Tensor]:
        """All tensors [rows, ...]."""
        texts = self.texts
        return (
            *(texts.last, texts.sampled, texts.logprobs, texts.token_logprobs),
            *(self.positions, self.temperatures, self.keys, self.locations.ids, self.table),
            *(*self.banned.tensors(), *self.stamps.tensors()),
            *(() if self.repetition is None else self.repetition.tensors()),
            *(() if self.hot_words is None else (self.hot_words.nodes, self.hot_words.bonuses)),
        )

    def by_window(self) -> Sequence[Tensor]:
        """All tensors [windows, ...]."""
        return self.texts.no_speech, self.locations.slots

    def batch(self, first: int, count: int, tickets: Sequence[Ticket] = ()) -> StepBatch:
        """The rows of windows first ... first + count - 1. tickets: theirs; a graph has none, as it
        reads all that it needs on the device.
        """
        locations, width = self.locations, self.width
        begin, end = first * width, (first + count) * width
        device, windows = locations.ids.device, [t.window for t in tickets]
        rules = [w.rules for w in windows if w.rules is not None]
        sampled, sampling_rows = [w.attempt.temperature > 0 for w in windows], None
        if any(sampled) and device.type == "cpu":
            sampling_rows = torch.tensor(sampled).repeat_interleave(width).nonzero().flatten()
        elif any(sampled):  # a step of all rows asks the host for nothing
            sampling_rows = self.row_indices[: end - begin]
        rows = Rows(
            ids=locations.ids[begin:end],
            slots=locations.slots[first : first + count],
            group=width,
            table=self.table[begin:end],
            first_slot=_consecutive([t.slot for t in tickets]),
            first_row=_consecutive([t.cache_index for t in tickets], width),
        )
        return StepBatch(
            rows,
            slice(begin, end),
            self.row_indices[begin:end],
            0,
            sampling_rows,
            any(r.timestamps for r in rules),
            any(w.logprobs for w in windows),
            max((r.no_repeat_ngram_size for r in rules if r.limits_repetition), default=None),
            any(r.hot_words is not None for r in rules),
        )

    def filter(self, batch: StepBatch, logits: Tensor) -> None:
        """Forbid what the rows may not sample, and penalize what they repeat: logits [R, V], which
        are changed. The timestamp rules come after it.
        """
        self.banned.apply(logits, batch.block)
        if batch.ngrams is not None:
            assert self.repetition is not None
            texts, counts = self.texts.sampled[batch.block], self.stamps.count[batch.block]
            self.repetition.apply(logits, batch.block, texts, counts, batch.ngrams)

    def stay_within_buffers(self, block: slice) -> None:
        """For the rows that pad a graph, which advance like all others."""
        self.positions[block].clamp_(max=self.context - 1)
        self.stamps.count[block].clamp_(max=self.limit - 1)

    def free(self, first: int) -> None:
        """Windows first, first + 1 ... are unused."""
        row, page = self.scratch
        self.locations.ids[first * self.width :], self.table[first * self.width :] = row, page

    def locations_of(self, tickets: Sequence[Ticket]) -> list[NDArray[np.int64]]:
        """Where n windows are in the caches, for `put_locations`: the pages of their rows
        [n * width, pages], the rows [n * width], and the slots [n].
        """
        pages = np.full((len(tickets), self.width, self.table.shape[1]), self.scratch[1])
        for entry, ticket in zip(pages, tickets, strict=True):
            for index, page in enumerate(ticket.pages):
                entry[:, index] = page
        firsts = np.array([t.cache_index for t in tickets])[:, None] * self.width
        rows = (firsts + np.arange(self.width)).ravel()
        return [pages.reshape(len(rows), -1), rows, np.array([t.slot for t in tickets])]

    def put_locations(self, first: int, pages: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Windows first, first + 1 ... are where `locations_of` said, now on the device."""
        begin, end = first * self.width, first * self.width + len(rows)
        self.table[begin:end] = pages
        self.locations.ids[begin:end] = rows
        self.locations.slots[first : first + len(slots)] = slots

    def start_of(
        self, tickets: Sequence[Ticket], accepted: Sequence[AcceptedPrefix], vocabulary: Vocabulary
    ) -> list[ArrayLike]:
        """What `start` needs, on the host, of n texts: their rules, and the tokens that they begin
        with.
        """
        windows, numbers = [t.window for t in tickets], []
        rules = [w.rules for w in windows if w.rules is not None]
        for window, rule, prefix in zip(windows, rules, accepted, strict=True):
            limit = rule.max_initial_timestamp
            limit = vocabulary.size if limit is None else limit
            numbers.append((rule.timestamps, limit, *prefix.history, len(window.prompt)))
        temperatures = [w.attempt.temperature for w in windows]
        first = [
            [] if prefix.tokens else rule.suppress_first.tolist()
            for rule, prefix in zip(rules, accepted, strict=True)
        ]
        keys = np.zeros((len(tickets) * any(temperatures), self.width, self.limit), dtype=np.int64)
        for entry, window in zip(keys, windows, strict=False):
            if window.attempt.temperature > 0:
                generator = np.random.Generator(np.random.PCG64(window.attempt.seed))
                entry[:] = generator.integers(-(2**63), 2**63, entry.shape)
        return [
            numbers,
            np.array([temperatures, [sum(p.logprobs) for p in accepted]], dtype=np.float32),
            padded([rule.suppress.tolist() for rule in rules], NO_TOKEN),
            padded(first, NO_TOKEN),
            padded([p.tokens for p in accepted], 0),
            padded([p.logprobs for p in accepted], 0, dtype=np.float32),
            keys,
        ]

    def start(
        self,
        first: int,
        numbers: Tensor,
        floats: Tensor,
        banned: Tensor,
        banned_first: Tensor,
        tokens: Tensor,
        logprobs: Tensor,
        keys: Tensor,
    ) -> tuple[BannedTokens, bool]:
        """Start the texts of windows first, first + 1 ... as `start_of` said, now on the device.

        Returns the tokens that none of the windows' rows may sample first, and whether a buffer
        was replaced.
        """
        width, texts = self.width, self.texts
        rows = slice(first * width, (first + len(numbers)) * width)

        def each_row(t: Tensor) -> Tensor:
            """[n, ...] -> [n * width, ...]."""
            return t.repeat_interleave(width, dim=0) if width > 1 else t

        numbers = each_row(numbers)
        self.stamps.start(rows, TimestampState.of(numbers[:, :6]))
        self.positions[rows] = numbers[:, 5] + numbers[:, 6] - 1
        replaced = self.banned.start(rows, BannedTokens.of(each_row(banned)))
        self.temperatures[rows], texts.logprobs[rows] = each_row(floats.T).unbind(1)
        if tokens.shape[1]:
            texts.sampled[rows, : tokens.shape[1]] = each_row(tokens)
            texts.token_logprobs[rows, : tokens.shape[1]] = each_row(logprobs)
        if len(keys):
            self.keys[rows] = keys.flatten(0, 1)
        return BannedTokens.of(banned_first), replaced

    def texts_of(self, first: int, count: int, logprobs: bool) -> TextBuffers:
        """Views of the texts of windows first, first + 1 ...; logprobs: with each token's."""
        texts = self.texts.of(first, count, self.width, logprobs)
        if self.hot_words is not None:
            rows = slice(first * self.width, (first + count) * self.width)
            texts.bonuses = self.hot_words.safe_bonuses(rows)
        return texts

    def use_hot_words(self, lists: Sequence[HotWords], vocabulary: Vocabulary) -> bool:
        """Hold the lists of all texts of the group. Returns whether a buffer was replaced."""
        if self.hot_words is None and lists:
            self.hot_words = HotWordRows(len(self.positions), vocabulary, self.keys.device)
        return self.hot_words is not None and self.hot_words.use(lists)

    def start_rules(
        self, first: int, tickets: Sequence[Ticket], accepted: Sequence[AcceptedPrefix]
    ) -> None:
        """Set the limits and hot words of windows first, first + 1 ..., after their accepted
        tokens: numbers, of which nothing is uploaded.
        """
        for index, (ticket, prefix) in enumerate(zip(tickets, accepted, strict=True), first):
            rules, rows = ticket.window.rules, slice(index * self.width, (index + 1) * self.width)
            assert rules is not None
            if self.repetition is None and rules.limits_repetition:
                self.repetition = RepetitionLimits.allocate(len(self.positions), self.keys.device)
            if self.repetition is not None:
                self.repetition.start(rows, rules.repetition_penalty, rules.no_repeat_ngram_size)
            if self.hot_words is not None:
                self.hot_words.start(rows, rules.hot_words, prefix.tokens)


def _consecutive(numbers: Sequence[int], width: int = 1) -> int | None:
    """The first of them times `width`, if they are consecutive; else None."""
    first = numbers[0] if numbers else -1
    consecutive = list(numbers) == list(range(first, first + len(numbers)))
    return first * width if numbers and consecutive else None
