"""The scheduler on simulated workers: every item ends once, whoever dies."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from slimwhisper.ray.scheduler import Scheduler


def given(scheduler: Scheduler[str], items: Iterator[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for worker, item in scheduler.assign(lambda: next(items, None)):
        found.setdefault(worker, []).append(item)
    return found


def filled(*rooms: int) -> Scheduler[str]:
    scheduler: Scheduler[str] = Scheduler()
    for worker, room in enumerate(rooms):
        scheduler.up(worker, room)
    return scheduler


def test_what_a_dead_worker_had_is_tried_once_more_alone() -> None:
    scheduler, items = filled(3, 2), iter("abcdefg")
    assert given(scheduler, items) == {0: ["a", "c", "e"], 1: ["b", "d"]}  # in turns
    assert scheduler.running == 5 and not scheduler.finished
    assert scheduler.down(1) == ({"b", "d"}, False)
    scheduler.up(2, 2)
    (first,) = given(scheduler, items)[2]  # nothing else, though there is room
    scheduler.done(2, first)
    (second,) = given(scheduler, items)[2]
    assert {first, second} == {"b", "d"}
    assert scheduler.down(2) == ({second}, True)
    scheduler.up(3, 2)
    assert given(scheduler, items) == {3: ["f", "g"]}  # as before


@pytest.mark.parametrize("seed", range(4))
def test_random_deaths(seed: int) -> None:
    """Items that kill their worker are given up, others only if their worker died twice by chance;
    each ends once.
    """
    rng = random.Random(seed)
    items = [str(n) for n in range(3000)]
    poison = set(rng.sample(items, 5))
    source, ended, running = iter(items), Counter[str](), dict[int, list[str]]()
    scheduler, given_up = filled(*[24] * 8), set[str]()
    started, chances = 8, Counter[str]()
    while True:
        for worker, load in given(scheduler, source).items():
            running.setdefault(worker, []).extend(load)
        if scheduler.finished:
            break
        worker = rng.choice([w for w, load in running.items() if load])
        item = running[worker].pop(rng.randrange(len(running[worker])))
        by_chance = rng.random() < 0.003
        if item not in poison and not by_chance:
            scheduler.done(worker, item)
            ended[item] += 1
            continue
        chances.update([item] if by_chance else [])
        lost, last = scheduler.down(worker)
        assert lost == {item, *running.pop(worker)} and (not last or len(lost) == 1)
        given_up |= lost if last else set()
        ended.update(lost if last else [])
        scheduler.up(started, 24)
        started += 1
    assert ended == Counter(items) and started > 18
    assert poison <= given_up
    assert all(chances[item] for item in given_up - poison)
