"""Corrections of a transcript: words' times, undo, many at once, and what is written."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.app.page.edits import STEPS, TYPED, ConflictError, Edits, with_text
from slimwhisper.types import Segment, Transcript, Word
from tests.support.fuzz import examples

FIVE = (" five", " zero", " one", " four")  # at 10, 11.5, 13 and 14.5
WAS = "five zero one four"


def segment(*words: str, id: int = 0, start: float = 10.0) -> Segment:
    """A segment whose words take a second each, with pauses of half a second."""
    timed = [
        Word(word, start + 1.5 * i, start + 1.5 * i + 1, 0.5, "A") for i, word in enumerate(words)
    ]
    given = (start, start + 1.5 * len(words) - 0.5, "".join(words), [1, 2], 0.0, -0.1, 1.0, 0.0)
    return Segment(id, 0, *given, timed, "A", ("repeats",))


def spans(changed: Segment) -> list[tuple[str, float, float]]:
    assert changed.words is not None
    return [(word.word, word.start, word.end) for word in changed.words]


@examples(100)
@given(st.lists(st.sampled_from([*FIVE, " ab", "-cdef", " x"]), max_size=7).map("".join))
def test_words_keep_their_times(text: str) -> None:
    """Joined, the new words are the text; those that were there are as they were, in order."""
    before = segment(*FIVE)
    after = with_text(before, text)
    assert after.text == text and after.tokens == [] and after.flags == ()
    assert after.words is not None and "".join(word.word for word in after.words) == text
    for each in after.words:
        assert each.probability == TYPED or each in (before.words or [])
        assert each.speaker == "A"
    times = [time for _, start, end in spans(after) for time in (start, end)]
    assert all(one <= other for one, other in pairwise([10.0, *times, 15.5]))


def test_changed_words_share_the_time_of_those_before() -> None:
    for text, expected in (
        *((" five zero one four", {}), (" five one four", {}), ("", {})),
        (" five hero one four", {" hero": (11.5, 12.5)}),
        (" five or hero one four", {" or": (11.5, 11.83), " hero": (11.83, 12.5)}),
        (" five ab cdef four", {" ab": (11.5, 12.5), " cdef": (13.0, 14.0)}),
        (" five abc four", {" abc": (11.5, 14.0)}),
        (" five and zero one four", {" and": (11.0, 11.5)}),
        (" a five zero one four", {" a": (10.0, 10.0)}),
        (" five zero one four b", {" b": (15.5, 15.5)}),
        (" five zero two three four", {" two": (13.0, 13.38), " three": (13.38, 14.0)}),
    ):
        changed = {word: span for word, *span in spans(with_text(segment(*FIVE), text))}
        new = {word: tuple(changed[word]) for word in changed.keys() - set(FIVE)}
        assert new.keys() == expected.keys()
        assert all(new[word] == pytest.approx(span) for word, span in expected.items()), text


def test_scripts_without_spaces() -> None:
    before = segment("今日", "は", "晴れ", "です")
    after = with_text(before, "今日は雨です")
    assert spans(after) == [
        *(("今日", 10.0, 11.0), ("は", 11.5, 12.5), ("雨", 13.0, 14.0), ("です", 14.5, 15.5))
    ]
    assert [word for word, *_ in spans(with_text(before, "今日は大雪です"))][2:4] == ["大", "雪"]


def test_words_that_hold_together_and_none() -> None:
    """Whisper's "well" and "-known" have no space between them."""
    before = segment(" a", " well", "-known", " fact")
    assert with_text(before, " a well-known fact").words == before.words
    changed = spans(with_text(before, " a well-knows fact"))
    assert changed[1] == (" well-knows", 11.5, 14.0) and changed[2] == (" fact", 14.5, 15.5)
    assert with_text(replace(segment(" a"), words=None), " b").words is None
    empty = with_text(segment(*FIVE), "")
    assert empty.words == [] and spans(with_text(empty, " x")) == [(" x", 10.0, 15.5)]
    lines = [replace(segment(word), text=word) for word in ("one", "two")]
    edits = Edits(Transcript("one\ntwo", lines, "en"))  # of a script
    edits.correct({1: ("two", "three")})
    assert edits.transcript.text == "one\nthree"


def made(count: int = 3) -> Edits:
    segments = [segment(*FIVE, id=i, start=10.0 * i) for i in range(count)]
    return Edits(Transcript("".join(one.text for one in segments), segments, "en"))


def test_changes_are_undone_and_made_again() -> None:
    edits = made()
    first = edits.transcript
    assert edits.file_transcript is first
    assert edits.correct({0: (WAS, WAS)}) == {} and edits.revision == 0
    edits.correct({0: (WAS, "nine"), 2: (WAS, "")})
    edits.approve(1)
    assert set(edits.rename("A", "Ann")) == {0, 1, 2} and edits.revision == 3
    now = edits.transcript
    assert now.text == f" nine{first.segments[1].text}" and len(now.segments) == 3
    assert {s.speaker for s in now.segments} == {"Ann"} and now.segments[1].flags == ()
    assert [s.id for s in edits.file_transcript.segments] == [0, 1], "not what was emptied"
    states = [now]
    for _ in range(3):
        edits.undo(edits.revision)
        states.append(edits.transcript)
    assert edits.transcript is first and edits.file_transcript is first
    for state in reversed(states[:-1]):
        edits.redo(edits.revision)
        assert edits.transcript == state
    edits.correct({2: ("", "six")})
    assert edits.transcript.segments[2].text == " six", "what was emptied gets its space back"
    edits.undo(edits.revision)
    edits.rename("Ann", "Bob")
    with pytest.raises(ConflictError):
        edits.redo(edits.revision)
    for i in range(STEPS + 5):
        edits.rename(edits.transcript.segments[0].speaker or "", f"S{i}")
    for _ in range(STEPS):
        edits.undo(edits.revision)
    assert edits.transcript.segments[0].speaker == "S4", "so many steps are kept"
    with pytest.raises(ConflictError):
        edits.undo(edits.revision)


def test_many_threads_lose_nothing() -> None:
    edits = made(40)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: edits.correct({i: (WAS, f"number {i}")}), range(40)))
    assert edits.transcript.text == "".join(f" number {i}" for i in range(40))
    assert edits.revision == 40
