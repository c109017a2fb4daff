"""Lines and words of a script."""

import tomllib
from pathlib import Path

import pytest

from slimwhisper.errors import OptionError
from slimwhisper.forced_alignment import script
from slimwhisper.forced_alignment.script import as_lines, parse_script, read_script, words_of

SCRIPTS = tomllib.loads(Path(__file__).with_name("scripts.toml").read_text(encoding="utf-8"))
SRT, VTT, LRC = (SCRIPTS[kind] for kind in ("srt", "vtt", "lrc"))


def test_lines_of_every_kind() -> None:
    assert parse_script("One line \n\n  two\r\n") == {1: "One line ", 3: "  two"}
    assert parse_script(SRT, ".SRT") == {1: "- <i>Where</i> is he?\n- Gone.", 2: "42"}
    assert parse_script(SRT) == parse_script(SRT, ".srt") != parse_script(SRT, ".txt")
    assert parse_script(VTT, ".vtt") == {1: "Hello there", 2: "Bye & thanks"}
    assert parse_script(LRC, ".lrc") == {2: "First line", 3: "Twice"}


@pytest.mark.parametrize("line", SCRIPTS["lines"])
def test_words_joined_are_the_line(line: str) -> None:
    words = words_of([line])
    assert "".join(w.text for w in words) == line
    assert all(w.key and w.line == 0 for w in words)
    assert not any(c in w.spoken for w in words for c in "<>{}")


@pytest.mark.parametrize(("text", "keys"), SCRIPTS["keys"])
def test_words_are_compared_without_case_and_punctuation(text: str, keys: list[str]) -> None:
    assert [w.key for w in words_of([text])] == keys


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "talk.srt"
    path.write_bytes(b"\xef\xbb\xbf" + SRT.encode())
    assert read_script(path) == parse_script(SRT, ".srt")
    assert as_lines(path) == list(parse_script(SRT, ".srt").values())
    for content, problem in (
        (b"\xff\xfe", "UTF-8"),
        (b" \n\n", "no text"),
        (b"a" * ((script.MOST_MIB << 20) + 1), "more than"),
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
