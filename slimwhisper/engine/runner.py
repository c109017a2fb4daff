"""Executes plans: the only part of the engine with the model, its caches, graphs and streams."""

from collections.abc import Callable, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from slimwhisper.cache.decoder_cache import CrossCache, DecoderCache, Pages
from slimwhisper.engine.beams import BeamSampler
from slimwhisper.engine.drafting.drafter import Drafter
from slimwhisper.engine.drafting.speculation import Speculation
from slimwhisper.engine.group_runner import GroupRunner
from slimwhisper.engine.passes.alignment import align
from slimwhisper.engine.passes.encoder import AsyncEncoder
from slimwhisper.engine.passes.prompts import PromptReader
from slimwhisper.engine.requests import Align, Answer, Languages, Search
from slimwhisper.engine.rows import RowState
from slimwhisper.engine.sampling import GreedySampler, Sampler
from slimwhisper.engine.snapshots import BeamSnapshot, Snapshot
from slimwhisper.engine.tickets import Plan, Results, RowGroup, TextStart, Ticket
from slimwhisper.engine.uploads import upload
from slimwhisper.engine.verification import AcceptedPrefix, usable_draft, verify_hidden
from slimwhisper.kernels.graphs import Graphs, Recorder
from slimwhisper.kernels.memory import HeapTrimmer
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

CHECK_EVERY = 2  # tokens between snapshots on a GPU, each evaluated when the next one is taken
MakeDrafter = Callable[[CrossCache, int, int], Drafter]  # (the cache of the audio, texts, pages)


