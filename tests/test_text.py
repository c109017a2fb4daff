"""Names that come from outside, in messages."""

import pytest

from slimwhisper.cli import main
from slimwhisper.text import escape_line, parse_size


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("Träume – 夢.wav", "Träume – 夢.wav"),
        ("a\x1b[31m\x07\r\nb", r"a\x1b[31m\x07\r\nb"),
        ("a\u2028\x85", r"a\u2028\x85"),
        ("gpj\u202evaw.exe", r"gpj\u202evaw.exe"),
        ("\udcff.wav", r"\udcff.wav"),
    ],
)
def test_what_could_mislead_a_terminal_is_escaped(text: str, escaped: str) -> None:
    assert escape_line(text) == escaped


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.wav", "--x\x1b[31m\u202e"],
        ["a.wav", "--task", "\x1b[31m\u202e"],
        ["a\x1b[31m\u202e.wav"],
    ],
)
def test_arguments_are_escaped(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["transcribe", *arguments])
    except SystemExit as ended:  # argparse's own errors
        status = int(ended.code or 0)
    said = capsys.readouterr()
    assert status != 0 and r"\x1b[31m\u202e" in said.err
    assert not {"\x1b", "\u202e"} & set(said.out + said.err)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GB", 6 * 10**9),
        ("1.5 MB", 1_500_000),
        ("512kB", 512_000),
        ("77", 77),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "6 gigabytes", "6GiB", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="such as 512MB or 6GB"):
        parse_size(text)
