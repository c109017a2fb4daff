"""One row group on the device: its rows, its sampler, and its steps, eager or as CUDA graphs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.rows import DecodeStep
from slimwhisper.engine.filters import forbid
from slimwhisper.engine.passes import PromptReader, usable_draft, verify_hidden
from slimwhisper.engine.requests import AcceptedPrefix
from slimwhisper.engine.rows import RowState, Snapshot, StepBatch, rules_of
from slimwhisper.engine.sampling import Sampler
from slimwhisper.engine.scheduler import Move, RowGroup, Ticket
from slimwhisper.kernels.memory import bucket_of, padded, upload
from slimwhisper.model.model import Model

if TYPE_CHECKING:
    from slimwhisper.engine.drafting import Speculation
    from slimwhisper.kernels.graphs import Graphs

EXTENT_STEP = 128  # tokens: a graph's extent is a multiple of this


@dataclass(eq=False)
class GroupRunner:
    """Starts and steps the texts of a row group."""

    model: Model
    group: RowGroup
    cache: DecoderCache
    sampler: Sampler
    state: RowState
    graphs: "Graphs | None"
    prompts: PromptReader
    speculation: "Speculation | None" = None
    pending: Snapshot | None = None  # on a GPU, not evaluated yet
    _batch: StepBatch | None = None  # of the present tickets; None: they have changed

    def discard_graphs(self) -> None:
        """What was recorded reads memory, or lengths, that are not the ones to read any more."""
        if self.graphs is not None:
            self.graphs.discard()

    def nbytes(self) -> int:
        """Bytes of the texts in forms without pages, and of the drafter's cache."""
        drafted = self.speculation.drafter.nbytes() if self.speculation else 0
        return sum(layer.nbytes() for layer in self.cache.self_.by_row) + drafted

    def move(self, moves: Sequence[Move]) -> None:
        """Move windows' rows, one window after the other; see `Move`."""
        self._batch, speculation = None, self.speculation
        sources: dict[int, int] = {}  # of each window that has changed, whose rows it has
        for move in moves:
            if move.saved is not None:
                saved, row = move.saved, sources.get(move.target, move.target) * self.state.width
                saved.resume = tuple(self.state.texts.sampled[row, : saved.count].tolist())
            source = sources.pop(move.source, move.source)
            if move.source != move.target:
                sources[move.target] = source
        if sources:
            windows, rows = self._moved(sources)
            for tensors, (to, of) in (
                (self.state.by_row(), rows),
                (() if speculation is None else (speculation.texts,), rows),
                (self.state.by_window(), windows),
                (self.sampler.by_window(), windows),
            ):
                for t in tensors:
                    t[to] = t[of]
        self.state.free(moves[-1].source)

    def _moved(self, sources: Mapping[int, int]) -> Sequence[tuple[slice | Tensor, slice | Tensor]]:
        """Where to and where from, of windows and of rows: slices for one, as they take less."""
        width = self.state.width
        if len(sources) == 1:
            ((to, of),) = sources.items()
            return [(slice(to * n, to * n + n), slice(of * n, of * n + n)) for n in (1, width)]
        windows = [np.array([*some]) for some in (sources, sources.values())]
        rows = [(w[:, None] * width + np.arange(width)).ravel() for w in windows]
        found = upload(self.state.table.device, *windows, *rows)
        return (found[0], found[1]), (found[2], found[3])

    def prefill(self, first: int, tickets: Sequence[Ticket]) -> None:
        """Read the prompts and drafts of windows first, first + 1 ..., and `start` their texts.

        All that the device needs is uploaded together; with drafts, in two parts, as what follows
        depends on how much of them is accepted.
        """
        state, prompts, device = self.state, self.prompts, self.model.device
        if state.filters.prepare(rules_of(self.group.tickets)):
            self.discard_graphs()
        context, eot, windows = state.context, self.sampler.eot, [t.window for t in tickets]
        drafts: list[tuple[int, ...]] = [() for _ in tickets]
        if self.group.resumable:
            drafts = [usable_draft(t.window, t.draft, context, eot) for t in tickets]
        accepted: Sequence[AcceptedPrefix] = [AcceptedPrefix() for _ in tickets]
        ids, table = state.locate(tickets)
        packed = prompts.pack(
            [[*w.prompt, *draft] for w, draft in zip(windows, drafts, strict=True)],
            positions=[(w.sot_index, len(w.prompt) - 1) for w in windows],  # of the logits
            slots=[t.slot for t in tickets],
            rows=ids[:: state.width],
            table=table[:: state.width],
        )
        if any(drafts):
            (read,) = upload(device, packed)
            hidden = prompts.read(read, every=True)
            found = [
                verify_hidden(*each, self.model, state.filters)
                for each in zip(windows, drafts, hidden, strict=False)
            ]
            accepted, logits = [prefix for prefix, _ in found], torch.stack([t for _, t in found])
        views, numbers = zip(*state.start(first, tickets, accepted), strict=True)
        pairs = zip(rules_of(tickets), accepted, strict=True)
        banned_first = padded([[] if p.tokens else r.suppress_first.tolist() for r, p in pairs], -1)
        if any(drafts):
            banned, *started = upload(device, banned_first, *numbers)
        else:
            read, banned, *started = upload(device, packed, banned_first, *numbers)
            logits = self.model.decoder.logits(prompts.read(read)[: len(tickets)])
        for view, values in zip(views, started, strict=True):
            view.copy_(values)
        at_start, following = logits.unbind(1)
        forbid(following, banned)
        tokens = prompts.tokens(read)[: len(tickets)]
        self.start(first, tickets, following, self._no_speech(at_start), accepted, tokens)

    def _no_speech(self, logits: Tensor) -> Tensor:
        """logits [n, V] after <|startoftranscript|> -> the probability of no speech, [n]; 0 where
        the vocabulary has no token for it.
        """
        token = self.model.vocabulary.no_speech
        return torch.zeros_like(logits[:, 0]) if token is None else logits.softmax(dim=-1)[:, token]

    def start(
        self,
        first: int,
        tickets: Sequence[Ticket],
        logits: Tensor,
        no_speech: Tensor,
        accepted: Sequence[AcceptedPrefix],
        prompts: Tensor,
    ) -> None:
        """Sample the next token of texts whose prompts and accepted drafts are in the first row of
        their windows: logits [n, V], no_speech [n], and prompts [n, T] int64 with any padding, in
        the order of the tickets.
        """
        state, width, self._batch = self.state, self.state.width, None
        state.texts.no_speech[first : first + len(tickets)] = no_speech
        for ticket, prefix in zip(tickets, accepted, strict=True):
            ticket.count = len(prefix.tokens)
            if not ticket.resume:
                ticket.drafted = ticket.count
        self.sampler.begin(first, len(tickets))
        batch = state.batch(first, len(tickets), tickets)
        if width > 1:
            # the prompt of each window's first row, to its other rows
            rows, lengths = batch.indices - batch.block.start, state.positions[batch.block] + 1
            on_cpu = rows.device.type == "cpu"
            self.cache.self_.copy_rows(batch.rows, rows - rows % width, lengths, on_cpu)
            logits = logits.repeat_interleave(width, dim=0)
        self.sampler.choose(batch, logits, fresh=True)
        _count(tickets)
        if self.speculation is not None:
            self.speculation.begin(batch, tickets, prompts)

    def step(self, tickets: Sequence[Ticket]) -> None:
        """Decode one more token of each ticket's text; several, with drafts."""
        began, speculation = time.perf_counter(), self.speculation
        if self._batch is None:
            self._batch = self.state.batch(0, len(tickets), tickets)
        batch, lengths = self._batch, [t.length for t in tickets]
        may_draft = speculation is not None and all(f.drafts for f in batch.filters)
        drafts = speculation.draft_length(tickets) if speculation and may_draft else 0
        batch.extent = max(lengths) + drafts
        if speculation is None or not drafts:
            full = self.graphs is None and min(lengths) == max(lengths)
            self._run(batch, (), lambda batch: self._step_one(batch, full))
            if speculation is not None:
                speculation.record_last(batch)
            _count(tickets)
        else:
            unread = speculation.unread(tickets)
            if unread > 2:  # after steps without drafts
                speculation.guess(batch, self.state.before_next(batch), unread, 0)
                unread = 1
            self._run(batch, (unread, drafts), lambda batch: speculation.run(batch, unread, drafts))
            speculation.record(tickets, drafts)
        if speculation is not None and speculation.draft_lengths.timed:
            seconds = time.perf_counter() - began
            speculation.draft_lengths.record(len(tickets), drafts, seconds)

    def _step_one(self, batch: StepBatch, full: bool) -> None:
        """Decode one token of a batch's rows, entirely on the device."""
        positions, last = self.state.positions[batch.block], self.state.texts.last[batch.block]
        step = DecodeStep.at(batch.rows, positions, batch.extent, full, self.model.dtype)
        logits = self.model.decoder.step(last, step, self.cache)
        self.sampler.choose(batch, logits, fresh=False)

    def _run(self, batch: StepBatch, key: Sequence[int], run: Callable[[StepBatch], None]) -> None:
        """`run`, with CUDA graphs as one that was recorded for this many windows, or for a few
        more, whose rows are unused. key: what else it depends on: of drafts.
        """
        if self.graphs is None:
            run(batch)
            return
        windows = len(batch.indices) // self.state.width
        windows = bucket_of(windows, self.group.capacity)
        extent = min(-(-batch.extent // EXTENT_STEP) * EXTENT_STEP, self.state.context)
        samples = batch.sampling_rows is not None

        def body() -> None:
            padded = self.state.batch(0, windows)
            run(
                replace(
                    padded,
                    extent=extent,
                    sampling_rows=padded.indices if samples else None,
                    logprobs=batch.logprobs,
                    filters=batch.filters,
                )
            )

        filters = tuple(batch.filters.items())
        self.graphs.run((windows, extent, samples, batch.logprobs, filters, *key), body)


def _count(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.count += 1
