"""How many tokens are drafted, by what steps take and how often guesses are right."""

import numpy as np
import pytest

from slimwhisper.engine.drafting import (
    TIMED_FIRST,
    DraftLengthController,
    expected_tokens,
)


def chosen_lengths(seconds: dict[int, float], rate: float, steps: int = 200) -> list[int]:
    """The lengths chosen for one text, whose steps take so long by the length of the draft."""
    lengths, chosen = DraftLengthController(0.1, timed=True), []
    for _ in range(steps):
        length = lengths.choose(np.array([rate]), 7)
        lengths.record(1, length, seconds[length])
        chosen.append(length)
    return chosen


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
def test_it_finds_the_best_length(rate: float) -> None:
    """From the measured times of steps alone."""
    seconds = {k: 1 + 0.3 * k for k in (0, 1, 2, 3, 5, 7)}
    best = max(seconds, key=lambda k: expected_tokens(np.array([rate]), k) / seconds[k])
    chosen = chosen_lengths(seconds, rate)
    assert chosen[: len(TIMED_FIRST)] == list(TIMED_FIRST)
    speeds = [expected_tokens(np.array([rate]), k) / seconds[k] for k in chosen[50:]]
    ideal = expected_tokens(np.array([rate]), best) / seconds[best]
    assert np.mean(speeds) > 0.95 * ideal


def test_one_slow_step_is_not_held_against_a_length_for_ever() -> None:
    lengths, rates, chosen = DraftLengthController(0.1, timed=True), np.array([0.9]), []
    for step in range(800):
        length = lengths.choose(rates, 3)
        slow = 5 if length == 3 and step < 10 else 1  # other work on the machine
        lengths.record(1, length, slow * (1 + 0.05 * length))
        chosen.append(length)
    assert 3 not in chosen[20:40]
    assert chosen[-50:].count(3) > 40


def test_drafts_that_do_not_pay() -> None:
    chosen = chosen_lengths({k: 1.0 + k for k in (0, 1, 2, 3, 5, 7)}, 0.8)
    assert chosen[20:].count(0) > 0.8 * len(chosen[20:])


def test_without_times_the_cost_decides() -> None:
    cheap, dear = DraftLengthController(0.01, timed=False), DraftLengthController(2.0, timed=False)
    assert cheap.choose(np.array([0.9]), 7) == 7
    assert cheap.choose(np.array([0.9]), 3) == 2, "as many as there is room for"
    assert dear.choose(np.array([0.9]), 7) == 0
    assert cheap.choose(np.array([0.9] * 7), 7) == 7
