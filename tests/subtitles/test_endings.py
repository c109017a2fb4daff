"""Where sentences end, and where lines may."""

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from slimwhisper.subtitles.cues import break_lines, columns, ends_sentence, may_break, units

TABLES = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("language", "text"), TABLES["ends"])
def test_ends_of_sentences(language: str, text: str) -> None:
    plain = text.replace("|", "")
    result = plain
    for place in range(len(plain) - 1, 0, -1):  # between words, or anywhere without spaces
        before, after = plain[:place], plain[place:]
        at_word = after[0] == " " or language in ("ja", "zh")
        if at_word and ends_sentence(before, after, language):
            result = f"{result[:place]}|{result[place:]}"
    assert result == text
    assert ends_sentence(plain + ".", "", language)


@pytest.mark.parametrize(("before", "after", "allowed"), TABLES["breaks"])
def test_where_a_line_may_end(before: str, after: str, allowed: bool) -> None:
    assert may_break(before, after) == allowed


@pytest.mark.parametrize(("language", "text"), TABLES["lines"])
def test_lines_break_where_a_reader_pauses(language: str, text: str) -> None:
    pieces = list(units(text.replace("|", "")))
    starts = [*break_lines(pieces, language), len(pieces)]
    assert "|".join("".join(pieces[a:b]) for a, b in pairwise(starts)) == text


def test_columns() -> None:
    assert columns("abc") == columns("äbç") == columns("a\u0308bç") == 3
    assert columns("日本") == columns("ＡＢ") == 4
    assert columns("नमस्ते") == 4  # two marks have no width of their own
