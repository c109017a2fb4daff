"""Words get speakers, and segments are cut where the speaker changes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from slimwhisper.speakers.assign import MAX_DISTANCE, Timeline, assign_speakers
from slimwhisper.speakers.turns import Turn, by_first_speech
from slimwhisper.types import Segment, Word

STAMP = 1000  # and above: timestamps


def spell(tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Two tokens for each word of four letters, as " abc" -> " a", "bc"; stamps have no text."""
    return [("" if t >= STAMP else " w" if t % 2 == 0 else f"{t:02}"[-2:], [t]) for t in tokens]


def segment(start: float, count: int, first: int = 0) -> Segment:
    """`count` words of half a second, with two tokens each, between two timestamps."""
    words = [
        Word(f" w{2 * i + 1:02}"[:4], start + 0.5 * k, start + 0.5 * k + 0.4, 0.9)
        for k, i in enumerate(range(first, first + count))
    ]
    tokens = [STAMP, *(t for i in range(first, first + count) for t in (2 * i, 2 * i + 1))]
    text = "".join(word.word for word in words)
    end = start + 0.5 * count
    return Segment(7, 0, start, end, text, [*tokens, STAMP + 1], 0.0, -0.1, 1.0, 0.0, words)


def test_a_segment_is_cut_where_the_speaker_changes() -> None:
    """Pieces are numbered, and keep what the segment has."""
    turns = [Turn(0, 1.45, "a"), Turn(1.45, 3, "b"), Turn(3, 9, "a")]
    made = replace(segment(0, 5), flags=("improbable",), seek=300)
    whole = replace(segment(3, 2), flags=("repeats",))
    first, second, third = assign_speakers([made, whole], turns, spell)
    assert [(s.id, s.speaker) for s in (first, second, third)] == [(0, "a"), (1, "b"), (2, "a")]
    assert (first.start, first.end, second.start, second.end) == (0, 1.4, 1.5, 2.5)
    assert (first.text, second.text) == (" w01 w03 w05", " w07 w09")
    assert first.tokens == [STAMP, 0, 1, 2, 3, 4, 5]
    assert second.tokens == [6, 7, 8, 9, STAMP + 1]
    assert [w.speaker for w in first.words or ()] == ["a"] * 3
    assert {(s.flags, s.seek) for s in (first, second)} == {(("improbable",), 300)}
    assert replace(third, id=7, words=whole.words, speaker=None) == whole


def test_words_and_segments_without_a_speaker() -> None:
    far = segment(100, 2)
    result = assign_speakers([far, segment(0, 3)], [Turn(0.6, 0.9, "a")], spell)
    assert [s.speaker for s in result] == [None, "a"]
    assert result[0] == replace(far, id=0)
    assert assign_speakers([segment(0, 2)], [], spell)[0].speaker is None
    turns = [Turn(1.0, 1.4, "a"), Turn(3.5, 4.0, "b")]
    (first, second) = assign_speakers([segment(0, 8)], turns, spell)
    assert [w.speaker for w in first.words] == ["a"] * 6  # the first two words come before any turn
    assert second.speaker == "b"
    silent = Segment(3, 0, 1.0, 1.0, "", [], 0.0, -0.1, 1.0, 0.9, [])
    assert assign_speakers([silent], [Turn(0, 9, "a")], spell) == [replace(silent, id=0)]


def test_borders_and_ties() -> None:
    """Of two that touch a word without length, or share as much of it: the one that began first."""
    found = Timeline([Turn(2, 4, "b"), Turn(0, 2, "a"), Turn(8, 20, "long"), Turn(9, 9.2, "short")])
    assert (found(2.0, 2.0), found(9.0, 9.2)) == ("a", "long")
    assert found(4.0 + MAX_DISTANCE, 5) is None
    assert found(4.0 + MAX_DISTANCE - 0.01, 5) == "b"


def test_as_a_search_through_all_turns() -> None:
    rng = np.random.default_rng(3)
    starts = rng.uniform(0, 60, 80)
    turns = [Turn(float(s), float(s + rng.uniform(0.1, 6)), f"s{rng.integers(4)}") for s in starts]
    look_up = Timeline(turns)
    for start in rng.uniform(-2, 70, 200):
        end = float(start + rng.uniform(0.01, 2))
        shares = {
            name: sum(
                max(0.0, min(end, t.end) - max(start, t.start)) for t in turns if t.speaker == name
            )
            for name in {t.speaker for t in turns}
        }
        near = min(max(t.start - end, start - t.end) for t in turns)
        result = look_up(float(start), end)
        if max(shares.values()) > 0:
            assert shares[result] == pytest.approx(max(shares.values()))
        else:
            assert (result is None) == (near >= MAX_DISTANCE)


def test_speakers_are_numbered_by_first_speech() -> None:
    turns = [Turn(5, 6, "x"), Turn(0, 1, "q"), Turn(2, 3, "Ann"), Turn(7, 8, "q")]
    names = [t.speaker for t in by_first_speech(turns, keep=["Ann"])]
    assert names == ["SPEAKER_00", "Ann", "SPEAKER_01", "SPEAKER_00"]
