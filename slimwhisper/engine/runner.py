"""Does what a plan says: the only place with the model, its caches, graphs and streams."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.cache.plan import CrossCache, DecoderCache, Pages
from slimwhisper.engine.agreement import Agreed, agree, usable_draft
from slimwhisper.engine.alignment import align
from slimwhisper.engine.beams import BeamSampler
from slimwhisper.engine.drafting.drafter import Drafter
from slimwhisper.engine.drafting.speculation import Speculation
from slimwhisper.engine.encoder import EncoderBeside
from slimwhisper.engine.lane_runner import LaneRunner
from slimwhisper.engine.requests import Align, Answer, Languages, Search, Window
from slimwhisper.engine.rows import RowState
from slimwhisper.engine.sampling import GreedySampler, Sampler
from slimwhisper.engine.snapshots import BeamSnapshot, Snapshot
from slimwhisper.engine.tickets import Lane, Plan, Results, Start, Ticket
from slimwhisper.kernels.graphs import Graphs, Recorder
from slimwhisper.kernels.memory import FreeMemory
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

CHECK_EVERY = 4  # tokens between snapshots on a GPU, each judged at the next one
MakeDrafter = Callable[
    [CrossCache, int, int], Drafter
]  # of the slots' audio, for so many texts, pages


class Runner:
    """The device's side of an engine."""

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
        self.encoder = EncoderBeside(model, encode_batch)
        self._free = FreeMemory()
        self.lanes: dict[Lane, LaneRunner] = {}
        self._steps = 0

    def add(self, lane: Lane, beams: bool = False, drafter: Drafter | None = None) -> LaneRunner:
        """Allocate what a lane needs."""
        model, vocabulary, rows = self.model, self.vocabulary, lane.capacity * lane.width
        cache = DecoderCache(self.cross, model.allocate_self(rows + 1, self.pages))
        graphs = None if self.recorder is None else Graphs(self.recorder)
        nobody = (rows, self.pages.nobody)
        state = RowState(model.dims, model.device, lane.capacity, lane.width, nobody)
        sampler: Sampler
        greedy = sampler = GreedySampler(state, vocabulary, model.plan.kernels)
        if beams:
            skip = graphs is None and model.device.type == "cpu"
            sampler = BeamSampler(state, vocabulary, cache.self_, self.search.patience, skip)
        speculation = None
        if drafter is not None:
            speculation = Speculation(model, vocabulary, cache, greedy, drafter)
        made = LaneRunner(model, vocabulary, lane, cache, sampler, state, graphs, speculation)
        self.lanes[lane] = made
        return made

    def nbytes(self) -> int:
        """Bytes of the caches."""
        pages = self.pages.count * self.pages.page_bytes
        return self.cross.nbytes() + pages + sum(lane.nbytes() for lane in self.lanes.values())

    def run(self, plan: Plan) -> Results:
        """One step of the engine."""
        results = Results()
        for lane in plan.step:
            if lane not in self.lanes:
                self.add(lane)
        for move in plan.moves:
            self.lanes[move.lane].move(move)
        self._give_pages(plan)
        most = self.encoder.most
        for begin in range(0, len(plan.align), most):
            results.answers += self._align(plan.align[begin : begin + most])
        for begin in range(0, len(plan.encode), most):
            self.encode(plan.encode[begin : begin + most], results)
        if plan.encode and self.cross.slots > 1 and self.encoder.at_once:  # else needed again soon
            self._free.give_back()
        self._receive(results, wait=plan.idle)
        for begin in range(0, len(plan.languages), most):
            results.answers += self._languages(plan.languages[begin : begin + most])
        for start in plan.start:
            self._start(start, results)
        for lane in plan.step:
            self.lanes[lane].step(lane.tickets)
        self._steps += 1
        for lane in plan.step:
            if self._steps % self.check_every == 0 or any(t.full for t in lane.tickets):
                self._look(self.lanes[lane], results)
        return results

    # -- rows ----------------------------------------------------------------------------------

    def _give_pages(self, plan: Plan) -> None:
        """Upload the pages that texts have been given."""
        for lane in {lane for lane, *_ in plan.pages}:
            given = [entry for of, *entry in plan.pages if of is lane]
            rows, indices, pages = self._upload(given).unbind(1)
            self.lanes[lane].state.table[rows, indices] = pages

    def _upload(self, numbers: list[list[int]]) -> Tensor:
        """int64, on the device; the host does not wait for it."""
        found = torch.tensor(numbers)
        if self.model.device.type == "cuda":
            found = found.pin_memory()
        return found.to(self.model.device, non_blocking=True)

    def _look(self, lane: LaneRunner, results: Results) -> None:
        """Answer the windows whose texts have ended. On a GPU: by the last snapshot, which has
        arrived by now, so that it is never idle while we judge.
        """
        snapshot = lane.snapshot(0, lane.lane.tickets)
        if self.model.device.type == "cpu":
            self._judge(snapshot, results)
            return
        last, lane.pending = lane.pending, snapshot
        if last is not None:
            self._judge(last, results)

    def _judge(self, snapshot: Snapshot, results: Results) -> None:
        penalty = self.search.length_penalty
        answered = {ticket for ticket, _ in results.answers}
        ended = [i for i in snapshot.ended() if snapshot.moments[i].ticket not in answered]
        for index in ended:
            moment = snapshot.moments[index]
            results.answers.append((moment.ticket, snapshot.result(index, penalty)))
        if isinstance(snapshot, BeamSnapshot):
            results.read += snapshot.read_pages(ended, self.check_every)

    def _start(self, start: Start, results: Results) -> None:
        """Prefill prompts, with what may follow them, and sample the first token of each text."""
        lane, tickets = self.lanes[start.lane], start.tickets
        state, windows = lane.state, [t.window for t in tickets]
        context, eot = self.model.dims.n_text_ctx, self.vocabulary.eot
        drafts: list[tuple[int, ...]] = [() for _ in tickets]
        if start.lane.resumes:
            drafts = [usable_draft(t.window, t.draft, context, eot) for t in tickets]
        state.locate(start.first, tickets)
        texts = [[*w.prompt, *draft] for w, draft in zip(windows, drafts, strict=True)]
        hidden = self._prefill(texts, state.call(start.first, len(tickets)).rows, lane.cache)
        agreed = [self._agreed(w, d, h) for w, d, h in zip(windows, drafts, hidden, strict=True)]
        at_start, following = self._logits(
            hidden,
            [
                [w.sot_index, len(w.prompt) - 1 + len(a.tokens)]
                for w, a in zip(windows, agreed, strict=True)
            ],
        )
        if state.begin(start.first, tickets, agreed, self.vocabulary) and lane.graphs is not None:
            lane.graphs.forget()
        no_speech = self._no_speech(at_start)
        lane.start(start.first, tickets, following, no_speech, agreed)
        if self.check_every == 1 or any(t.full for t in tickets):
            self._judge(lane.snapshot(start.first, tickets), results)

    def _prefill(self, texts: Sequence[Sequence[int]], rows: Rows, cache: DecoderCache) -> Tensor:
        """Read texts in the first rows of windows: hidden [n, T, d]."""
        longest = max(map(len, texts))
        padded = [[*text, *[0] * (longest - len(text))] for text in texts]
        lengths = torch.tensor([len(text) for text in texts], device=self.model.device)
        rows = rows.first_of_each(lengths)
        return self.model.decoder.prefill(
            torch.tensor(padded, device=self.model.device), rows, cache
        )

    def _logits(self, hidden: Tensor, at: list[list[int]]) -> tuple[Tensor, Tensor]:
        """hidden [n, T, d], two positions of each -> the logits there, [n, V] both."""
        every = torch.arange(len(hidden), device=hidden.device)[:, None]
        first, second = self.model.decoder.logits(
            hidden[every, torch.tensor(at, device=hidden.device)]
        ).unbind(1)
        return first, second

    def _agreed(self, window: Window, draft: Sequence[int], hidden: Tensor) -> Agreed:
        """How far decoding agrees with a draft; hidden [T, d], after the last norm."""
        if not draft:
            return Agreed()
        first = len(window.prompt) - 1
        logits = self.model.decoder.logits(hidden[first : first + len(draft)])
        return agree(window, draft, logits, self.vocabulary, self.model.plan.kernels)

    # -- audio ---------------------------------------------------------------------------------

    def encode(self, tickets: Sequence[Ticket], results: Results) -> None:
        """Start to encode new windows, and keep what has been encoded."""
        mels = [t.window.mel for t in tickets]
        self.encoder.begin(tickets, torch.stack([m for m in mels if m is not None]))
        for ticket in tickets:
            ticket.window = ticket.window.without_mel()
        self._receive(results, wait=False)

    def _receive(self, results: Results, wait: bool) -> None:
        """Put what has been encoded into its slots; wait: for one batch, if there is one."""
        for tickets, features in self.encoder.arrived(wait):
            slots = torch.tensor([t.slot for t in tickets], device=self.model.device)
            self.cross.put(slots, features)
            results.encoded += tickets

    def _alone(self, tickets: Sequence[Ticket]) -> tuple[Rows, DecoderCache]:
        """Rows that read the tickets' audio, and keep their texts nowhere."""
        lane = next(iter(self.lanes.values()))
        state, device = lane.state, self.model.device
        row, page = state.nobody
        return Rows(
            ids=torch.full((len(tickets),), row, device=device),
            slots=torch.tensor([t.slot for t in tickets], device=device),
            table=torch.full_like(state.table[:1], page).expand(len(tickets), -1),
        ), lane.cache

    def _languages(self, tickets: Sequence[Ticket]) -> list[tuple[Ticket, Answer]]:
        """The probability of every language code, after <|startoftranscript|>."""
        windows, (rows, cache) = [t.window for t in tickets], self._alone(tickets)
        hidden = self._prefill([w.prompt for w in windows], rows, cache)
        logits, _ = self._logits(hidden, [[w.sot_index] * 2 for w in windows])
        codes = self.vocabulary.languages
        probs = logits[:, list(codes)].softmax(dim=-1).tolist()
        return [
            (t, Languages(dict(zip(codes.values(), own, strict=True))))
            for t, own in zip(tickets, probs, strict=True)
        ]

    def _align(self, tickets: Sequence[Ticket]) -> list[tuple[Ticket, Answer]]:
        requests: list[Align] = [t.align for t in tickets if t.align is not None]
        rows, cache = self._alone(tickets)
        found = align(self.model, self.vocabulary, requests, rows, cache)
        return list(zip(tickets, found, strict=True))

    def _no_speech(self, logits: Tensor) -> Tensor:
        """logits [n, V] after <|startoftranscript|> -> the probability of no speech, [n]; 0 where
        the vocabulary has no token for it.
        """
        token = self.vocabulary.no_speech
        return torch.zeros_like(logits[:, 0]) if token is None else logits.softmax(dim=-1)[:, token]
