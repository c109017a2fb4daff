"""Phrases, pace, loops and scripts: what is found, and what is nearly so."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.trust import flags
from tests.support.fuzz import examples

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))


def test_every_phrase_of_the_tables_is_found() -> None:
    table = tomllib.loads(flags.TABLE.read_text(encoding="utf-8"))
    for language, phrases in table["credits"].items():
        for phrase in phrases:
            assert flags.is_credit(f" {phrase}."), (language, phrase)
    for language, phrases in table["common"].items():
        assert len(set(phrases)) == len(phrases), language
        for phrase in phrases:
            for text in (f" {phrase}!", f"{phrase}. {phrase}."):
                assert flags.is_common(text), text


@pytest.mark.parametrize(("text", "credit"), TEXTS["credits"])
def test_credits_with_names_and_near_misses(text: str, credit: bool) -> None:
    assert flags.is_credit(text) == credit and not flags.is_common(text)


@pytest.mark.parametrize(("text", "letters", "pace"), TEXTS["paces"])
def test_the_least_time_of_a_text(text: str, letters: int, pace: int) -> None:
    assert flags.least_seconds(text) == pytest.approx(letters / pace)


@pytest.mark.parametrize(("text", "loop"), TEXTS["loops"])
def test_what_is_a_loop(text: str, loop: bool) -> None:
    assert flags.looping([text]) == [loop]


@pytest.mark.parametrize(("text", "language", "foreign"), TEXTS["scripts"])
def test_scripts(text: str, language: str, foreign: bool) -> None:
    assert flags.is_foreign(text, language) == foreign


def slow_loops(tokens: list[str]) -> set[int]:
    """The indices inside any loop, by trying every start, turn and number of turns."""
    inside: set[int] = set()
    for start in range(len(tokens)):
        for period in range(1, len(tokens)):
            turn, times = tokens[start : start + period], 1
            while tokens[start + times * period : start + (times + 1) * period] == turn:
                times += 1
            if (times >= 4 and times * period >= 8) or (times >= 3 and period >= 6):
                inside.update(range(start, start + times * period))
    return inside


TURN = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8)


@examples(100)
@given(st.lists(st.sampled_from("abc"), max_size=25), TURN, st.integers(1, 6), st.integers(0, 25))
def test_loops_are_those_of_a_slow_search(
    words: list[str], turn: list[str], times: int, at: int
) -> None:
    words[at:at] = turn * times
    slow, result = slow_loops(words), list(flags.loops(words))
    covered = {i for start, stop in result for i in range(start, stop)}
    assert slow <= covered
    for start, stop in result:  # a stretch may end within a turn: nothing more is covered
        assert any(
            words[start : stop - period] == words[start + period : stop]
            for period in range(1, 1 + (stop - start) // 3)
        )


def test_segments_that_repeat_one_another() -> None:
    said = "Where were you?"
    assert flags.looping([said, *["Thank you."] * 4, said]) == [False, *[True] * 4, False]
    assert flags.looping(["Yes.", "No.", "Yes.", "No.", "Yes.", "No.", "Maybe."]) == [False] * 7
    assert flags.looping(["", "", said]) == [False] * 3


def test_tokens() -> None:
    assert flags.tokens_of("I'm HERE — „so“ 3.5!") == ("im", "here", "so", "3", "5")
    assert flags.tokens_of("東京2020 ok") == ("東", "京", "2020", "ok")
    assert flags.tokens_of("ﬁne Ｏ") == ("fine", "o")
