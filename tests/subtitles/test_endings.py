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


def test_units_are_the_text() -> None:
    text = " Hello, (big) world.「はい。」と言った"
    assert "".join(units(text)) == text
    assert list(units(text))[:3] == [" Hello,", " (big)", " world."]
    assert [u for u in units(text) if u[0] in "」。"] == []


def lines(text: str, language: str = "en") -> list[str]:
    pieces = list(units(text))
    starts = [*break_lines(pieces, language), len(pieces)]
    return ["".join(pieces[a:b]).strip() for a, b in pairwise(starts)]


def test_lines_break_where_a_reader_pauses() -> None:
    assert lines("Short enough for one line") == ["Short enough for one line"]
    assert lines("When the work was done at last, they all went home together") == [
        "When the work was done at last,",
        "they all went home together",
    ]
    assert lines("We talked about the memory of a decoder that is much smaller") == [
        "We talked about the memory",
        "of a decoder that is much smaller",
    ]
    # at the model's space; before a phrase; not within katakana
    for text, second in (
        ("別サイトとして管理運営をしている 表示されます", "表示されます"),
        ("同一度メインでディレクトリーごとに管理運営をしている", "ごとに管理運営をしている"),
        ("これからあたらしいコンテンツマネジメントシステム", "コンテンツマネジメントシステム"),
    ):
        assert lines(text, "ja")[1] == second
    assert lines("今天天气怎么样我们想一起去公园散步然后回家吃饭", "zh")[1].startswith("去公园")
    assert [len(line) for line in lines("word " * 30)] == [39, 39, 39, 29]


def test_columns() -> None:
    assert columns("abc") == columns("äbç") == columns("a\u0308bç") == 3
    assert columns("日本") == columns("ＡＢ") == 4
    assert columns("नमस्ते") == 4  # two marks have no width of their own
