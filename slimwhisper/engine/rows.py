"""The rows of a lane: what is kept of each text but its cache, a few kB, on the device.

Active rows are the first ones, so that a step reads them in place. When a window ends, the last
one's rows take the place of its rows; the caches of audio and text stay where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.cache.pool import pages_of
from slimwhisper.engine.agreement import Agreed
from slimwhisper.engine.rules import BannedTokens, TimestampState
from slimwhisper.engine.snapshots import Texts
from slimwhisper.engine.tickets import Ticket
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Dims


@dataclass(slots=True)
class Call:
    """The rows of one call; only `extent` changes while the tickets stay the same."""

    rows: Rows
    block: slice  # of the lane's rows
    here: Tensor  # [R] int64: the same
    extent: int  # tokens to read of each row
    drawing: Tensor | None  # [n] int64 within the block: temperature > 0
    timestamps: bool  # at least one row samples them
    logprobs: bool = False  # at least one row's are kept token by token


class RowState:
    """Tensors [rows, ...], or [places, ...] for what the rows of a window have in common."""

    def __init__(
        self, dims: Dims, device: torch.device, places: int, width: int, nobody: tuple[int, int]
    ) -> None:
        """nobody: the row and the page of the caches that belong to no text."""
        rows = places * width
        self.width, self.context, self.nobody = width, dims.n_text_ctx, nobody
        self.limit = dims.n_text_ctx // 2 + 1  # most tokens sampled, plus one

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.texts = Texts(
            last=zeros(rows),
            sampled=zeros(rows, self.limit),
            logprobs=zeros(rows, dtype=torch.float32),
            token_logprobs=zeros(rows, self.limit, dtype=torch.float32),
            no_speech=zeros(places, dtype=torch.float32),
        )
        self.every = torch.arange(rows, device=device)
        self.positions = zeros(rows)
        self.temperatures = zeros(rows, dtype=torch.float32)
        self.keys = zeros(rows, self.limit)  # of random draws
        self.banned = BannedTokens.allocate(rows, device)
        self.stamps = TimestampState.allocate(rows, device)
        # where the caches have them
        pages = pages_of(dims.n_text_ctx)
        self.cached = Rows(
            ids=torch.full((rows,), nobody[0], device=device),
            slots=zeros(places),
            group=width,
            table=torch.full((rows, pages), nobody[1], device=device),
        )

    @property
    def table(self) -> Tensor:
        """[rows, pages] int64: the block table."""
        assert self.cached.table is not None
        return self.cached.table

    def by_row(self) -> Sequence[Tensor]:
        """Everything kept by row."""
        texts = self.texts
        return (
            *(texts.last, texts.sampled, texts.logprobs, texts.token_logprobs),
            *(self.positions, self.temperatures, self.keys, self.cached.ids, self.table),
            *(*self.banned.tensors(), *self.stamps.tensors()),
        )

    def by_place(self) -> Sequence[Tensor]:
        """Everything kept by place."""
        return self.texts.no_speech, self.cached.slots

    def call(self, first: int, places: int, tickets: Sequence[Ticket] = ()) -> Call:
        """The rows of some places. tickets: of all of them; without, nothing is known of them but
        what the device keeps, as in a graph.
        """
        cached, width = self.cached, self.width
        begin, end = first * width, (first + places) * width
        drawing = [
            place * width + i
            for place, ticket in enumerate(tickets)
            if ticket.window.attempt.temperature > 0
            for i in range(width)
        ]
        device, windows = cached.ids.device, [t.window for t in tickets]
        rows = Rows(
            ids=cached.ids[begin:end],
            slots=cached.slots[first : first + places],
            group=width,
            table=self.table[begin:end],
            first_slot=_consecutive([t.slot for t in tickets]),
            first_row=_consecutive([t.home for t in tickets], width),
        )
        return Call(
            rows,
            slice(begin, end),
            self.every[begin:end],
            0,
            torch.tensor(drawing, device=device) if drawing else None,
            any(w.rules is not None and w.rules.timestamps for w in windows),
            any(w.logprobs for w in windows),
        )

    def move(
        self, source: int, target: int, more: Sequence[Tensor], places: Sequence[Tensor]
    ) -> None:
        """Place `target` becomes place `source`, which then belongs to nobody. more, places: what
        else is kept by row and by place.
        """
        width = self.width
        if source != target:
            for t in (*self.by_row(), *more):
                t[target * width :][:width] = t[source * width :][:width]
            for t in (*self.by_place(), *places):
                t[target] = t[source]
        rows, (row, page) = slice(source * width, (source + 1) * width), self.nobody
        self.table[rows], self.cached.ids[rows] = page, row

    def begin(
        self,
        first: int,
        tickets: Sequence[Ticket],
        agreed: Sequence[Agreed],
        vocabulary: Vocabulary,
    ) -> bool:
        """New texts in places first, first + 1 ...: their rules, and what they begin with. Returns
        whether a buffer was replaced.
        """
        width, moved = self.width, False
        for place, ticket, said in zip(
            range(first, first + len(tickets)), tickets, agreed, strict=True
        ):
            rows, window, done = (
                slice(place * width, (place + 1) * width),
                ticket.window,
                len(said.tokens),
            )
            rules, attempt = window.rules, window.attempt
            assert rules is not None
            limit = rules.max_initial_timestamp
            latest = vocabulary.size if limit is None else limit
            self.stamps.start(rows, rules.timestamps, latest, said.said)
            moved |= self.banned.start(rows, rules.suppress)
            self.positions[rows] = len(window.prompt) - 1 + done
            self.texts.logprobs[rows] = sum(said.logprobs)
            self.temperatures[rows] = attempt.temperature
            if attempt.temperature > 0:
                numbers = np.random.Generator(np.random.PCG64(attempt.seed))
                drawn = numbers.integers(-(2**63), 2**63, (width, self.limit))
                self.keys[rows] = torch.from_numpy(drawn).to(self.keys.device)
            if done:
                given = torch.tensor(said.tokens, device=self.texts.sampled.device)
                self.texts.sampled[rows, :done] = given
                if window.logprobs:
                    each = torch.tensor(said.logprobs, device=given.device)
                    self.texts.token_logprobs[rows, :done] = each
        return moved

    def locate(self, first: int, tickets: Sequence[Ticket]) -> None:
        """Upload where the caches have the texts of new tickets."""
        cached, width, end = self.cached, self.width, first + len(tickets)
        pages = np.full((len(tickets), width, self.table.shape[1]), self.nobody[1])
        for own, ticket in zip(pages, tickets, strict=True):
            for index, page in enumerate(ticket.pages):
                own[:, index] = page
        self.table[first * width : end * width] = torch.from_numpy(pages).flatten(0, 1)
        homes = torch.tensor([t.home for t in tickets])[:, None] * width + torch.arange(width)
        cached.ids[first * width : end * width] = homes.flatten()
        cached.slots[first:end] = torch.tensor([t.slot for t in tickets])


def _consecutive(numbers: Sequence[int], each: int = 1) -> int | None:
    """Where they begin, if they are consecutive, times `each`; else None."""
    first = numbers[0] if numbers else -1
    same = list(numbers) == list(range(first, first + len(numbers)))
    return first * each if numbers and same else None
