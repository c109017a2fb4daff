"""Lines and words of a script."""

from pathlib import Path

import pytest

from slimwhisper.errors import OptionError
from slimwhisper.forced_alignment.script import (
    MOST_MIB,
    as_lines,
    parse_script,
    read_script,
    words_of,
)

SRT = """1
00:00:01,000 --> 00:00:02,500
- <i>Where</i> is he?
- Gone.

2
00:01:00,000 --> 00:01:02,000 X1:100
42

"""
VTT = """WEBVTT - a title

NOTE not a cue

00:01.000 --> 00:02.500 align:start
<v Ann>Hello there

intro
00:05.000 --> 00:06.000
Bye &amp; thanks
"""
LRC = "[ar:Somebody]\n[00:12.00]First <00:12.50>line\n[00:15.20][01:15.20]Twice\n\n[00:18]\n"


def test_lines_of_every_kind() -> None:
    assert parse_script("One line \n\n  two\r\n") == {1: "One line ", 3: "  two"}
    assert parse_script(SRT, ".SRT") == {1: "- <i>Where</i> is he?\n- Gone.", 2: "42"}
    assert parse_script(SRT) == parse_script(SRT, ".srt") != parse_script(SRT, ".txt")
    assert parse_script(VTT, ".vtt") == {1: "Hello there", 2: "Bye & thanks"}
    assert parse_script(LRC, ".lrc") == {2: "First line", 3: "Twice"}


@pytest.mark.parametrize(
    "line",
    [
        "Hello, world!",
        "- <i>Where</i> is he?\n- Gone.",
        "  — dash first",
        "« Bonjour ! » dit-elle",
        "今日は。元気?",
        "{\\an8}<b>bold</b> end</i>",
        "price: 3 000 €",
        "mixed 日本 words",
    ],
)
def test_words_joined_are_the_line(line: str) -> None:
    words = words_of([line])
    assert "".join(w.text for w in words) == line
    assert all(w.key and w.line == 0 for w in words)
    assert not any(c in w.spoken for w in words for c in "<>{}")


def test_words_are_compared_without_case_and_punctuation() -> None:
    def keys(text: str) -> list[str]:
        return [w.key for w in words_of([text])]

    assert keys("“Straße”, it's — OK!") == ["strasse", "its", "ok"]
    assert keys("今日は") == ["今", "日", "は"]
    assert keys("R&amp;D &lt;don&#39;t&gt;") == ["rd", "dont"]
    assert keys("- ♪ -") == [] and keys("") == []


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "talk.srt"
    path.write_bytes(b"\xef\xbb\xbf" + SRT.encode())
    assert read_script(path) == parse_script(SRT, ".srt")
    assert as_lines(path) == list(parse_script(SRT, ".srt").values())
    for content, problem in (
        (b"\xff\xfe", "UTF-8"),
        (b" \n\n", "no text"),
        (b"a" * ((MOST_MIB << 20) + 1), "more than"),
    ):
        path.write_bytes(content)
        with pytest.raises(OptionError, match=f"talk.srt.*{problem}"):
            read_script(path)
    problems = {" \n": "is empty", "talk.srt": r"give Path\('talk", None: "NoneType", b"a": "bytes"}
    problems[tmp_path / "none.txt"] = r"none\.txt: cannot be read"
    problems[tmp_path / "talk.ASS"] = r"talk\.ASS: is neither text nor \.srt"
    for text, problem in problems.items():
        with pytest.raises(OptionError, match=problem):
            as_lines(text)  # type: ignore[arg-type]
    assert as_lines(["a", "b"]) == as_lines("a\nb") == ["a", "b"]
