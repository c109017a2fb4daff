"""Requests and pages without a model: a scripted runner, random orders, and no page lost."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slimwhisper.cache.base import PAGE, PagePool
from slimwhisper.engine.requests import Attempt, Decoded, Rules, Search, Window
from slimwhisper.engine.scheduler import Plan, Results, RowGroup, Scheduler, Ticket, TicketState
from tests.support.fuzz import examples

CONTEXT = 64
NONE = torch.zeros(0, dtype=torch.int64)
RULES = Rules(NONE, NONE, timestamps=False, max_initial_timestamp=None, sample_len=32)
MEL: Any = "a window"


def window(prompt: int, sample_len: int = 32, temperature: float = 0.0) -> Window:
    rules = replace(RULES, sample_len=sample_len)
    return Window(MEL, (7,) * prompt, 0, rules, Attempt(temperature))


class Script:
    """Does what a plan says, with numbers in place of tensors, and checks every page."""

    def __init__(
        self, scheduler: Scheduler, seed: int, ends: float = 0.0, synchronous: float = 1.0
    ) -> None:
        self.scheduler, self.ends, self.synchronous = scheduler, ends, synchronous
        self.rng = random.Random(seed)
        self.tables: dict[tuple[RowGroup, int], list[int | None]] = {}  # by group and row
        self.started: Counter[Any] = Counter()

    def step(self) -> list[Ticket]:
        synchronous, results = self.rng.random() < self.synchronous, Results()
        plan = self.scheduler.plan(3, synchronous)
        for move in plan.moves:
            for i in range(move.group.width):
                source, target = (p * move.group.width + i for p in (move.source, move.target))
                moved = self.tables.pop((move.group, source))
                if source != target:
                    self.tables[move.group, target] = moved
            if move.saved is not None:
                move.saved.resume = (5,) * move.saved.count
        for group, row, index, page in plan.pages:
            assert self.tables[group, row][index] is None
            self.tables[group, row][index] = page
        for start in plan.start:
            for index, ticket in enumerate(start.tickets, start.first):
                self.started[ticket.owner] += 1
                self._start(start.group, index, ticket)
        for group in plan.step:
            for index, ticket in enumerate(group.tickets):
                self._token(group, index, ticket, results)
        for ticket in plan.languages:
            results.answers.append((ticket, Decoded()))
        encoding = list(self.scheduler.tickets(TicketState.ENCODING))
        results.encoded = [t for t in encoding if self.rng.random() < 0.7]
        return [ticket for ticket, _ in self.scheduler.update(results)]

    def _start(self, group: RowGroup, index: int, ticket: Ticket) -> None:
        ticket.count = 1 + (len(ticket.draft) if group.resumable else 0)
        for i in range(group.width):
            table: list[int | None] = [None] * (CONTEXT // PAGE)
            for number, pages in enumerate(ticket.pages):
                table[number] = pages[i] if len(pages) > 1 else pages[0]
            self.tables[group, index * group.width + i] = table

    def _token(self, group: RowGroup, index: int, ticket: Ticket, results: Results) -> None:
        """Every row writes one token to a page of its own, then becomes one of the window's."""
        rows = [(group, index * group.width + i) for i in range(group.width)]
        position = min(ticket.length - 1, CONTEXT - 1)
        pages = [self.tables[row][position // PAGE] for row in rows]
        assert None not in pages and len(set(pages)) == group.width
        whole = (position + 1) // PAGE
        tables = [self.tables[row][:whole] for row in rows]
        for row in rows:
            self.tables[row][:whole] = self.rng.choice(tables)
        ticket.count += 1
        if ticket.full or self.rng.random() < self.ends:
            results.answers.append((ticket, Decoded()))
        elif group.width > 1 and self.rng.random() < 0.3:
            results.read_pages.append((ticket, [self.tables[row][:whole] for row in rows]))


def make(search: Search, slots: int, pages: int, rows: int = 0, batched: bool = False) -> Scheduler:
    width = search.beams or 1
    main = RowGroup(width, rows or slots, resumable=search.beams is None)
    return Scheduler(slots, PagePool(pages), CONTEXT, search, main, batched)


SLOTS = 6
SEARCHES = [Search(), Search(samples=3), Search(beams=2), Search(beams=3, samples=2)]


class AnyOrder(RuleBasedStateMachine):
    """Submissions, retries, stops and steps, with pages for two windows."""

    @initialize(
        search=st.sampled_from(SEARCHES),
        batched=st.booleans(),
        seed=st.integers(0, 99),
    )
    def begin(self, search: Search, batched: bool, seed: int) -> None:
        pages = 2 * max(search.beams or 1, search.samples) * CONTEXT // PAGE
        self.scheduler = make(search, SLOTS, pages, batched=batched)
        self.script = Script(self.scheduler, seed, 0.005, 0.5)
        self.answered: list[Ticket] = []
        self.given_up: set[object] = set()
        self.submitted: list[object] = []  # owners

    @rule(prompts=st.lists(st.integers(1, 40), max_size=4), length=st.integers(1, 60))
    def submit(self, prompts: list[int], length: int) -> None:
        for prompt in prompts:
            self.submitted.append(object())
            self.scheduler.submit(self.submitted[-1], window(prompt, length))

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.answered += self.script.step()
            self.whole()

    @precondition(lambda self: self.scheduler.by_slot)
    @rule(index=st.integers(0, SLOTS - 1))
    def stop(self, index: int) -> None:
        tickets = list(self.scheduler.by_slot.values())
        self.given_up.add(tickets[index % len(tickets)].owner)
        self.scheduler.stop(self.given_up)

    @precondition(lambda self: self.answered)
    @rule(index=st.integers(0, SLOTS), heat=st.sampled_from([0.0, 0.5, None, None]))
    def reply(self, index: int, heat: float | None) -> None:
        ticket = self.answered.pop(index % len(self.answered))
        self.scheduler.reply(ticket, None if heat is None else Attempt(heat))

    @invariant()
    def whole(self) -> None:
        """Each page in use is one window's, no slot is taken twice, slots are given in order."""
        pool, groups = self.scheduler.pool, self.scheduler.groups
        decoding = [(group, t) for group in groups for t in group.tickets]
        owned = [page for _, t in decoding for pages in t.pages for page in pages]
        assert len(owned) == len(set(owned)) == pool.used <= pool.peak <= pool.count
        assert all(len(group.tickets) <= group.capacity for group in groups)
        slots = [t.slot for t in self.scheduler.by_slot.values()]
        answered = [t.slot for t in self.answered if t.state is TicketState.ANSWERED]
        assert len(set(slots)) == len(slots) <= SLOTS and {*answered} <= {*slots}
        assert {t for _, t in decoding} == set(self.scheduler.tickets(TicketState.DECODING))
        waiting = [t.number for t in self.scheduler.waiting]
        assert waiting == sorted(waiting)
        assert not waiting or all(t.number < waiting[0] for t in self.scheduler.by_slot.values())

    def teardown(self) -> None:
        """Everything ends: whoever was not given up has been decoded."""
        for _ in range(5_000):
            if self.scheduler.idle:
                break
            for ticket in self.answered + self.script.step():
                self.scheduler.reply(ticket, None)
            self.answered = []
            self.whole()
        assert self.scheduler.idle and self.scheduler.pool.used == 0
        assert self.scheduler.free == SLOTS
        assert {*self.submitted} - self.given_up <= {*self.script.started}


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = examples(40)


def test_the_oldest_window_is_never_held_up() -> None:
    """Pages for two windows: all five come to their end, the first one first."""
    scheduler = make(Search(), 5, 2 * CONTEXT // PAGE)
    script, ended = Script(scheduler, 1), []
    owners = [object() for _ in range(5)]
    for owner in owners:
        scheduler.submit(owner, window(20, 40))
    while not scheduler.idle:
        for ticket in script.step():
            ended.append(owners.index(ticket.owner))
            scheduler.reply(ticket, None)
    assert sorted(ended) == list(range(5)) and ended[0] == 0
    assert script.started[owners[0]] == 1 and scheduler.preemptions


def test_a_window_that_is_given_up_does_not_start_again() -> None:
    """When it loses its pages before it is answered."""
    scheduler = make(Search(), 2, CONTEXT // PAGE)
    script, owners = Script(scheduler, 1), [object(), object()]
    for owner in owners:
        scheduler.submit(owner, window(4, 60))
    script.step()
    while scheduler.main_group.tickets[0].length <= 2 * PAGE:  # then both need another page
        script.step()
    scheduler.stop({owners[1]})
    script.step()
    assert [t.owner for t in scheduler.by_slot.values()] == owners[:1] and scheduler.preemptions


def test_pages_grow_with_the_text() -> None:
    """One page more for each 16 tokens; a prompt's whole pages are shared by its beams."""
    scheduler = make(Search(beams=4), 1, 100)
    script, used = Script(scheduler, 0), []
    scheduler.submit(object(), window(33, 20))
    for _ in range(16):
        script.step()
        (ticket,) = scheduler.by_slot.values()
        used.append((ticket.length, scheduler.pool.used))
    assert used[0] == (35, 2 + 4), "two whole pages, and one for each beam"
    assert dict(used)[48] == 6 and dict(used)[50] == 10
    assert scheduler.pool.peak == 10


@pytest.mark.parametrize(("batched", "together"), [(False, 1), (True, 3)])
def test_texts_of_a_full_gpu_start_together(batched: bool, together: int) -> None:
    """While all rows are in use and windows wait, one row that is free waits for two more."""
    rows, count = 24, 90
    scheduler = make(Search(), rows + 9, 1000, rows=rows, batched=batched)
    script, starts, plan = Script(scheduler, 0, 0.05, 0.0), [], scheduler.plan
    for _ in range(count):
        scheduler.submit(object(), window(4, 40))

    def seen(max_batch: int, synchronous: bool) -> Plan:
        planned = plan(max_batch, synchronous)
        ready = any(scheduler.tickets(TicketState.READY))
        starts.append((ready, [len(start.tickets) for start in planned.start]))
        return planned

    scheduler.plan = seen  # type: ignore[method-assign]
    while not scheduler.idle:
        for ticket in script.step():
            scheduler.reply(ticket, None)
    assert sum(script.started.values()) == count
    while_others_wait = [sizes for ready, sizes in starts if ready and sizes]
    assert while_others_wait and min(map(sum, while_others_wait)) == together
    assert all(size <= 3 for _, sizes in starts for size in sizes)


@pytest.mark.parametrize("batched", [False, True])
def test_windows_wait_for_the_encoder_to_be_free(batched: bool) -> None:
    """Then those that came meanwhile are encoded in one pass; no pass is larger than it may be."""
    scheduler = make(Search(), 20, 1000, batched=batched)
    encoded = []
    for arriving in (1, 2, 5, 0, 7, 0):
        for _ in range(arriving):
            scheduler.submit(object(), window(4))
        plan = scheduler.plan(4, synchronous=False)
        encoded.append(len(plan.encode))
        if len(encoded) in (3, 5):
            assert not scheduler.update(Results(encoded=list(scheduler.by_slot.values())))
    assert encoded == ([1, 0, 0, 4, 0, 4] if batched else [1, 2, 5, 0, 7, 0])
