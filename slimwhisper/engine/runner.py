"""Executes plans: the only part of the engine with the model, its caches, graphs and streams.

A `GroupRunner` has one row group on the device: its rows, its sampler, and its steps, eager or as
CUDA graphs. The `Runner` has all of them, and the encoder.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slimwhisper.cache.base import DecodeStep
from slimwhisper.cache.decoder_cache import DecoderCache, Pages
from slimwhisper.devices import HeapTrimmer, bucket_of, padded, upload
from slimwhisper.engine.filters import forbid
from slimwhisper.engine.passes import AsyncEncoder, PromptReader, usable_draft, verify_hidden
from slimwhisper.engine.requests import AcceptedPrefix, Alignment, Answer, Languages, Search
from slimwhisper.engine.rows import BeamSnapshot, RowState, Snapshot, StepBatch, rules_of
from slimwhisper.engine.sampling import BeamSampler, GreedySampler, Sampler
from slimwhisper.engine.scheduler import Move, Plan, Results, RowGroup, TextStart, Ticket
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.model.decoder import ScoreRecorder
from slimwhisper.model.model import Model

if TYPE_CHECKING:
    from slimwhisper.kernels.graphs import Graphs, Recorder

CHECK_EVERY = 2  # tokens between snapshots on a GPU, each evaluated when the next one is taken
EXTENT_STEP = 128  # tokens: a graph's extent is a multiple of this


@dataclass(eq=False)
class GroupRunner:
    """Starts and steps the texts of a row group, one token a step."""

    model: Model
    group: RowGroup
    cache: DecoderCache
    sampler: Sampler
    state: RowState
    graphs: "Graphs | None"
    prompts: PromptReader
    # on a GPU, not evaluated yet
    pending: Snapshot | None = field(default=None, init=False)
    # of the present tickets; None: they have changed
    _batch: StepBatch | None = field(default=None, init=False)

    def discard_graphs(self) -> None:
        """What was recorded reads memory, or lengths, that are not the ones to read any more."""
        if self.graphs is not None:
            self.graphs.discard()

    def nbytes(self) -> int:
        """Bytes of the texts in forms without pages."""
        return sum(layer.nbytes() for layer in self.cache.self_.by_row)

    def move(self, moves: Sequence[Move]) -> None:
        """Move windows' rows, one window after the other; see `Move`."""
        self._batch = None
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
        views, numbers = zip(*state.start_values(first, tickets, accepted), strict=True)
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
        self.start(first, tickets, following, self._no_speech(at_start), accepted)

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
    ) -> None:
        """Sample the next token of texts whose prompts and accepted drafts are in the first row of
        their windows: logits [n, V] and no_speech [n], in the order of the tickets.
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

    def step(self, tickets: Sequence[Ticket]) -> None:
        """Decode one more token of each ticket's text."""
        if self._batch is None:
            self._batch = self.state.batch(0, len(tickets), tickets)
        batch, lengths = self._batch, [t.length for t in tickets]
        batch.extent = max(lengths)
        if self.graphs is None:
            self._step_one(batch, min(lengths) == max(lengths))
        else:
            self._replay(batch, self.graphs)
        _count(tickets)

    def _step_one(self, batch: StepBatch, full: bool) -> None:
        """Decode one token of a batch's rows, entirely on the device."""
        positions, last = self.state.positions[batch.block], self.state.texts.last[batch.block]
        step = DecodeStep.at(batch.rows, positions, batch.extent, full, self.model.dtype)
        logits = self.model.decoder.step(last, step, self.cache)
        self.sampler.choose(batch, logits, fresh=False)

    def _replay(self, batch: StepBatch, graphs: "Graphs") -> None:
        """`_step_one`, as it was recorded for this many windows, or for a few more, whose rows are
        unused.
        """
        windows = len(batch.indices) // self.state.width
        windows = bucket_of(windows, self.group.capacity)
        extent = min(-(-batch.extent // EXTENT_STEP) * EXTENT_STEP, self.state.context)
        samples = batch.sampling_rows is not None

        def body() -> None:
            padded = self.state.batch(0, windows)
            step = replace(
                padded,
                extent=extent,
                sampling_rows=padded.indices if samples else None,
                logprobs=batch.logprobs,
                filters=batch.filters,
            )
            self._step_one(step, full=False)

        filters = tuple(batch.filters.items())
        graphs.run((windows, extent, samples, batch.logprobs, filters), body)


def _count(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.count += 1


class Runner:
    """The engine's part that works on the device."""

    def __init__(
        self,
        model: Model,
        slots: int,
        pages: int,
        search: Search,
        encode_batch: int,
        check_every: int | None,
        recorder: "Recorder | None",
    ) -> None:
        """The arguments are those of `Engine`."""
        self.model, self.search = model, search
        self.check_every = check_every or (1 if model.device.type == "cpu" else CHECK_EVERY)
        self.recorder = recorder
        self.cross = model.allocate_cross(slots)
        self.pages = Pages(model.plan, pages, model.device)
        self.encoder = AsyncEncoder(model, encode_batch)
        self._heap = HeapTrimmer()
        self.group_runners: dict[RowGroup, GroupRunner] = {}
        self._steps = 0

    def add(self, group: RowGroup, beams: bool = False) -> None:
        """Allocate the caches, rows and sampler of a group."""
        model, vocabulary = self.model, self.model.vocabulary
        rows = group.capacity * group.width
        cache = DecoderCache(self.cross, model.allocate_self(rows + 1, self.pages))
        graphs = None
        if self.recorder is not None:
            from slimwhisper.kernels.graphs import Graphs

            graphs = Graphs(self.recorder)
        scratch = (rows, self.pages.scratch)
        state = RowState(model, group.capacity, group.width, scratch)
        sampler: Sampler = GreedySampler(state, vocabulary.eot)
        if beams:
            skip = graphs is None and model.device.type == "cpu"
            patience = self.search.patience
            sampler = BeamSampler(state, vocabulary.eot, cache.self_, patience, skip)
        prompts = PromptReader(model, cache, self.encoder.max_batch, scratch, graphs)
        runner = GroupRunner(model, group, cache, sampler, state, graphs, prompts)
        self.group_runners[group] = runner

    def nbytes(self) -> int:
        """Bytes of the caches."""
        pages = self.pages.count * self.pages.page_bytes
        return self.cross.nbytes() + pages + sum(r.nbytes() for r in self.group_runners.values())

    def run(self, plan: Plan) -> Results:
        """One step of the engine."""
        results = Results()
        self._change_rows(plan)
        self._read(plan.align, self._align, results)
        # a GPU gets its step first: to hand over audio takes the host milliseconds
        late = self.encoder.stream is not None and not plan.idle
        if not late:
            self.encode(plan, results)
        self._receive(results, wait=plan.idle)
        self._read(plan.languages, self._languages, results)
        for start in plan.start:
            self._start(start, results)
        for group in plan.step:
            self.group_runners[group].step(group.tickets)
        if late:
            self.encode(plan, results)
        self._steps += 1
        for group in plan.step:
            if self._steps % self.check_every == 0 or any(t.full for t in group.tickets):
                self._check_finished(self.group_runners[group], results)
        return results

    # -- rows ----------------------------------------------------------------------------------

    def _change_rows(self, plan: Plan) -> None:
        """Make new groups, move rows, and write the texts' new pages to the block tables."""
        for group in plan.step:
            if group not in self.group_runners:
                self.add(group)
        for group, runner in self.group_runners.items():
            if moves := [move for move in plan.moves if move.group is group]:
                runner.move(moves)
            if entries := [entry for owner, *entry in plan.pages if owner is group]:
                rows, indices, pages = upload(self.model.device, entries)[0].unbind(1)
                runner.state.table[rows, indices] = pages

    def _check_finished(self, runner: GroupRunner, results: Results) -> None:
        """Answer the windows whose texts have ended. A GPU's snapshot is evaluated when the next
        one is taken, so that the host need not wait for the copy and the GPU is never idle.
        """
        snapshot = runner.sampler.snapshot(0, runner.group.tickets)
        if self.model.device.type != "cuda":
            self._collect_finished(snapshot, results)
            return
        previous, runner.pending = runner.pending, snapshot
        if previous is not None:
            self._collect_finished(previous, results)
        if {ticket for ticket, _ in results.answers}.issuperset(runner.group.tickets):
            runner.pending = None  # without a next step, it would keep their owners

    def _collect_finished(self, snapshot: Snapshot, results: Results) -> None:
        penalty = self.search.length_penalty
        answered = {ticket for ticket, _ in results.answers}
        ended = [i for i in snapshot.ended() if snapshot.tickets[i].ticket not in answered]
        for index in ended:
            snap = snapshot.tickets[index]
            results.answers.append((snap.ticket, snapshot.result(index, penalty)))
        if isinstance(snapshot, BeamSnapshot):
            results.read_pages += snapshot.read_pages(ended, self.check_every)

    def _start(self, start: TextStart, results: Results) -> None:
        """Start texts, and answer those that end with their first token."""
        runner = self.group_runners[start.group]
        runner.prefill(start.first, start.tickets)
        if self.check_every == 1 or any(t.full for t in start.tickets):
            snapshot = runner.sampler.snapshot(start.first, start.tickets)
            self._collect_finished(snapshot, results)

    # -- audio ---------------------------------------------------------------------------------

    def encode(self, plan: Plan, results: Results) -> None:
        """Start to encode new windows, and store what has been encoded."""
        for tickets, mels in self.encoder.divide(plan.encode):
            self.encoder.begin(tickets, mels, not plan.starved)
            self._receive(results, wait=False)
        for ticket in plan.encode:
            ticket.window = replace(ticket.window, mel=None)  # it is in the slot
        self._receive(results, wait=False)
        # with one slot, or an encoder in parallel, its memory is reused soon
        if plan.encode and self.cross.slots > 1 and self.encoder.synchronous:
            self._heap.trim()

    def _receive(self, results: Results, wait: bool) -> None:
        """Store encoder outputs in their slots; wait: for one batch, if there is one."""
        for tickets, features in self.encoder.completed(wait):
            (slots,) = upload(self.model.device, [t.slot for t in tickets])
            if self.cross.put(slots, features):
                for runner in self.group_runners.values():
                    runner.discard_graphs()  # they read whole windows
            results.encoded += tickets

    def _read(
        self,
        tickets: Sequence[Ticket],
        answer: Callable[[Sequence[Ticket]], Iterable[Answer]],
        results: Results,
    ) -> None:
        """Answer requests by reading their tokens, as many at once as the encoder has windows."""
        for first in range(0, len(tickets), self.encoder.max_batch):
            some = tickets[first : first + self.encoder.max_batch]
            results.answers += zip(some, answer(some), strict=True)

    def _languages(self, tickets: Sequence[Ticket]) -> Iterator[Languages]:
        """The probability of each language after <|startoftranscript|>."""
        reader, codes = self._reader, self.model.vocabulary.languages
        positions = [[t.window.sot_index] * 2 for t in tickets]
        prompts, slots = [t.window.prompt for t in tickets], [t.slot for t in tickets]
        (packed,) = upload(self.model.device, reader.pack(prompts, positions, slots))
        logits = self.model.decoder.logits(reader.read(packed)[: len(tickets), 0])
        for row in logits[:, list(codes)].softmax(dim=-1).tolist():
            yield Languages(dict(zip(codes.values(), row, strict=True)))

    def _align(self, tickets: Sequence[Ticket]) -> Iterator[Alignment]:
        """Read whole texts in one pass and record the alignment heads' scores [heads, T, p]."""
        model, reader, vocabulary = self.model, self._reader, self.model.vocabulary
        eot, end = vocabulary.eot, vocabulary.texts[-1].stop
        others = (*vocabulary.specials, vocabulary.timestamps)
        non_text = [i for ids in others for i in ids if i < end]
        requests = [t.align for t in tickets if t.align is not None]
        texts = [[*a.before, *a.text, eot] for a in requests]
        packed = reader.pack(texts, 0, [t.slot for t in tickets])
        tokens = [np.array(ids, dtype=np.int64) for ids in (non_text, *(a.text for a in requests))]
        numbers, banned, *read = upload(model.device, packed, *tokens)
        recorder = ScoreRecorder(model.alignment_heads)
        hidden = reader.read(numbers, every=True, recorder=recorder)
        scores = torch.cat(recorder.scores, dim=1)  # [R, heads, T, p]
        scores = scores.to(at_least_float32(model.dtype))
        for i, (request, text) in enumerate(zip(requests, read, strict=True)):
            begin, count = len(request.before) - 1, len(request.text)
            logits = model.decoder.logits(hidden[i, begin : begin + count])[:, :end]
            logits = logits.index_fill(1, banned, float("-inf"))
            probs = logits.softmax(dim=-1).gather(1, text[:, None]).squeeze(1).tolist()
            row = scores[i, :, : begin + count + 2].clone()
            yield Alignment(request.text, begin + 1, row, tuple(probs))

    @property
    def _reader(self) -> PromptReader:
        """For texts that are read once, and whose caches are overwritten by the next ones."""
        return next(iter(self.group_runners.values())).prompts
