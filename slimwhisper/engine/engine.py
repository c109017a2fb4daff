"""Windows in, answers out: slots of audio, each refilled as soon as its window is done.

The engine knows nothing about files, text or tokenization. A slot belongs to one window from its
encoding to its last answer: another attempt at the text, the language and the alignment of the
words all read the encoder output that is already there.

    slots   0 ........ a | a ............. b | b ........ S
            first lane   | held: waiting for | second lane
            greedy or    | a reply, or for   | samples, where several
            beams        | room in a lane    | are drawn together
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.cache.plan import CrossCache
from slimwhisper.engine.alignment import align
from slimwhisper.engine.beams import BeamLane
from slimwhisper.engine.beside import EncoderBeside
from slimwhisper.engine.drafter import Drafter
from slimwhisper.engine.drafts import Agreed, agree, usable_draft
from slimwhisper.engine.lanes import Lane
from slimwhisper.engine.looks import Look
from slimwhisper.engine.places import Places, Ticket
from slimwhisper.engine.requests import (
    Align,
    Answer,
    Languages,
    Request,
    Retry,
    Search,
    Window,
)
from slimwhisper.engine.speculation import SpeculativeLane
from slimwhisper.kernels.graphs import CUDAGraphs, Graphs, Recorder
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

ENCODE_BATCH = 8  # windows encoded, or aligned, together on a GPU; bounds the activations
CPU_POSITIONS = 1500  # encoded together: their activations fit a CPU's caches, others' do not
MakeDrafter = Callable[[CrossCache, int], Drafter]  # of the slots' audio, for so many texts
CHECK_EVERY = 4  # tokens between looks at ended texts on a GPU, each judged at the next one


class Engine:
    """Decodes windows side by side. `submit` windows, then `step` until `idle`, with a `reply` to
    every answer.

    Rows are computed independently: a result depends on its neighbours only through rounding.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        slots: int,
        search: Search | None = None,
        check_every: int | None = None,
        recorder: Recorder | None = None,
        draft: MakeDrafter | None = None,
    ) -> None:
        """search: None: greedy, one text per window. check_every: tokens; None: 1 on a CPU,
        `CHECK_EVERY` on a GPU. recorder: of the steps; None: CUDA graphs on a GPU, none on a CPU.
        draft: makes what drafts the texts; not with beams.
        """
        if recorder is None and model.device.type == "cuda":
            recorder = CUDAGraphs(model.device)
        self.recorder = recorder
        self.model, self.vocabulary, self.slots = model, vocabulary, slots
        self.search = search or Search()
        self.check_every = check_every or (1 if model.device.type == "cpu" else CHECK_EVERY)
        self.encode_batch = ENCODE_BATCH
        if model.device.type == "cpu":
            self.encode_batch = min(max(CPU_POSITIONS // model.dims.n_audio_ctx, 1), ENCODE_BATCH)
        self.cross = model.allocate_cross(slots)
        self.first: Lane
        if draft is not None:
            assert self.search.beams is None
            places, drafter = Places(slots), draft(self.cross, slots)
            self.first = SpeculativeLane(
                model, vocabulary, self.cross, places, drafter, self._graphs()
            )
        elif self.search.beams is None:
            self.first = Lane(model, vocabulary, self.cross, Places(slots), self._graphs())
        else:
            self.first = BeamLane(
                model,
                vocabulary,
                self.cross,
                Places(slots, self.search.beams),
                self.search.patience,
                self._graphs(),
            )
        self._second: Lane | None = None
        self._waiting: deque[tuple[Any, Window]] = deque()
        self._held: dict[int, Ticket] = {}  # by slot
        self._encoder = EncoderBeside(model, self.encode_batch)
        self._again: list[Ticket] = []  # held, to be decoded again
        self._align: list[tuple[Ticket, Align]] = []
        self._looks: dict[Lane, Look] = {}  # not judged yet
        self._steps = 0

    # -- requests ------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._held or any(lane.tickets for lane in self._lanes()))

    @property
    def room(self) -> int:
        """How many more windows would get a slot without waiting."""
        return self.free - len(self._waiting)

    @property
    def free(self) -> int:
        """Free slots."""
        return self.slots - len(self._held) - sum(len(lane.tickets) for lane in self._lanes())

    def unencoded(self, mine: Callable[[Any], bool]) -> int:
        """How many windows whose tag is `mine` wait for the encoder, or are in it."""
        tags = [tag for tag, _ in self._waiting] + [t.tag for t in self._encoder.tickets()]
        return sum(map(mine, tags))

    @property
    def ahead(self) -> int:
        """How many windows to have at the encoder, so that it is never idle."""
        if self._encoder.shares_cores:
            return 2
        return self.encode_batch * (1 if self.model.device.type == "cpu" else 2)

    def share_cores(self, share: bool) -> None:
        """On a CPU, encode beside the decoder, as on a GPU, or no longer; for live streams."""
        self._encoder.share_cores(share)

    def nbytes(self) -> int:
        """Bytes of its caches."""
        return self.cross.nbytes() + sum(lane.nbytes() for lane in self._lanes())

    def submit(self, tag: Any, window: Window) -> None:
        """Queue a window; `tag` comes back with its answers."""
        assert window.mel is not None
        self._waiting.append((tag, window))

    def reply(self, ticket: Ticket, request: Request | None) -> None:
        """Say what to do next with a window that was answered; None frees its slot."""
        assert self._held.get(ticket.slot) is ticket
        match request:
            case Retry(attempt):
                ticket.window = replace(ticket.window, mel=None, attempt=attempt)
                self._again.append(ticket)
            case Window(mel=None):
                ticket.window = request
                self._again.append(ticket)
            case Align():
                self._align.append((ticket, request))
            case _:
                del self._held[ticket.slot]
                if request is not None:  # ahead of other files' windows
                    self._waiting.appendleft((ticket.tag, request))

    def stop(self, given_up: Callable[[Any], bool]) -> None:
        """End the windows whose tag is `given_up`: those that are decoding are answered at the next
        check, all others are dropped without an answer.
        """
        self._waiting = deque((tag, w) for tag, w in self._waiting if not given_up(tag))
        encoding = self._encoder.drop(given_up)
        for ticket in [*encoding, *self._again, *(ticket for ticket, _ in self._align)]:
            if given_up(ticket.tag):
                del self._held[ticket.slot]
        self._again = [t for t in self._again if not given_up(t.tag)]
        self._align = [(t, a) for t, a in self._align if not given_up(t.tag)]
        for lane in self._lanes():
            lane.stop([given_up(t.tag) for t in lane.tickets])

    # -- work ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[tuple[Ticket, Answer]]:
        """Serve the requests and decode one token of every active text; return the answers.

        Every ticket that is returned needs a `reply`.
        """
        answers: list[tuple[Ticket, Answer]] = []
        for start in range(0, len(self._align), self.encode_batch):
            answers += self._aligned(self._align[start : start + self.encode_batch])
        self._align.clear()
        answers += self._admit()
        for lane in self._lanes():
            if lane.tickets:
                lane.step()
        self._steps += 1
        for lane in self._lanes():
            if lane.tickets and (self._steps % self.check_every == 0 or lane.full()):
                answers += self._look(lane)
        return answers

    def _graphs(self) -> Graphs | None:
        return None if self.recorder is None else Graphs(self.recorder)

    def _lanes(self) -> list[Lane]:
        return [self.first] if self._second is None else [self.first, self._second]

    def _lane_of(self, window: Window) -> Lane:
        search, hot = self.search, window.attempt.temperature > 0
        if not hot or (search.beams is None and search.samples == 1):
            return self.first
        if self._second is None:  # about as many rows as slots; more windows wait in theirs
            capacity = -(-self.slots // search.samples)
            self._second = Lane(
                self.model,
                self.vocabulary,
                self.cross,
                Places(capacity, search.samples, from_end=True),
                self._graphs(),
            )
        return self._second

    def _admit(self) -> list[tuple[Ticket, Answer]]:
        """Restart held windows and start new ones while there is room."""
        answers = self._restart()
        while True:
            fresh = self._take_slots()
            if fresh:
                mels = [t.window.mel for t in fresh]
                self._encoder.begin(fresh, torch.stack([m for m in mels if m is not None]))
            busy = self._again or any(lane.tickets for lane in self._lanes())
            for tickets, features in self._encoder.arrived(wait=not busy):
                self._keep(tickets, features)
            answers += self._restart()
            if not (self._waiting and self.free):
                return answers

    def _take_slots(self) -> list[Ticket]:
        """Free slots for waiting windows, as many as are encoded together."""
        fresh: list[Ticket] = []
        while self._waiting and self.free and len(fresh) < self.encode_batch:
            tag, window = self._waiting.popleft()
            slot = next(s for s in self._middle() if s not in self._held)
            fresh.append(Ticket(tag, slot, window))
            self._held[slot] = fresh[-1]
        return fresh

    def _restart(self) -> list[tuple[Ticket, Answer]]:
        """Start held windows in groups, each in one lane; those without room stay held."""
        answers: list[tuple[Ticket, Answer]] = []
        while True:
            group: list[Ticket] = []
            rest: list[Ticket] = []
            kind: Lane | None = None
            for ticket in self._again:
                asks = ticket.window.rules is None  # for the language: no lane
                lane = None if asks else self._lane_of(ticket.window)
                full = lane is not None and lane.room <= len(group)
                if full or len(group) == self.encode_batch or (group and lane is not kind):
                    rest.append(ticket)
                else:
                    kind = lane
                    group.append(ticket)
            self._again = rest
            if not group:
                return answers
            answers += self._begin(group, kind)

    def _middle(self) -> range:
        """The slots between the lanes, held or free."""
        end = self.slots - (len(self._second.tickets) if self._second else 0)
        return range(len(self.first.tickets), end)

    def _keep(self, tickets: Sequence[Ticket], features: Tensor) -> None:
        """Put the encoder's output [G, p, d] into the tickets' slots; they can be decoded now."""
        slots = torch.tensor([t.slot for t in tickets], device=self.model.device)
        self.cross.put(slots, features)
        self._again += tickets

    def _place(self, ticket: Ticket, slot: int) -> None:
        """Move a held ticket's audio to another middle slot; a ticket there swaps with it."""
        other, source = self._held.pop(slot, None), ticket.slot
        if other is ticket:
            return
        if other is None:
            self.cross.move(source, slot)
            del self._held[source]
        else:
            self.cross.swap(source, slot)
            other.slot, self._held[source] = source, other
        ticket.slot = slot

    def _begin(self, group: list[Ticket], lane: Lane | None) -> list[tuple[Ticket, Answer]]:
        """Prefill the prompts of held tickets; then sample one token each in `lane`, or, if that is
        None, answer with the language probabilities.
        """
        if lane is not None:
            for ticket in group:
                self._place(ticket, lane.next_slot())
                lane.grow(ticket)
            group = sorted(group, key=lambda t: t.slot)
        owner = lane or self.first
        windows = [t.window for t in group]
        drafts = [self._draft(w) if owner.may_draft else () for w in windows]
        lengths = [len(w.prompt) + len(d) for w, d in zip(windows, drafts, strict=True)]
        rows = self._rows(group, owner, lengths)
        longest = max(lengths)
        padded = [
            [*w.prompt, *draft, *[0] * (longest - length)]
            for w, draft, length in zip(windows, drafts, lengths, strict=True)
        ]
        prompts = torch.tensor(padded, device=self.model.device)
        hidden = self.model.decoder.prefill(prompts, rows, owner.cache)
        agreed = [self._agreed(w, d, h) for w, d, h in zip(windows, drafts, hidden, strict=True)]
        every = torch.arange(len(group), device=self.model.device)
        asked = torch.tensor(
            [
                [w.sot_index, len(w.prompt) - 1 + len(a.tokens)]
                for w, a in zip(windows, agreed, strict=True)
            ]
        ).to(self.model.device)
        at_start, following = self.model.decoder.logits(hidden[every[:, None], asked]).unbind(1)
        if lane is None:
            return [(t, self._languages(at_start[i])) for i, t in enumerate(group)]
        lane.start(group, following, self._no_speech(at_start), agreed)
        return self._harvest(lane, lane.look()) if self.check_every == 1 or lane.full() else []

    def _draft(self, window: Window) -> tuple[int, ...]:
        """What to check of a window's draft."""
        if not window.draft:
            return ()
        return usable_draft(window, self.model.dims.n_text_ctx, self.vocabulary.eot)

    def _agreed(self, window: Window, draft: Sequence[int], hidden: Tensor) -> Agreed:
        """How far decoding agrees with a draft; hidden [T, d], after the last norm."""
        if not draft:
            return Agreed()
        first = len(window.prompt) - 1
        logits = self.model.decoder.logits(hidden[first : first + len(draft)])
        return agree(window, draft, logits, self.vocabulary, self.model.plan.kernels)

    def _rows(self, tickets: Sequence[Ticket], lane: Lane, lengths: Sequence[int]) -> Rows:
        """The first row of each ticket's place in `lane`, for a text of lengths[i] tokens."""
        numbers = [(t.slot, n) for t, n in zip(tickets, lengths, strict=True)]
        slots, tokens = torch.tensor(numbers, device=self.model.device).unbind(1)
        return Rows.of((slots - lane.offset) * lane.width, slots, tokens)

    def _no_speech(self, logits: Tensor) -> Tensor:
        """logits [n, V] after <|startoftranscript|> -> the probability of no speech, [n]; 0 where
        the vocabulary has no token for it.
        """
        token = self.vocabulary.no_speech
        return torch.zeros_like(logits[:, 0]) if token is None else logits.softmax(dim=-1)[:, token]

    def _languages(self, logits: Tensor) -> Languages:
        """logits [V] after <|startoftranscript|> -> the probability of every language code."""
        languages = self.vocabulary.languages
        probs = logits[list(languages)].softmax(dim=-1).tolist()
        return Languages(dict(zip(languages.values(), probs, strict=True)))

    def _look(self, lane: Lane) -> list[tuple[Ticket, Answer]]:
        """The windows whose texts have ended. On a GPU: by the last look, which has arrived by now,
        so that it is never idle while we judge.
        """
        look = lane.look()
        if self.model.device.type == "cpu":
            return self._harvest(lane, look)
        last, self._looks[lane] = self._looks.get(lane), look
        return [] if last is None else self._harvest(lane, last)

    def _harvest(self, lane: Lane, look: Look) -> list[tuple[Ticket, Answer]]:
        """Take the windows whose texts have ended out of the lane; held until the reply."""
        answers: list[tuple[Ticket, Answer]] = []
        for seen, ticket in look.ended():
            if ticket not in lane.tickets:  # an earlier look had it
                continue
            answers.append((ticket, look.result(seen, self.search.length_penalty)))
            slot = ticket.slot
            leaving = lane.shrink(lane.tickets.index(ticket))
            if leaving != slot:
                self.cross.swap(leaving, slot)
            self._held[leaving] = ticket
        return answers

    def _aligned(self, asked: list[tuple[Ticket, Align]]) -> list[tuple[Ticket, Answer]]:
        tickets, requests = zip(*asked, strict=True)
        rows = self._rows(tickets, self.first, [r.length for r in requests])
        found = align(self.model, self.vocabulary, requests, rows, self.first.cache)
        return list(zip(tickets, found, strict=True))