class Runner:
    """The engine's part that works on the device."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        slots: int,
        pages: int,
        search: Search,
        encode_batch: int,
        check_every: int | None,
        recorder: Recorder | None,
    ) -> None:
        """The arguments are those of `Engine`."""
        self.model, self.vocabulary, self.search = model, vocabulary, search
        self.check_every = check_every or (1 if model.device.type == "cpu" else CHECK_EVERY)
        self.recorder = recorder
        self.cross = model.allocate_cross(slots)
        self.pages = Pages(model.plan, pages, model.device)
        self.encoder = AsyncEncoder(model, encode_batch)
        self._heap = HeapTrimmer()
        self.group_runners: dict[RowGroup, GroupRunner] = {}
        self._steps = 0

    def add(
        self, group: RowGroup, beams: bool = False, drafter: Drafter | None = None
    ) -> GroupRunner:
        """Allocate the caches, rows and sampler of a group."""
        model, vocabulary, rows = self.model, self.vocabulary, group.capacity * group.width
        cache = DecoderCache(self.cross, model.allocate_self(rows + 1, self.pages))
        graphs = None if self.recorder is None else Graphs(self.recorder)
        scratch = (rows, self.pages.scratch)
        state = RowState(model.dims, model.device, group.capacity, group.width, scratch)
        sampler: Sampler
        greedy = sampler = GreedySampler(state, vocabulary, model.plan.kernels)
        if beams:
            skip = graphs is None and model.device.type == "cpu"
            sampler = BeamSampler(state, vocabulary, cache.self_, self.search.patience, skip)
        speculation = None
        if drafter is not None:
            speculation = Speculation(model, vocabulary, cache, greedy, drafter)
        prompts = PromptReader(model, cache, self.encoder.max_batch, scratch, graphs)
        runner = GroupRunner(
            *(model, vocabulary, group, cache, sampler, state, graphs, prompts, speculation)
        )
        self.group_runners[group] = runner
        return runner

    def nbytes(self) -> int:
        """Bytes of the caches."""
        pages = self.pages.count * self.pages.page_bytes
        return self.cross.nbytes() + pages + sum(r.nbytes() for r in self.group_runners.values())

    def run(self, plan: Plan) -> Results:
        """One step of the engine."""
        results = Results()
        for group in plan.step:
            if group not in self.group_runners:
                self.add(group)
        for group in {move.group for move in plan.moves}:
            self.group_runners[group].move([m for m in plan.moves if m.group is group])
        self._upload_pages(plan)
        max_batch = self.encoder.max_batch
        for first in range(0, len(plan.align), max_batch):
            results.answers += self._align(plan.align[first : first + max_batch])
        # a GPU gets its step first: to hand over audio takes the host milliseconds
        late = self.encoder.stream is not None and not plan.idle
        if not late:
            self.encode(plan, results)
        # with one slot, or an encoder in parallel, its memory is reused soon
        if plan.encode and self.cross.slots > 1 and self.encoder.synchronous:
            self._heap.trim()
        self._receive(results, wait=plan.idle)
        for first in range(0, len(plan.languages), max_batch):
            results.answers += self._languages(plan.languages[first : first + max_batch])
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

    def _upload_pages(self, plan: Plan) -> None:
        """Write the texts' new pages to the block tables."""
        for group in {group for group, *_ in plan.pages}:
            entries = [entry for owner, *entry in plan.pages if owner is group]
            rows, indices, pages = upload(self.model.device, entries)[0].unbind(1)
            self.group_runners[group].state.table[rows, indices] = pages

    def _check_finished(self, runner: GroupRunner, results: Results) -> None:
        """Answer the windows whose texts have ended. A GPU's snapshot is evaluated when the next
        one is taken, so that the host need not wait for the copy and the GPU is never idle.
        """
        snapshot = runner.snapshot(0, runner.group.tickets)
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
        """Prefill prompts and their drafts, and sample each text's next token.

        All that the device needs is uploaded together; with drafts, in two parts, as what follows
        depends on how much of them is accepted.
        """
        runner, tickets, first = self.group_runners[start.group], start.tickets, start.first
        state, windows = runner.state, [t.window for t in tickets]
        rules = [t.window.rules for t in start.group.tickets]
        lists = [r.hot_words for r in rules if r is not None and r.hot_words is not None]
        replaced = state.use_hot_words(lists, self.vocabulary)
        context, eot, device = self.model.dims.n_text_ctx, self.vocabulary.eot, self.model.device
        drafts: list[tuple[int, ...]] = [() for _ in tickets]
        if start.group.resumable:
            drafts = [usable_draft(t.window, t.draft, context, eot) for t in tickets]
        texts = [[*w.prompt, *draft] for w, draft in zip(windows, drafts, strict=True)]
        pages, rows, slots = locations = state.locations_of(tickets)
        positions = [(w.sot_index, len(w.prompt) - 1) for w in windows]  # of the logits
        texts_at = slots, rows[:: state.width], pages[:: state.width]
        packed = runner.prompts.pack(texts, positions, *texts_at)

        accepted: Sequence[AcceptedPrefix] = [AcceptedPrefix() for _ in tickets]
        beginnings: list[ArrayLike] = []
        if not any(drafts):
            beginnings = state.start_of(tickets, accepted, self.vocabulary)
        prompts, *uploaded = upload(device, packed, *locations, *beginnings)
        state.put_locations(first, *uploaded[:3])
        hidden, started = runner.prompts.read(prompts, every=any(drafts)), uploaded[3:]
        if any(drafts):
            shared = self.model, self.vocabulary, state.hot_words
            parts = zip(windows, drafts, hidden, strict=False)
            accepted, logits = zip(*(verify_hidden(*p, *shared) for p in parts), strict=True)
            started = upload(device, *state.start_of(tickets, accepted, self.vocabulary))
            at_start, following = torch.stack(logits).unbind(1)
        else:
            at_start, following = self.model.decoder.logits(hidden[: len(tickets)]).unbind(1)
        banned_first, banned_replaced = state.start(first, *started)
        state.start_rules(first, tickets, accepted)
        if replaced or banned_replaced:
            runner.discard_graphs()
        banned_first.apply(following, slice(None))
        tokens = runner.prompts.tokens(prompts)[: len(tickets)]
        runner.start(first, tickets, following, self._no_speech(at_start), accepted, tokens)
        if self.check_every == 1 or any(t.full for t in tickets):
            self._collect_finished(runner.snapshot(first, tickets), results)

    # -- audio ---------------------------------------------------------------------------------

    def encode(self, plan: Plan, results: Results) -> None:
        """Start to encode new windows, and store what has been encoded."""
        batches, known = self.encoder.divide(plan.encode)
        max_batch = self.encoder.max_batch
        for tickets in batches:
            mels = [t.window.mel for t in tickets if t.window.mel is not None]
            self.encoder.begin(tickets, mels, not plan.starved)
            self._receive(results, wait=False)
        for first in range(0, len(known), max_batch):
            some = known[first : first + max_batch]
            features = torch.stack([output for _, output in some])
            features = features.to(self.model.device, self.model.dtype)
            self._store([t for t, _ in some], features, results)
        for ticket in plan.encode:
            ticket.window = ticket.window.without_mel()
        self._receive(results, wait=False)

    def _receive(self, results: Results, wait: bool) -> None:
        """Store encoder outputs in their slots; wait: for one batch, if there is one."""
        for tickets, features in self.encoder.completed(wait):
            self._store(tickets, features, results)

    def _store(self, tickets: list[Ticket], features: Tensor, results: Results) -> None:
        """Store the encoder's outputs [G, q, d]."""
        (slots,) = upload(self.model.device, [t.slot for t in tickets])
        if self.cross.put(slots, features):
            for runner in self.group_runners.values():
                runner.discard_graphs()  # they read whole windows
        results.encoded += tickets

    def _languages(self, tickets: Sequence[Ticket]) -> list[tuple[Ticket, Answer]]:
        """The probability of each language after <|startoftranscript|>."""
        windows, reader = [t.window for t in tickets], self._reader
        positions = [[w.sot_index] * 2 for w in windows]
        packed = reader.pack([w.prompt for w in windows], positions, [t.slot for t in tickets])
        (prompts,) = upload(self.model.device, packed)
        logits = self.model.decoder.logits(reader.read(prompts)[: len(windows), 0])
        codes = self.vocabulary.languages
        probs = logits[:, list(codes)].softmax(dim=-1).tolist()
        return [
            (t, Languages(dict(zip(codes.values(), row, strict=True))))
            for t, row in zip(tickets, probs, strict=True)
        ]

    def _align(self, tickets: Sequence[Ticket]) -> list[tuple[Ticket, Answer]]:
        requests: list[Align] = [t.align for t in tickets if t.align is not None]
        slots = [t.slot for t in tickets]
        alignments = align(self.model, self.vocabulary, requests, slots, self._reader)
        return list(zip(tickets, alignments, strict=True))

    @property
    def _reader(self) -> PromptReader:
        """For texts that are read once, and whose caches are overwritten by the next ones."""
        return next(iter(self.group_runners.values())).prompts

    def _no_speech(self, logits: Tensor) -> Tensor:
        """logits [n, V] after <|startoftranscript|> -> the probability of no speech, [n]; 0 where
        the vocabulary has no token for it.
        """
        token = self.vocabulary.no_speech
        return torch.zeros_like(logits[:, 0]) if token is None else logits.softmax(dim=-1)[:, token]
