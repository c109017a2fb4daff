"""The scheduler: which windows are encoded, started and stepped next. It handles no tensors.

    waiting -> encoding -> ready -> decoding -> answered -> ready again, or gone
                 has a slot ..................................

A window keeps its slot from its encoding to its last answer: another attempt at the text, the
language and the alignment of the words all read the encoder output that is already there. While it
is decoded, its ticket is in a row group, and its text has pages. Pages are allocated as texts grow.
If none is free, the youngest window is preempted: it releases its pages, and its text restarts
later, with the tokens that it had if a prompt may be followed by a draft, else from its prompt.
"""

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain

from slimwhisper.cache.base import PAGE, PagePool, pages_of
from slimwhisper.engine.requests import Align, Answer, Attempt, Request, Search, Window


class TicketState(Enum):
    """The stage that a window has reached in the engine."""

    WAITING = 1  # waits for a slot
    ENCODING = 2
    READY = 3  # encoded; waits for rows and pages, the language, or the alignment
    DECODING = 4
    ANSWERED = 5  # waits for what follows
    GONE = 6


@dataclass(slots=True, eq=False)
class Ticket:
    """One window's stay in the engine, from its submission to its last answer."""

    owner: object  # whoever asked; equal owners are stopped together
    window: Window
    number: int  # in the order of submission
    state: TicketState = TicketState.WAITING
    slot: int = -1
    align: Align | None = None  # the request, if it is for an alignment
    # of the text in progress
    cache_index: int = 0  # in the caches of forms without pages, of its group
    count: int = 0  # tokens sampled
    limit: int = 0  # most tokens to sample
    drafted: int = 0  # how many of its tokens came from the window's draft
    resume: tuple[int, ...] = ()  # the tokens that it had when it was preempted
    # for each page of the text: one page, if all rows share it, or one for each row
    pages: list[list[int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the text in progress, with its prompt."""
        return len(self.window.prompt) + self.count

    @property
    def full(self) -> bool:
        """Whether its text has reached its limit."""
        return self.count >= self.limit

    @property
    def draft(self) -> tuple[int, ...]:
        """The tokens to verify together with the prompt."""
        return self.resume or self.window.draft


@dataclass(slots=True, eq=False)
class RowGroup:
    """Windows that are decoded together, in the order of their rows: `width` rows each."""

    width: int
    capacity: int
    resumable: bool = False  # a prompt may be followed by a draft
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many more windows fit."""
        return self.capacity - len(self.tickets)

    def add(self, ticket: Ticket) -> None:
        """Append a window; it gets the rows after all others'."""
        used = {t.cache_index for t in self.tickets}
        ticket.cache_index = next(i for i in range(self.capacity) if i not in used)
        self.tickets.append(ticket)

    def remove(self, ticket: Ticket) -> tuple[int, int]:
        """Remove a window; the last one takes its rows. Returns (the last index, its index)."""
        index, last = self.tickets.index(ticket), len(self.tickets) - 1
        self.tickets[index] = self.tickets[last]
        del self.tickets[last]
        return last, index


@dataclass(frozen=True, slots=True)
class Move:
    """Window `source` of a group moves to the rows of window `target`, both indices."""

    group: RowGroup
    source: int
    target: int
    saved: Ticket | None = None  # first, save the tokens of the target's text: it resumes later


@dataclass(slots=True)
class TextStart:
    """Windows first, first + 1 ... of a group, whose texts begin in the same step."""

    group: RowGroup
    first: int
    tickets: list[Ticket]


@dataclass(slots=True)
class Plan:
    """One step of the engine, in this order."""

    moves: list[Move] = field(default_factory=list)
    pages: list[tuple[RowGroup, int, int, int]] = field(default_factory=list)  # row, index, page
    align: list[Ticket] = field(default_factory=list)
    encode: list[Ticket] = field(default_factory=list)
    starved: bool = False  # rows wait for what is encoded
    languages: list[Ticket] = field(default_factory=list)
    start: list[TextStart] = field(default_factory=list)
    step: list[RowGroup] = field(default_factory=list)  # with the texts that start in this step

    @property
    def idle(self) -> bool:
        """Whether all there is to do is to wait for the encoder."""
        return not (self.align or self.languages or self.step)


@dataclass(slots=True)
class Results:
    """The outcome of a plan."""

    encoded: list[Ticket] = field(default_factory=list)
    answers: list[tuple[Ticket, Answer]] = field(default_factory=list)
    # of windows with several rows: the full pages that each row still reads
    read_pages: list[tuple[Ticket, list[list[int]]]] = field(default_factory=list)


# On a GPU that is full, texts start when one of so many rows is free: the prompts of eight, of 232
# tokens each, take large-v3 12 ms on an H200, and that of one takes 3.5.
ROWS_PER_START = 8


class Scheduler:
    """Assigns slots, rows and pages to the windows of an engine."""

    def __init__(
        self,
        slots: int,
        pool: PagePool,
        context: int,
        search: Search,
        main: RowGroup,
        batched: bool = False,
    ) -> None:
        """context: n_text_ctx. main: the group of greedy texts, or of beams. batched: on a GPU,
        whose encoder runs beside the steps: windows are encoded, and started, faster together.
        """
        self.slots, self.pool, self.context = slots, pool, context
        self.main_group, self.batched = main, batched
        # of samples, with about as many rows as the main group, in which more windows wait; None:
        # the main group samples, too
        self.sampling_group: RowGroup | None = None
        if search.beams is not None or search.samples > 1:
            self.sampling_group = RowGroup(search.samples, -(-main.capacity // search.samples))
        self.waiting: deque[Ticket] = deque()
        self.by_slot: dict[int, Ticket] = {}  # in the order in which they became ready
        self.preemptions = 0
        self._submitted = 0
        self._moves: list[Move] = []

    # -- requests ------------------------------------------------------------------------------

    @property
    def groups(self) -> list[RowGroup]:
        """The main group, and that of the samples, if there is one."""
        return [group for group in (self.main_group, self.sampling_group) if group is not None]

    @property
    def free(self) -> int:
        """Free slots."""
        return self.slots - len(self.by_slot)

    @property
    def idle(self) -> bool:
        """Whether there are no windows."""
        return not (self.waiting or self.by_slot)

    def tickets(self, *states: TicketState) -> Iterator[Ticket]:
        """The tickets in one of these states."""
        waiting = self.waiting if TicketState.WAITING in states else ()
        return (t for t in chain(waiting, self.by_slot.values()) if t.state in states)

    def submit(self, owner: object, window: Window, front: bool = False) -> None:
        """Queue a window; front: before all others."""
        ticket = Ticket(owner, window, self._submitted)
        self._submitted += 1
        (self.waiting.appendleft if front else self.waiting.append)(ticket)

    def reply(self, ticket: Ticket, request: Request | None) -> None:
        """Take the next request for a window that was answered; None: free its slot."""
        assert ticket.state is TicketState.ANSWERED
        del self.by_slot[ticket.slot]
        match request:
            case Attempt():
                ticket.window = replace(ticket.window, attempt=request)
            case Window(mel=None):
                ticket.window = request
            case Align():
                ticket.align = request
            case _:
                ticket.state = TicketState.GONE
                if request is not None:
                    self.submit(ticket.owner, request, front=True)
                return
        ticket.state, ticket.resume = TicketState.READY, ()
        self.by_slot[ticket.slot] = ticket  # behind the ones that are ready already

    def stop(self, owners: Container[object]) -> None:
        """End the windows of some owners: texts in progress are answered at the next check, all
        other windows are dropped without an answer.
        """
        for ticket in [*self.waiting, *self.by_slot.values()]:
            if ticket.owner not in owners or ticket.state is TicketState.ANSWERED:
                continue
            if ticket.state is TicketState.DECODING:
                ticket.limit = 0
                continue
            ticket.state = TicketState.GONE
            self.by_slot.pop(ticket.slot, None)
        self.waiting = deque(t for t in self.waiting if t.state is TicketState.WAITING)

    # -- work ----------------------------------------------------------------------------------

    def plan(self, max_batch: int, synchronous: bool) -> Plan:
        """The next step. max_batch: windows encoded, or started, together. synchronous: a window
        can start in the step that encodes it.
        """
        plan = Plan(moves=self._moves)
        self._moves = []
        preempted = self._grow_texts(plan)
        free = (s for s in range(self.slots) if s not in self.by_slot)
        full = sum(1 for _ in self.tickets(TicketState.READY)) > self.main_group.room
        # whether the few rows that are free wait until more are, to start several texts
        together = min(max_batch, self.main_group.capacity // ROWS_PER_START)
        few = bool(self.main_group.tickets) and self.main_group.room < together
        hold = self.batched and full and few
        for slot, _ in zip(free, range(self._encode_count(max_batch, full)), strict=False):
            ticket = self.waiting.popleft()
            ticket.slot = slot
            ticket.state = TicketState.READY if synchronous else TicketState.ENCODING
            self.by_slot[slot] = ticket
            plan.encode.append(ticket)
        for ticket in self.tickets(TicketState.READY):
            if ticket in preempted:  # its tokens are saved when the plan runs
                continue
            if ticket.align is not None:
                plan.align.append(ticket)
            elif ticket.window.rules is None:
                plan.languages.append(ticket)
            elif not (hold and self.group_of(ticket.window) is self.main_group):
                self._start(ticket, plan, max_batch)
        plan.step = [group for group in self.groups if group.tickets]
        plan.starved = bool(self.main_group.room) and not any(self.tickets(TicketState.READY))
        return plan

    def _encode_count(self, max_batch: int, full: bool) -> int:
        """How many windows to encode now. If it is `full`, fewer than `max_batch` wait for more, as
        they could not start yet. A GPU encodes one batch at a time, as the host would wait to
        launch a second one.
        """
        count = min(self.free, len(self.waiting))
        if self.batched:
            count = 0 if any(self.tickets(TicketState.ENCODING)) else min(count, max_batch)
        return 0 if full and count < max_batch else count

    def group_of(self, window: Window) -> RowGroup:
        """The group that decodes a window's attempt."""
        sampled = self.sampling_group is not None and bool(window.attempt.temperature > 0)
        return self.groups[sampled]

    def _start(self, ticket: Ticket, plan: Plan, max_batch: int) -> None:
        """Start a text if its group has room and there are pages for its prompt and its next
        tokens, with one in reserve for each row that is decoding already.
        """
        group, window = self.group_of(ticket.window), ticket.window
        if not group.room:
            return
        rules, width = window.rules, group.width
        assert rules is not None
        drafted = len(ticket.draft) if group.resumable else 0
        shared = len(window.prompt) // PAGE if width > 1 else 0
        tokens = min(len(window.prompt) + drafted + 1, self.context)
        per_row = pages_of(tokens) - shared
        reserve = sum(len(other.tickets) * other.width for other in self.groups)
        if self.pool.free < shared + per_row * width + reserve:
            return
        ticket.pages = [[page] for page in self.pool.allocate(shared)]
        ticket.pages += [self.pool.allocate(width) for _ in range(per_row)]
        # a text ends where its window's context does, as in `whisper.decode`
        ticket.limit = min(rules.sample_len, self.context + 1 - len(window.prompt))
        ticket.count = 0
        ticket.state = TicketState.DECODING
        last = plan.start[-1] if plan.start else None
        if last is None or last.group is not group or len(last.tickets) == max_batch:
            last = TextStart(group, len(group.tickets), [])
            plan.start.append(last)
        group.add(ticket)
        last.tickets.append(ticket)

    def _grow_texts(self, plan: Plan) -> set[Ticket]:
        """Allocate pages for the next step's tokens; while there are too few, the youngest window
        is preempted. Returns those that were.
        """
        decoding = [
            (t, group, pages_of(min(t.length, self.context)) - len(t.pages))
            for group in self.groups
            for t in group.tickets
        ]
        decoding.sort(key=lambda entry: entry[0].number)
        preempted = set[Ticket]()
        while self.pool.free < sum(g.width * missing for _, g, missing in decoding if missing > 0):
            ticket, group, _ = decoding.pop()
            saves = group.resumable and not ticket.window.attempt.temperature
            self._release(ticket, group, plan.moves, ticket if saves else None)
            ticket.state, ticket.resume = TicketState.READY, ()
            preempted.add(ticket)
            if not ticket.limit:  # it was stopped: nobody wants the rest
                ticket.state = TicketState.GONE
                del self.by_slot[ticket.slot]
        for ticket, group, missing in decoding:
            for index in range(len(ticket.pages), len(ticket.pages) + missing):
                ticket.pages.append(self.pool.allocate(group.width))
                first = group.tickets.index(ticket) * group.width
                pages = enumerate(ticket.pages[index], first)
                plan.pages += [(group, row, index, page) for row, page in pages]
        self.preemptions += len(preempted)
        return preempted

    def _release(
        self, ticket: Ticket, group: RowGroup, moves: list[Move], saved: Ticket | None = None
    ) -> None:
        """Free a text's rows and pages."""
        self.pool.release(chain.from_iterable(ticket.pages))
        ticket.pages = []
        moves.append(Move(group, *group.remove(ticket), saved))

    def update(self, results: Results) -> list[tuple[Ticket, Answer]]:
        """Apply the results of a plan; returns the answers, each of which needs a reply."""
        for ticket in results.encoded:
            if ticket.state is TicketState.ENCODING:
                ticket.state = TicketState.READY
        for ticket, rows in results.read_pages:
            for index, read in enumerate(zip(*rows, strict=True)):
                unread = set(ticket.pages[index]).difference(read)
                self.pool.release(unread)
                ticket.pages[index] = [p for p in ticket.pages[index] if p not in unread]
        for ticket, _ in results.answers:
            if ticket.state is TicketState.DECODING:
                self._release(ticket, self.group_of(ticket.window), self._moves)
            ticket.state, ticket.align = TicketState.ANSWERED, None
        return results.answers
