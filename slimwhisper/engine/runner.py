"""Executes plans: the only part of the engine with the model, its caches, graphs and streams."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from slimwhisper.cache.decoder_cache import CrossCache, DecoderCache, Pages
from slimwhisper.engine.group_runner import GroupRunner
from slimwhisper.engine.passes import AsyncEncoder, PromptReader
from slimwhisper.engine.requests import Alignment, Answer, Languages, Search
from slimwhisper.engine.rows import BeamSnapshot, RowState, Snapshot
from slimwhisper.engine.sampling import BeamSampler, GreedySampler, Sampler
from slimwhisper.engine.scheduler import Plan, Results, RowGroup, TextStart, Ticket
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.kernels.memory import HeapTrimmer, upload
from slimwhisper.model.decoder import ScoreRecorder
from slimwhisper.model.model import Model

if TYPE_CHECKING:
    from slimwhisper.engine.drafting import Drafter
    from slimwhisper.kernels.graphs import Recorder

CHECK_EVERY = 2  # tokens between snapshots on a GPU, each evaluated when the next one is taken
MakeDrafter = Callable[[CrossCache, int, int], "Drafter"]  # (the cache of the audio, texts, pages)


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

    def add(
        self, group: RowGroup, beams: bool = False, drafter: "Drafter | None" = None
    ) -> GroupRunner:
        """Allocate the caches, rows and sampler of a group."""
        model, vocabulary = self.model, self.model.vocabulary
        rows = group.capacity * group.width
        cache = DecoderCache(self.cross, model.allocate_self(rows + 1, self.pages))
        graphs = None
        if self.recorder is not None:
            from slimwhisper.kernels.graphs import Graphs

            graphs = Graphs(self.recorder)
        scratch = (rows, self.pages.scratch)
        state = RowState(model.dims, model.device, group.capacity, group.width, scratch, vocabulary)
        sampler: Sampler
        greedy = sampler = GreedySampler(state, vocabulary.eot, model.plan.kernels)
        if beams:
            skip = graphs is None and model.device.type == "cpu"
            patience = self.search.patience
            sampler = BeamSampler(state, vocabulary.eot, cache.self_, patience, skip)
        prompts = PromptReader(model, cache, self.encoder.max_batch, scratch, graphs)
        runner = GroupRunner(model, group, cache, sampler, state, graphs, prompts)
        self.group_runners[group] = runner
        if drafter is not None:
            from slimwhisper.engine.drafting import Speculation

            runner.speculation = Speculation(model, cache, greedy, drafter)
        return runner

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
            ticket.window = ticket.window.without_mel()
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
