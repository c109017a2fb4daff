"""Rows that decode side by side: the unfinished texts of adjacent slots.

A lane owns its rows' self-cache and sampling state. Each active slot has `width` adjacent rows:
one (greedy decoding) or several independent samples; in `slimwhisper.engine.beams` they are beams.
The active rows form one block, so that caches are read in place.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.plan import CrossCache, DecoderCache
from slimwhisper.engine.drafts import Agreed, may_draft
from slimwhisper.engine.looks import Look, Texts
from slimwhisper.engine.places import Layout, Places, Ticket
from slimwhisper.engine.rules import (
    BannedTokens,
    TimestampState,
    apply_timestamp_rules,
    log_probability,
    most_likely,
    sample,
    suppress,
)
from slimwhisper.kernels.graphs import Graphs, bucket_of
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

EXTENT_STEP = 128  # tokens: a graph's extent is a multiple of this


class Lane:
    """Places of adjacent slots; place i belongs to slot i + offset.

    The active places are the first ones, or, with `from_end`, the last; `tickets` is in their
    order.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        cross: CrossCache,
        places: Places,
        graphs: Graphs | None = None,
    ) -> None:
        self.model, self.vocabulary, self.graphs = model, vocabulary, graphs
        capacity, width, from_end = places.capacity, places.width, places.from_end
        self.capacity, self.width, self.from_end = capacity, width, from_end
        self.offset = cross.slots - capacity if from_end else 0
        self.cache = DecoderCache(cross, model.allocate_self(capacity * width, shared=width > 1))
        self.tickets: list[Ticket] = []
        device, rows = model.device, capacity * width
        self.limit = model.dims.n_text_ctx // 2 + 1  # most tokens sampled, plus one
        self.last = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self.sampled = torch.zeros((rows, self.limit), dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(rows, dtype=torch.float32, device=device)
        self.token_logprobs = torch.zeros((rows, self.limit), dtype=torch.float32, device=device)
        self.temperatures = torch.zeros(rows, dtype=torch.float32, device=device)
        self.keys = torch.zeros((rows, self.limit), dtype=torch.int64, device=device)
        self.no_speech = torch.zeros(capacity, dtype=torch.float32, device=device)
        self.banned = BannedTokens.allocate(rows, device)
        self.stamps = TimestampState.allocate(rows, device)
        # per place, on the host: tokens with the prompt, tokens sampled, most tokens to sample
        self.lengths, self.counts, self.limits = np.zeros((3, capacity), dtype=np.int64)
        self.may_draft = width == 1 and may_draft(model.plan)
        self._layout: Layout | None = None
        self._blocks: dict[tuple[int, int], Rows] = {}  # by first place and number of places

    def nbytes(self) -> int:
        """Bytes of what it keeps of the texts."""
        return self.cache.self_.nbytes()

    def row_tensors(self) -> Sequence[Tensor]:
        """Everything kept per row, each [rows] or [rows, n], on the device."""
        asked = (self.token_logprobs,) if self.asked else ()
        return (
            *asked,
            *(self.last, self.positions, self.sampled, self.logprobs),
            *(self.temperatures, self.keys, *self.banned.tensors(), *self.stamps.tensors()),
        )

    def place_tensors(self) -> Sequence[Tensor]:
        """Everything kept per place, each [capacity, ...], on the device."""
        return (self.no_speech,)

    def numbers(self) -> Sequence[NDArray[Any]]:
        """Everything kept per place, each [capacity], on the host."""
        return self.lengths, self.counts, self.limits

    @property
    def first(self) -> int:
        """The first active place."""
        return self.capacity - len(self.tickets) if self.from_end else 0

    @property
    def room(self) -> int:
        return self.capacity - len(self.tickets)

    @property
    def asked(self) -> bool:
        """Whether a ticket asks for the log-probabilities of its tokens."""
        return any(t.window.logprobs for t in self.tickets)

    def next_slot(self) -> int:
        """The slot that the next ticket must have."""
        place = self.first - 1 if self.from_end else len(self.tickets)
        return place + self.offset

    def grow(self, ticket: Ticket) -> None:
        """Add a ticket whose slot is `next_slot()`."""
        assert ticket.slot == self.next_slot() and self.room
        self.tickets.insert(0 if self.from_end else len(self.tickets), ticket)
        self._layout = None

    def stop(self, given_up: Sequence[bool]) -> None:
        """Give the marked tickets no more tokens; `given_up` is in their order."""
        self.limits[self.first : self.first + len(given_up)][list(given_up)] = 0

    def shrink(self, index: int) -> int:
        """Remove the ticket at `index`; the outermost ticket moves into its place.

        Returns the slot that leaves the lane; the caller swaps the slots' audio.
        """
        outer = 0 if self.from_end else len(self.tickets) - 1
        first = self.first
        leaving = first + outer
        if index != outer:
            target = first + index
            self.move(leaving, target)
            self.tickets[index], moved = self.tickets[outer], self.tickets[index]
            self.tickets[outer] = moved
            self.tickets[index].slot = target + self.offset
            moved.slot = leaving + self.offset
        del self.tickets[outer]
        self._layout = None
        return leaving + self.offset

    def move(self, source: int, target: int) -> None:
        """Copy one place over another."""
        width = self.width
        self.cache.self_.move(source * width, target * width, width)
        for t in self.row_tensors():
            t[target * width :][:width] = t[source * width :][:width]
        for t in self.place_tensors():
            t[target] = t[source]
        for numbers in self.numbers():
            numbers[target] = numbers[source]

    # -- decoding ------------------------------------------------------------------------------

    def start(
        self,
        tickets: Sequence[Ticket],
        logits: Tensor,
        no_speech: Tensor,
        agreed: Sequence[Agreed] = (),
    ) -> None:
        """Sample the first token of tickets just added; logits [n, V] in the order of their places,
        as are the probabilities `no_speech` [n]. The first row of each already holds the prompt in
        its self-cache.

        agreed: of each ticket, what its text begins with, if `may_draft`; the prompt and these
        tokens are in the self-cache, and the logits follow them.
        """
        width, places = self.width, [t.slot - self.offset for t in tickets]
        begin = min(places)
        assert places == list(range(begin, begin + len(tickets)))
        self.no_speech[begin : begin + len(tickets)] = no_speech
        begun = agreed or [Agreed()] * len(tickets)
        for place, ticket, drafted in zip(places, tickets, begun, strict=True):
            ticket.starts += 1
            rows, window = slice(place * width, (place + 1) * width), ticket.window
            rules, attempt = window.rules, window.attempt
            assert rules is not None
            limit = rules.max_initial_timestamp
            latest = self.vocabulary.size if limit is None else limit
            self.stamps.start(rows, rules.timestamps, latest, drafted.said)
            if self.banned.start(rows, rules.suppress) and self.graphs is not None:
                self.graphs.forget()
            done = len(drafted.tokens)
            if not done:
                suppress(logits[place - begin], rules.suppress_first)
            self.positions[rows] = len(window.prompt) - 1 + done
            self.logprobs[rows] = sum(drafted.logprobs)
            self.temperatures[rows] = attempt.temperature
            if attempt.temperature > 0:
                numbers = np.random.Generator(np.random.PCG64(attempt.seed))
                drawn = numbers.integers(-(2**63), 2**63, (width, self.limit))
                self.keys[rows] = torch.from_numpy(drawn).to(self.keys.device)
            self.lengths[place], self.counts[place] = len(window.prompt) + done, done
            ticket.drafted = done
            # a text ends where its window's context does, as in `whisper.decode`
            context = self.model.dims.n_text_ctx + 1 - len(window.prompt)
            self.limits[place] = min(rules.sample_len, context)
            if done:
                given = torch.tensor(drafted.tokens, device=self.sampled.device)
                self.sampled[rows, :done] = given
                if window.logprobs:
                    each = torch.tensor(drafted.logprobs, device=self.token_logprobs.device)
                    self.token_logprobs[rows, :done] = each
        if width > 1:
            firsts = torch.tensor(places, device=logits.device)[:, None] * width
            others = firsts + torch.arange(1, width, device=logits.device)
            # all of the context: a NaN that the previous texts left would pass the mask
            context = self.model.dims.n_text_ctx
            self.cache.self_.reorder(others.flatten(), firsts.expand_as(others).flatten(), context)
            logits = logits.repeat_interleave(width, dim=0)
        layout = self._lay_out(begin, tickets)
        layout.extent = int(np.max(self.lengths[begin : begin + len(tickets)]))
        self._choose(layout, logits, fresh=True)
        self._count(begin, len(tickets))

    def step(self) -> None:
        """One more token for every active row."""
        first, count = self.first, len(self.tickets)
        if self._layout is None:
            self._layout = self._lay_out(first, self.tickets)
        layout, lengths = self._layout, self.lengths[first : first + count]
        layout.extent = int(np.max(lengths))
        if self.graphs is None:
            self._run(layout, full=int(np.min(lengths)) == layout.extent)
        else:
            self._replay(self.graphs, layout, (), partial(self._run, full=False))
        self._count(first, count)

    def _run(self, layout: Layout, full: bool) -> None:
        """One step of a layout's rows, entirely on the device."""
        positions = self.positions[layout.block]
        step = Step.at(layout.rows, positions, layout.extent, full, self.model.dtype)
        logits = self.model.decoder.step(self.last[layout.block], step, self.cache)
        self._choose(layout, logits, fresh=False)

    def _replay(
        self, graphs: Graphs, layout: Layout, key: tuple[int, ...], run: Callable[[Layout], None]
    ) -> None:
        """`run` as a graph, recorded for this many places or a few more, which are ignored.

        key: what else the graph depends on.
        """
        places = bucket_of(len(self.tickets), self.capacity)
        most = self.model.dims.n_text_ctx
        extent = min(-(-layout.extent // EXTENT_STEP) * EXTENT_STEP, most)
        draws = layout.drawing is not None

        rows, block = self._block(self.capacity - places if self.from_end else 0, places)

        def body() -> None:
            drawing = rows.ids - block.start if draws else None
            kinds = (layout.timestamps, layout.logprobs)
            run(Layout(rows, block, extent, drawing, *kinds))

        graphs.run((places, extent, draws, layout.timestamps, layout.logprobs, *key), body)

    def _count(self, first: int, count: int) -> None:
        self.lengths[first : first + count] += 1
        self.counts[first : first + count] += 1

    def _block(self, first: int, places: int) -> tuple[Rows, slice]:
        """The rows of `places` adjacent places from `first` on; kept, as graphs read them."""
        rows = self._blocks.get((first, places))
        if rows is None:
            rows = self._blocks[first, places] = Rows.block(
                places,
                self.width,
                first_slot=first + self.offset,
                first_row=first * self.width,
                device=self.model.device,
            )
        return rows, slice(first * self.width, (first + places) * self.width)

    def _lay_out(self, first: int, tickets: Sequence[Ticket]) -> Layout:
        width, windows = self.width, [t.window for t in tickets]
        drawing = [
            place * width + i
            for place, window in enumerate(windows)
            if window.attempt.temperature > 0
            for i in range(width)
        ]
        return Layout(
            *self._block(first, len(tickets)),
            0,
            torch.tensor(drawing, device=self.model.device) if drawing else None,
            any(w.rules is not None and w.rules.timestamps for w in windows),
            any(w.logprobs for w in windows),
        )

    def _choose(self, layout: Layout, logits: Tensor, fresh: bool) -> None:
        """Filter the logits [R, V] of the layout's rows, choose and store their next tokens."""
        self.banned.apply(logits, layout.block)
        self._pick(layout, logits, self.stamps.view(layout.block), fresh)

    def _pick(self, layout: Layout, logits: Tensor, state: TimestampState, fresh: bool) -> None:
        """Choose the most likely token of each row, or a random one; logits [R, V], may be changed.

        fresh: this is each text's first token.
        """
        block, eot = layout.block, self.vocabulary.eot
        tokens, logprobs = self._decide(layout, logits, state)
        if not fresh:  # a finished text does not change while its neighbours continue
            ended = self.last[block] == eot
            tokens = tokens.masked_fill(ended, eot)
            logprobs = logprobs.masked_fill(ended, 0)
        self.logprobs[block] += logprobs
        if layout.logprobs:
            self.token_logprobs[layout.rows.ids, state.count] = logprobs.float()
        self._advance(layout, tokens, state)

    def _decide(
        self, layout: Layout, logits: Tensor, state: TimestampState
    ) -> tuple[Tensor, Tensor]:
        """What `_pick` chooses, and its log-probabilities, [R] each."""
        vocabulary = self.vocabulary
        if layout.drawing is None:
            kernels = self.model.plan.kernels
            return most_likely(logits, state, vocabulary, layout.timestamps, kernels)
        if layout.timestamps:
            apply_timestamp_rules(logits, state, vocabulary)
        ids, rows, tokens = layout.rows.ids, layout.drawing, logits.argmax(dim=-1)
        keys, heat = self.keys[ids, state.count], self.temperatures[ids]
        drawn = sample(logits[rows], heat[rows], keys[rows])
        tokens[rows] = torch.where(heat[rows] > 0, drawn, tokens[rows])
        return tokens, log_probability(logits, tokens)

    def _advance(self, layout: Layout, tokens: Tensor, state: TimestampState) -> None:
        """Append tokens [R] int64 to the layout's rows."""
        block = layout.block
        self.sampled[layout.rows.ids, state.count] = tokens
        self.last[block] = tokens
        self.positions[block] += 1
        state.advance(tokens, self.vocabulary.timestamps.start, self.vocabulary.timestamp_end)
        if self.graphs is not None:  # a graph's ignored rows must stay within their buffers
            self.positions[block].clamp_(max=self.model.dims.n_text_ctx - 1)
            state.count.clamp_(max=self.limit - 1)

    # -- results -------------------------------------------------------------------------------

    def look(self) -> Look:
        """The texts as they are now. On a GPU: once it has come so far."""
        count = len(self.tickets)
        here = slice(self.first, self.first + count)
        return self._look(here, self.counts[here], self.limits[here])

    def _look(self, here: slice, counts: NDArray[np.int64], limits: NDArray[np.int64]) -> Look:
        return Look(self.tickets, Texts(*self._texts(here)), counts, limits, self.vocabulary.eot)

    def _texts(self, here: slice) -> tuple[Tensor, ...]:
        """The fields of `Texts` for the places `here`."""
        rows = slice(here.start * self.width, here.stop * self.width)
        each = self.token_logprobs[rows, : self.limit if self.asked else 0]
        return self.last[rows], self.sampled[rows], self.logprobs[rows], each, self.no_speech[here]

    def full(self) -> bool:
        """Whether a ticket has reached its token limit. No device sync."""
        here = slice(self.first, self.first + len(self.tickets))
        return bool((self.counts[here] >= self.limits[here]).any())
