"""Requests and pages without a model: a scripted runner, random orders, and no page lost."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from slimwhisper.cache.rows import PAGE, PagePool
from slimwhisper.engine.requests import Attempt, Decoded, Retry, Rules, Search, Window
from slimwhisper.engine.scheduler import Plan, Results, RowGroup, Scheduler, Ticket, TicketState

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
        self, scheduler: Scheduler, rng: random.Random, ends: float = 0.0, synchronous: float = 1.0
    ) -> None:
        self.scheduler, self.rng, self.ends, self.synchronous = scheduler, rng, ends, synchronous
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
        answered = [ticket for ticket, _ in self.scheduler.update(results)]
        self.check()
        return answered

    def _start(self, group: RowGroup, index: int, ticket: Ticket) -> None:
        ticket.count = len(ticket.draft) if group.resumable else 0
        ticket.count += 1
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

    def check(self) -> None:
        """Each page in use is one window's, and what rows read is theirs."""
        pool, groups = self.scheduler.pool, self.scheduler.groups
        decoding = [(group, t) for group in groups for t in group.tickets]
        owned = [page for _, t in decoding for pages in t.pages for page in pages]
        assert len(owned) == len(set(owned)) == pool.used <= pool.peak <= pool.count
        slots = [t.slot for t in self.scheduler.by_slot.values()]
        assert len(set(slots)) == len(slots) <= self.scheduler.slots
        assert {t for _, t in decoding} == set(self.scheduler.tickets(TicketState.DECODING))


def make(
    search: Search, slots: int, pages: int, lookahead: int = 0, rows: int = 0, batched: bool = False
) -> Scheduler:
    width = search.beams or 1
    main = RowGroup(width, rows or slots, lookahead, resumable=search.beams is None)
    return Scheduler(slots, PagePool(pages), CONTEXT, search, main, batched)


@pytest.mark.parametrize(
    ("search", "batched"),
    [
        *((Search(), True), (Search(samples=3), False)),
        *((Search(beams=2), True), (Search(beams=3, samples=2), False)),
    ],
    ids=str,
)
def test_no_page_is_lost_in_any_order(search: Search, batched: bool) -> None:
    """10,000 random submissions, retries, stops and steps, with pages for two windows."""
    rng = random.Random(2 if batched else 0)
    width = max(search.beams or 1, search.samples)
    scheduler = make(search, 6, 2 * width * CONTEXT // PAGE, batched=batched)
    script, answered, given_up = Script(scheduler, rng, 0.005, 0.5), [], set()
    for _ in range(10_000):
        if rng.random() < 0.3 and len(scheduler.waiting) < 5:
            scheduler.submit(object(), window(rng.randint(1, 40), rng.randint(1, 60)))
        if rng.random() < 0.02 and scheduler.by_slot:
            given_up.add(rng.choice(list(scheduler.by_slot.values())).owner)
            scheduler.stop(given_up)
        if rng.random() < 0.8:
            answered += script.step()
        while answered and rng.random() < 0.7:
            ticket = answered.pop(rng.randrange(len(answered)))
            again = rng.choice([0.0, 0.5, None, None])
            scheduler.reply(ticket, None if again is None else Retry(Attempt(again)))
    assert scheduler.preemptions > 3
    while not scheduler.idle:
        for ticket in script.step() + answered:
            scheduler.reply(ticket, None)
        answered = []
    assert scheduler.pool.used == 0 and scheduler.free == 6


def test_the_oldest_window_is_never_held_up() -> None:
    """Pages for two windows: all five come to their end, the first one first."""
    scheduler = make(Search(), 5, 2 * CONTEXT // PAGE)
    script, ended = Script(scheduler, random.Random(1)), []
    owners = [object() for _ in range(5)]
    for owner in owners:
        scheduler.submit(owner, window(20, 40))
    while not scheduler.idle:
        for ticket in script.step():
            ended.append(owners.index(ticket.owner))
            scheduler.reply(ticket, None)
    assert sorted(ended) == list(range(5)) and ended[0] == 0
    assert script.started[owners[0]] == 1 and scheduler.preemptions


def test_pages_grow_with_the_text() -> None:
    """One page more for each 16 tokens; a prompt's whole pages are shared by its beams."""
    scheduler = make(Search(beams=4), 1, 100)
    script = Script(scheduler, random.Random(0))
    scheduler.submit(object(), window(33, 20))
    used = []
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
    script, starts, plan = Script(scheduler, random.Random(0), 0.05, 0.0), [], scheduler.plan
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
