"""Which windows are encoded, started and stepped next: requests and pages, without a tensor.

    waiting -> encoding -> ready -> decoding -> answered -> ready again, or gone
                 has a slot ..................................

A window keeps its slot from its encoding to its last answer: another attempt at the text, the
language and the alignment of the words all read the encoder output that is already there. While it
is decoded it is one of a lane's tickets, and its text has pages. Pages are given as texts grow. If
there are none, the youngest window gives its pages back, and its text starts again later: with the
tokens that it had, where a prompt may be followed by a draft, else from its prompt.
"""

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import chain

from slimwhisper.cache.pool import PAGE, PagePool, pages_of
from slimwhisper.engine.requests import Align, Answer, Owner, Request, Retry, Search, Window
from slimwhisper.engine.tickets import Lane, Move, Plan, Results, Start, State, Ticket


class Scheduler:
    """The windows of an engine."""

    def __init__(self, slots: int, pool: PagePool, context: int, search: Search, first: Lane):
        """context: n_text_ctx. first: the lane of greedy texts, or of beams."""
        self.slots, self.pool, self.context, self.search = slots, pool, context, search
        self.first, self.second = first, self._samples()
        self.waiting: deque[Ticket] = deque()
        self.held: dict[int, Ticket] = {}  # by slot, in the order in which they had it
        self.preemptions = 0
        self._submitted = 0
        self._moves: list[Move] = []

    def _samples(self) -> Lane | None:
        """A lane of samples, with about as many rows as slots; more windows wait in theirs."""
        width = self.search.samples
        if self.search.beams is None and width == 1:
            return None  # the first lane draws, too
        return Lane(width, -(-self.slots // width))

    # -- requests ------------------------------------------------------------------------------

    @property
    def lanes(self) -> list[Lane]:
        """Of the first attempts, and, if some may be samples, of theirs."""
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def free(self) -> int:
        """Free slots."""
        return self.slots - len(self.held)

    @property
    def idle(self) -> bool:
        """Whether no window is here."""
        return not (self.waiting or self.held)

    def tickets(self, *states: State) -> Iterator[Ticket]:
        """Those in one of these states."""
        return (t for t in chain(self.waiting, self.held.values()) if t.state in states)

    def submit(self, owner: Owner, window: Window, ahead: bool = False) -> None:
        """Queue a window; ahead: of all others."""
        ticket = Ticket(owner, window, self._submitted)
        self._submitted += 1
        (self.waiting.appendleft if ahead else self.waiting.append)(ticket)

    def reply(self, ticket: Ticket, request: Request | None) -> None:
        """What to do next with a window that was answered; None: free its slot."""
        assert ticket.state is State.ANSWERED
        del self.held[ticket.slot]
        match request:
            case Retry(attempt):
                ticket.window = replace(ticket.window, attempt=attempt)
            case Window(mel=None):
                ticket.window = request
            case Align():
                ticket.align = request
            case _:
                ticket.state = State.GONE
                if request is not None:
                    self.submit(ticket.owner, request, ahead=True)
                return
        ticket.state, ticket.resume = State.READY, ()
        self.held[ticket.slot] = ticket  # after those that are ready already

    def stop(self, owners: Container[Owner]) -> None:
        """End the windows of some owners: those that are decoding are answered at the next check,
        all others are dropped without an answer.
        """
        for ticket in [*self.waiting, *self.held.values()]:
            if ticket.owner not in owners or ticket.state is State.ANSWERED:
                continue
            if ticket.state is State.DECODING:
                ticket.limit = 0
                continue
            ticket.state = State.GONE
            if ticket.slot >= 0:
                del self.held[ticket.slot]
        self.waiting = deque(t for t in self.waiting if t.state is State.WAITING)

    # -- work ----------------------------------------------------------------------------------

    def plan(self, most: int, at_once: bool) -> Plan:
        """What to do next. most: windows encoded, or started, together. at_once: a window that is
        encoded can be started in the same step.
        """
        plan = Plan(moves=self._moves)
        self._moves = []
        preempted = self._grow(plan)
        free = (s for s in range(self.slots) if s not in self.held)
        for slot, _ in zip(free, range(min(self.free, len(self.waiting))), strict=False):
            ticket = self.waiting.popleft()
            ticket.slot, ticket.state = slot, State.READY if at_once else State.ENCODING
            self.held[slot] = ticket
            plan.encode.append(ticket)
        for ticket in self.tickets(State.READY):
            if ticket in preempted:  # what it had is not saved yet
                continue
            if ticket.align is not None:
                plan.align.append(ticket)
            elif ticket.window.rules is None:
                plan.languages.append(ticket)
            else:
                self._start(ticket, plan, most)
        plan.step = [lane for lane in self.lanes if lane.tickets]
        return plan

    def lane_of(self, window: Window) -> Lane:
        """The lane that decodes a window's attempt."""
        return self.second if self.second and window.attempt.temperature > 0 else self.first

    def _start(self, ticket: Ticket, plan: Plan, most: int) -> None:
        """Start a text if its lane has room, and there are pages: its prompt's, its next ones, and
        one for each row that is decoding already.
        """
        lane, window = self.lane_of(ticket.window), ticket.window
        if not lane.room:
            return
        rules, width = window.rules, lane.width
        assert rules is not None
        given = len(ticket.draft) if lane.resumes else 0
        shared = len(window.prompt) // PAGE if width > 1 else 0
        tokens = min(len(window.prompt) + given + 1 + lane.ahead, self.context)
        each = pages_of(tokens) - shared
        reserve = sum(len(other.tickets) * other.width for other in self.lanes)
        if self.pool.free < shared + each * width + reserve:
            return
        ticket.pages = [[page] for page in self.pool.take(shared)]
        ticket.pages += [self.pool.take(width) for _ in range(each)]
        # a text ends where its window's context does, as in `whisper.decode`
        ticket.limit = min(rules.sample_len, self.context + 1 - len(window.prompt))
        ticket.length, ticket.count = len(window.prompt), 0
        ticket.state = State.DECODING
        last = plan.start[-1] if plan.start else None
        if last is None or last.lane is not lane or len(last.tickets) == most:
            last = Start(lane, len(lane.tickets), [])
            plan.start.append(last)
        lane.add(ticket)
        last.tickets.append(ticket)

    def _grow(self, plan: Plan) -> set[Ticket]:
        """Pages for what the next step writes, the oldest windows first. Returns the windows that
        had to give theirs back.
        """
        decoding = [(t, lane) for lane in self.lanes for t in lane.tickets]
        decoding.sort(key=lambda pair: pair[0].number)
        grown: list[tuple[Lane, Ticket, int]] = []
        preempted: set[Ticket] = set()
        for ticket, lane in decoding:
            tokens = min(ticket.length + lane.ahead, self.context)
            while ticket.state is State.DECODING and len(ticket.pages) < pages_of(tokens):
                if self.pool.free >= lane.width:
                    grown.append((lane, ticket, len(ticket.pages)))
                    ticket.pages.append(self.pool.take(lane.width))
                    continue
                youngest, own = next(p for p in decoding[::-1] if p[0].state is State.DECODING)
                saves = own.resumes and not youngest.window.attempt.temperature
                self._leave(youngest, own, plan.moves, youngest if saves else None)
                youngest.state, youngest.resume = State.READY, ()
                preempted.add(youngest)
        for lane, ticket, index in grown:
            if ticket.state is State.DECODING:
                row = lane.tickets.index(ticket) * lane.width
                plan.pages += [
                    (lane, row + i, index, page) for i, page in enumerate(ticket.pages[index])
                ]
        self.preemptions += len(preempted)
        return preempted

    def _leave(
        self, ticket: Ticket, lane: Lane, moves: list[Move], saved: Ticket | None = None
    ) -> None:
        """A text's rows and pages are free again."""
        self.pool.release(chain.from_iterable(ticket.pages))
        ticket.pages = []
        moves.append(Move(lane, *lane.remove(ticket), saved))

    def update(self, results: Results) -> list[tuple[Ticket, Answer]]:
        """Take note of what came of a plan; returns the answers, each of which needs a reply."""
        for ticket in results.encoded:
            if ticket.state is State.ENCODING:
                ticket.state = State.READY
        for ticket, rows in results.read:
            for index, read in enumerate(zip(*rows, strict=True)):
                unread = set(ticket.pages[index]).difference(read)
                self.pool.release(unread)
                ticket.pages[index] = [p for p in ticket.pages[index] if p not in unread]
        for ticket, _ in results.answers:
            if ticket.state is State.DECODING:
                self._leave(ticket, self.lane_of(ticket.window), self._moves)
            ticket.state, ticket.align = State.ANSWERED, None
        return results.answers
