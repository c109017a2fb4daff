"""The scheduler on simulated workers: every recording ends once, whoever dies."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.inputs import InputFile
from slimwhisper.ray.results import Ended
from slimwhisper.ray.scheduler import DRAIN_AFTER, Scheduler
from tests.support.simulated import SimulatedCluster, simulate


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def given(scheduler: Scheduler[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for worker, item in scheduler.assign():
        found.setdefault(worker, []).append(item)
    return found


def filled(items: str, rooms: list[int], clock: Clock | None = None) -> Scheduler[str]:
    scheduler: Scheduler[str] = Scheduler(clock=clock or Clock())
    for item in items:
        scheduler.add(item)
    scheduler.end()
    for worker, room in enumerate(rooms):
        scheduler.up(worker, room)
    return scheduler


def recording(number: int) -> InputFile:
    path = Path(f"{number}.wav")
    return InputFile(path, path)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_workers_take_turns_and_the_longest_start_first() -> None:
    scheduler: Scheduler[str] = Scheduler(lookahead=3, clock=Clock())
    assert scheduler.wanted == 3
    scheduler.up(0, 2)
    scheduler.up(1, 1)
    assert scheduler.wanted == 6
    for item, weight in (("a", 1), ("b", 5), ("c", 3), ("d", 4)):
        scheduler.add(item, weight)
    assert given(scheduler) == {0: ["b", "c"], 1: ["d"]}
    assert scheduler.wanted == 2 and scheduler.running == 3
    assert scheduler.done(1, "d") == ()
    assert given(scheduler) == {1: ["a"]}
    scheduler.end()
    for worker, item in ((0, "b"), (0, "c"), (1, "a")):
        assert not scheduler.finished
        scheduler.done(worker, item)
    assert scheduler.finished


def test_what_a_dead_worker_had_runs_apart_in_halves() -> None:
    scheduler = filled("abcdefg", [4, 1])
    assert given(scheduler) == {0: ["a", "c", "d", "e"], 1: ["b"]}
    scheduler.done(0, "a")
    assert scheduler.down(0) == []
    scheduler.up(2, 4)
    assert given(scheduler) == {2: ["c", "d"]}  # nothing else, though there is room
    scheduler.done(1, "b")
    assert given(scheduler) == {1: ["e"]}
    scheduler.done(1, "e")
    scheduler.done(2, "c")
    assert given(scheduler) == {1: ["f"]}
    scheduler.done(2, "d")
    assert given(scheduler) == {2: ["g"]}
    scheduler.done(1, "f")
    scheduler.done(2, "g")
    assert scheduler.finished


def test_two_deaths_in_its_only_company_set_an_item_aside() -> None:
    scheduler = filled("ab", [2])
    given(scheduler)
    assert scheduler.down(0) == []  # a or b
    scheduler.up(1, 2)
    assert given(scheduler) == {1: ["a"]}
    assert scheduler.down(1) == []  # a, or by chance
    scheduler.up(2, 2)
    assert given(scheduler) == {2: ["b"]}
    scheduler.done(2, "b")
    assert given(scheduler) == {2: ["a"]}
    assert scheduler.down(2) == ["a"]
    assert scheduler.finished


def test_without_an_idle_worker_one_drains_for_suspects() -> None:
    clock = Clock()
    scheduler = filled("abcdefghij", [1, 2, 3], clock)
    assert given(scheduler) == {0: ["a"], 1: ["b", "d"], 2: ["c", "e", "f"]}
    scheduler.down(0)
    scheduler.done(1, "b")
    assert given(scheduler) == {1: ["g"]}  # a new worker may come
    clock.now = DRAIN_AFTER + 1
    given(scheduler)
    scheduler.done(1, "d")
    assert given(scheduler) == {}
    scheduler.done(1, "g")
    assert given(scheduler) == {1: ["a"]}


def test_what_takes_long_at_the_end_runs_twice() -> None:
    clock = Clock()
    scheduler = filled("abc", [1, 1], clock)
    assert given(scheduler) == {0: ["a"], 1: ["b"]}
    clock.now = 10
    scheduler.done(0, "a")
    assert given(scheduler) == {0: ["c"]}
    clock.now = 20
    scheduler.done(0, "c")
    assert given(scheduler) == {0: ["b"]}
    assert given(scheduler) == {}
    assert scheduler.done(0, "b") == (1,)  # in vain there
    assert scheduler.finished
    assert scheduler.done(1, "b") is None


def test_the_death_of_one_copy_is_nobodys_fault() -> None:
    clock = Clock()
    scheduler = filled("ab", [1, 1], clock)
    given(scheduler)
    clock.now = 1
    scheduler.done(0, "a")
    clock.now = 5
    assert given(scheduler) == {0: ["b"]}
    assert scheduler.down(1) == [] and scheduler.down(0) == []
    scheduler.up(2, 1)
    assert given(scheduler) == {2: ["b"]}
    assert scheduler.done(2, "b") == ()
    assert scheduler.finished


def test_stop_starts_nothing_more() -> None:
    scheduler = filled("abcde", [1, 1, 1])
    given(scheduler)
    scheduler.down(0)
    assert scheduler.running == 2
    scheduler.stop()
    assert given(scheduler) == {} and scheduler.wanted == 0
    scheduler.done(1, "b")
    scheduler.down(2)  # its item is for the next run
    assert scheduler.finished


@pytest.mark.parametrize("seed", range(4))
def test_random_deaths(seed: int) -> None:
    """Only what kills workers is set aside, and everything else ends once."""
    rng = random.Random(seed)
    seconds = {recording(n): rng.lognormvariate(1, 1) for n in range(3000)}
    poison = set(rng.sample(sorted(seconds, key=str), 5))
    cluster = SimulatedCluster(
        8, 16, seconds.__getitem__, poison=poison.__contains__, kills=1 / 200, seed=seed
    )
    ended: list[Ended] = []
    simulate(cluster, iter(seconds), ended.extend)
    assert Counter(e.recording for e in ended) == Counter(seconds.keys())
    failed = {e.recording for e in ended if isinstance(e.written.result, SlimWhisperError)}
    assert failed == poison and cluster.deaths > 20
    one = next(e for e in ended if e.recording in poison)
    assert str(one.recording.path) in str(one.written.result)


def test_workers_that_die_of_everything_end_the_job() -> None:
    cluster = SimulatedCluster(3, 4, lambda _: 1.0, poison=lambda _: True)
    ended: list[Ended] = []
    with pytest.raises(SlimWhisperError, match=r"\d+ workers have died and nothing"):
        simulate(cluster, map(recording, range(10_000)), ended.extend)
    assert 26 <= cluster.deaths <= 28 and len(ended) < 10


def test_an_interrupt_finishes_what_runs() -> None:
    cluster = SimulatedCluster(2, 4, lambda _: 1.0)
    ended: list[Ended] = []
    simulate(cluster, map(recording, range(1000)), ended.extend, stopping=lambda: len(ended) >= 100)
    assert 100 <= len(ended) <= 100 + 2 * (4 + 16 + 4)


def test_a_slow_worker_does_not_hold_up_the_end() -> None:
    """The last recordings of a worker ten times slower run in others too."""
    ended: list[Ended] = []
    slow = SimulatedCluster(4, 8, lambda _: 10.0, speed=lambda worker: 0.1 if worker == 2 else 1)
    simulate(slow, map(recording, range(400)), ended.extend)
    assert len(ended) == len(set(e.recording for e in ended)) == 400
    assert slow.dropped
    assert slow.now < 400 / 24 * 10 + 100 + 30  # three workers, one recording of the slow one


def test_memory_stays_flat_and_slots_are_filled() -> None:
    rng = random.Random(0)
    drawn = [rng.lognormvariate(3, 1) for _ in range(997)]
    total, ended, early = 100_000, 0, 0

    def count(found: list[Ended]) -> None:
        nonlocal ended, early
        ended += len(found)
        if not early and ended > total / 10:
            early = resident()

    def seconds(item: InputFile) -> float:
        return drawn[int(item.path.stem) % 997]

    cluster = SimulatedCluster(32, 16, seconds)
    driver = simulate(cluster, map(recording, range(total)), count, weight=seconds)
    assert ended == total and driver.scheduler.finished
    assert resident() - early < 16e6
    assert cluster.busy_seconds / (cluster.now * 32 * 16) > 0.95
