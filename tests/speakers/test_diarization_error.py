"""The measure itself, on cases made by hand."""

import pytest

pytest.importorskip("scipy", reason="the extra `diarize` brings scipy")

from bench.diarization_error import best_mapping, diarization_error
from slimwhisper.speakers.turns import Turn

TRUTH = [Turn(0, 10, "a"), Turn(10, 20, "b")]


def parts(found: list[Turn], truth: list[Turn] = TRUTH, collar: float = 0.0) -> list[float]:
    e = diarization_error(truth, found, collar)
    return [round(x, 6) for x in (e.speech, e.missed, e.false_alarm, e.confusion)]


def test_hand_made_cases() -> None:
    assert parts([Turn(0, 10, "x"), Turn(10, 20, "y")]) == [20, 0, 0, 0]
    assert parts([Turn(0, 10, "y"), Turn(10, 20, "x")]) == [20, 0, 0, 0], "names do not matter"
    assert parts([]) == [20, 20, 0, 0]
    assert parts([Turn(0, 20, "x")]) == [20, 0, 0, 10]
    assert parts([Turn(0, 12, "x"), Turn(12, 20, "y")]) == [20, 0, 0, 2]
    assert parts([Turn(2, 10, "x"), Turn(10, 25, "y")]) == [20, 2, 5, 0]
    assert parts([Turn(0, 10, "x"), Turn(5, 20, "y")]) == [20, 0, 5, 0], "two where one speaks"


def test_the_collar_forgives_borders_only() -> None:
    found = [Turn(0, 10.2, "x"), Turn(10.2, 20.2, "y")]
    assert parts(found, collar=0.25) == [19, 0, 0, 0]
    assert parts([Turn(0, 11, "x"), Turn(11, 20, "y")], collar=0.25) == [19, 0, 0, 0.75]


def test_overlap_counts_twice() -> None:
    truth = [Turn(0, 10, "a"), Turn(5, 10, "b")]
    assert parts([Turn(0, 10, "x")], truth) == [15, 5, 0, 0]
    assert parts([Turn(0, 5, "x"), Turn(5, 10, "y")], truth) == [15, 5, 0, 0]


def test_rate_and_mapping() -> None:
    assert diarization_error(TRUTH, [Turn(0, 20, "x")], 0).rate == 0.5
    assert diarization_error([], [], 0).rate == 0
    found = [Turn(0, 6, "x"), Turn(6, 10, "y"), Turn(10, 20, "x")]
    assert best_mapping(TRUTH, found) == {"x": "b", "y": "a"}
    assert diarization_error(TRUTH, found, 0, {"x": "a", "y": "b"}).confusion == 14
