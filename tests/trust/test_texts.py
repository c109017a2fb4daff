"""Phrases, pace, loops and scripts: what is found, and what is nearly so."""

import tomllib
from pathlib import Path

import pytest

from slimwhisper.trust.flags import (
    TABLE,
    is_common,
    is_credit,
    is_foreign,
    least_seconds,
    looping,
)

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))


def test_every_phrase_of_the_tables_is_found() -> None:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for language, phrases in table["credits"].items():
        for phrase in phrases:
            assert is_credit(f" {phrase}."), (language, phrase)
    for language, phrases in table["common"].items():
        assert len(set(phrases)) == len(phrases), language
        for phrase in phrases:
            assert is_common(f" {phrase}!") and is_common(f"{phrase}. {phrase}."), phrase


@pytest.mark.parametrize(("text", "credit"), TEXTS["credits"])
def test_credits_with_names_and_near_misses(text: str, credit: bool) -> None:
    assert is_credit(text) == credit and not is_common(text)


@pytest.mark.parametrize(("text", "letters", "pace"), TEXTS["paces"])
def test_the_least_time_of_a_text(text: str, letters: int, pace: int) -> None:
    assert least_seconds(text) == pytest.approx(letters / pace)


@pytest.mark.parametrize(("text", "loop"), TEXTS["loops"])
def test_what_is_a_loop(text: str, loop: bool) -> None:
    assert looping([text]) == [loop]


@pytest.mark.parametrize(("text", "language", "foreign"), TEXTS["scripts"])
def test_scripts(text: str, language: str, foreign: bool) -> None:
    assert is_foreign(text, language) == foreign
