"""One lane on the device: its rows, its sampler, and steps, each eager or as a CUDA graph."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slimwhisper.cache.base import Step
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.engine.agreement import Agreed
from slimwhisper.engine.drafting.speculation import Speculation
from slimwhisper.engine.rows import Call, RowState
from slimwhisper.engine.rules import suppress
from slimwhisper.engine.sampling import Sampler
from slimwhisper.engine.snapshots import Snapshot
from slimwhisper.engine.tickets import Lane, Move, Ticket
from slimwhisper.kernels.graphs import Graphs, bucket_of
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

EXTENT_STEP = 128  # tokens: a graph's extent is a multiple of this


class LaneRunner:
    """Starts and steps the texts of a lane."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        lane: Lane,
        cache: DecoderCache,
        sampler: Sampler,
        state: RowState,
        graphs: Graphs | None,
        speculation: Speculation | None = None,
    ) -> None:
        self.model, self.vocabulary, self.lane, self.cache = model, vocabulary, lane, cache
        self.sampler, self.state, self.graphs = sampler, state, graphs
        self.speculation = speculation
        self.pending: Snapshot | None = None  # on a GPU, not judged yet
        self._call: Call | None = None  # of the tickets as they are

    def nbytes(self) -> int:
        """Bytes of what forms without pages keep of the texts, and of what a drafter keeps."""
        drafted = self.speculation.drafter.nbytes() if self.speculation else 0
        return sum(layer.nbytes() for layer in self.cache.self_.by_row) + drafted

    def move(self, move: Move) -> None:
        """Rows of one place for those of another; see `Move`."""
        self._call, speculation = None, self.speculation
        if move.saved is not None:
            saved, row = move.saved, move.target * self.state.width
            saved.resume = tuple(self.state.texts.sampled[row, : saved.count].tolist())
        if speculation is not None:
            speculation.acceptance.move(move.source, move.target)
        more = () if speculation is None else speculation.by_row()
        self.state.move(move.source, move.target, more, self.sampler.by_place(True))

    def start(
        self,
        first: int,
        tickets: Sequence[Ticket],
        logits: Tensor,
        no_speech: Tensor,
        agreed: Sequence[Agreed],
    ) -> None:
        """Sample the first token of texts whose prompts, with what is agreed, are in the first row
        of their places: logits [n, V] and no_speech [n], in the order of the tickets.
        """
        state, width, self._call = self.state, self.state.width, None
        state.texts.no_speech[first : first + len(tickets)] = no_speech
        for row, (ticket, said) in enumerate(zip(tickets, agreed, strict=True)):
            rules, ticket.count = ticket.window.rules, len(said.tokens)
            ticket.length += ticket.count
            assert rules is not None
            if not ticket.count:
                suppress(logits[row], rules.suppress_first)
            if not ticket.resume:
                ticket.drafted = ticket.count
        self.sampler.begin(first, len(tickets))
        call = state.call(first, len(tickets), tickets)
        call.extent = max(t.length for t in tickets)
        if width > 1:
            self._share_prompts(call, tickets)
            logits = logits.repeat_interleave(width, dim=0)
        state.banned.apply(logits, call.block)
        self.sampler.choose(call, logits, fresh=True)
        _count(tickets)
        if self.speculation is not None:
            self.speculation.begin(call, tickets, agreed)

    def _share_prompts(self, call: Call, tickets: Sequence[Ticket]) -> None:
        """All rows of a window have the prompt of their first row."""
        width, device = self.state.width, call.here.device
        firsts = torch.arange(len(tickets), device=device).repeat_interleave(width) * width
        held = torch.tensor([t.length for t in tickets], device=device).repeat_interleave(width)
        self.cache.self_.follow(call.rows, firsts, held, device.type == "cpu")

    def step(self, tickets: Sequence[Ticket]) -> None:
        """One more token, or several, for each of the first tickets."""
        began, speculation = time.perf_counter(), self.speculation
        drafts = 0 if speculation is None else speculation.length(tickets)
        if self._call is None:
            self._call = self.state.call(0, len(tickets), tickets)
        call, lengths = self._call, [t.length for t in tickets]
        call.extent = max(lengths) + drafts
        if speculation is None or not drafts:
            full = self.graphs is None and min(lengths) == max(lengths)
            self._run(call, (), lambda call: self._token(call, full))
            if speculation is not None:
                speculation.note_last(call)
            _count(tickets)
        else:
            self._draft(speculation, call, tickets, drafts)
        if speculation is not None and speculation.pace.timed:
            seconds = time.perf_counter() - began
            speculation.pace.note(len(tickets), drafts, seconds)

    def _draft(
        self, speculation: Speculation, call: Call, tickets: Sequence[Ticket], drafts: int
    ) -> None:
        behind = speculation.behind(tickets)
        if behind > 2:  # after steps without drafts
            speculation.guess(call, self.state.stamps.view(call.block), behind, 0)
            behind = 1
        self._run(call, (behind, drafts), lambda call: speculation.run(call, behind, drafts))
        speculation.note(tickets, drafts)

    def _token(self, call: Call, full: bool) -> None:
        """One token of a call's rows, entirely on the device."""
        positions, last = self.state.positions[call.block], self.state.texts.last[call.block]
        step = Step.at(call.rows, positions, call.extent, full, self.model.dtype)
        logits = self.model.decoder.step(last, step, self.cache)
        self.state.banned.apply(logits, call.block)
        self.sampler.choose(call, logits, fresh=False)

    def _run(self, call: Call, key: tuple[int, ...], run: Callable[[Call], None]) -> None:
        """`run`, with CUDA graphs as one that was recorded for this many places, or for a few more,
        which belong to nobody. key: what else it depends on.
        """
        if self.graphs is None:
            run(call)
            return
        places = bucket_of(len(call.here) // self.state.width, self.lane.capacity)
        extent = min(-(-call.extent // EXTENT_STEP) * EXTENT_STEP, self.state.context)
        draws = call.drawing is not None

        def body() -> None:
            every = self.state.call(0, places)
            run(
                replace(
                    every,
                    extent=extent,
                    drawing=every.here if draws else None,
                    timestamps=call.timestamps,
                    logprobs=call.logprobs,
                )
            )

        self.graphs.run((places, extent, draws, call.timestamps, call.logprobs, *key), body)

    def snapshot(self, first: int, tickets: Sequence[Ticket]) -> Snapshot:
        """The texts of some places as they are now. On a GPU: once it has come so far."""
        logprobs = any(t.window.logprobs for t in tickets)
        return self.sampler.snapshot(tickets, first, logprobs)


def _count(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.length += 1
        ticket.count += 1
