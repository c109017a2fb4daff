"""How many tokens are drafted, by what steps take and how often guesses are right."""

import numpy as np
import pytest

from slimwhisper.engine.drafting.pace import TRIED, Pace, gain


def settled(seconds: dict[int, float], rate: float, steps: int = 200) -> list[int]:
    """The lengths chosen for one text, whose steps take so long by the length of the draft."""
    pace, chosen = Pace(0.1, timed=True), []
    for _ in range(steps):
        length = pace.choose(np.array([rate]), 7)
        pace.note(1, length, seconds[length])
        chosen.append(length)
    return chosen


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
def test_it_finds_the_best_length(rate: float) -> None:
    """Though nobody tells it what a step takes."""
    seconds = {k: 1 + 0.3 * k for k in (0, 1, 2, 3, 5, 7)}
    best = max(seconds, key=lambda k: gain(np.array([rate]), k) / seconds[k])
    chosen = settled(seconds, rate)
    assert chosen[: len(TRIED)] == list(TRIED)
    speeds = [gain(np.array([rate]), k) / seconds[k] for k in chosen[50:]]
    ideal = gain(np.array([rate]), best) / seconds[best]
    assert np.mean(speeds) > 0.95 * ideal


def test_one_slow_step_is_not_held_against_a_length_for_ever() -> None:
    pace, hopes, chosen = Pace(0.1, timed=True), np.array([0.9]), []
    for step in range(800):
        length = pace.choose(hopes, 3)
        slow = 5 if length == 3 and step < 10 else 1  # other work on the machine
        pace.note(1, length, slow * (1 + 0.05 * length))
        chosen.append(length)
    assert 3 not in chosen[20:40]
    assert chosen[-50:].count(3) > 40


def test_drafts_that_do_not_pay() -> None:
    chosen = settled({k: 1.0 + k for k in (0, 1, 2, 3, 5, 7)}, 0.8)
    assert chosen[20:].count(0) > 0.8 * len(chosen[20:])


def test_without_times_the_cost_decides() -> None:
    cheap, dear = Pace(0.01, timed=False), Pace(2.0, timed=False)
    assert cheap.choose(np.array([0.9]), 7) == 7
    assert cheap.choose(np.array([0.9]), 4) == 3, "as many as there is room for"
    assert dear.choose(np.array([0.9]), 7) == 0
