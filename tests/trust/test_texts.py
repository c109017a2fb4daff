"""Phrases, pace and scripts: what is found, and what is nearly so."""

import tomllib
from pathlib import Path

import pytest

from slimwhisper.trust.flags import TABLE, is_common, is_credit, is_foreign, least_seconds

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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("abc def", 6 / 30),
        ("2024", 4 / 10),
        ("你好世界", 4 / 12),
        ("안녕", 2 / 12),
        ("Привет", 6 / 30),
        ("สวัสดี", 4 / 30),  # its vowel signs are no letters
    ],
)
def test_the_least_time_of_a_text(text: str, seconds: float) -> None:
    assert least_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "language", "foreign"), TEXTS["scripts"])
def test_scripts(text: str, language: str, foreign: bool) -> None:
    assert is_foreign(text, language) == foreign
