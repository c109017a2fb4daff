"""Outputs are whole or absent, and what a killed run left is cleared away."""

import os
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.errors import AudioError, OptionError, OutputError
from slimwhisper.files import Fingerprint, InputFile, open_sink
from slimwhisper.jobs.results.writers import Files
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.outputs.layout import check_layout
from slimwhisper.types import Segment, Transcript, Word

TRANSCRIPT = Transcript(
    text=" hello wörld",
    segments=[
        Segment(0, 0, 0.0, 1.5, " hello", [1], 0.0, -0.5, 1.0, 0.1),
        Segment(1, 0, 61.25, 3605.0, " wörld", [2], 0.0, -0.5, 1.0, 0.1),
    ],
    language="en",
)
WORDS = [Word(" one", 0.0, 0.5, 0.9), Word(" two", 0.5, 1.0, 0.8), Word(" three", 1.0, 1.5, 0.7)]
SPOKEN = Transcript(
    text=" one two three",
    segments=[Segment(0, 0, 0.0, 1.5, " one two three", [1], 0.0, -0.5, 1.0, 0.1, WORDS)],
    language="en",
)


def recording(path: Path = Path("in.wav"), output: str = "in") -> InputFile:
    return InputFile(path, output, Fingerprint.of(path))


def files(folder: Path, *formats: str, **layout: Any) -> Files:
    return Files(open_sink(str(folder)), formats or ("txt",), layout)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("txt", "hello\nwörld\n"),
        ("vtt", "00:00.000 --> 00:01.500\nhello\n\n01:01.250 --> 01:00:05.000\nwörld\n\n"),
        ("srt", "\n2\n00:01:01,250 --> 01:00:05,000\nwörld\n\n"),
        ("lrc", "[00:00.00]hello\n[00:01.50]\n[01:01.25]wörld\n[60:05.00]\n"),
        ("rttm", ""),
        ("tsv", "start\tend\ttext\n0\t1500\thello\n61250\t3605000\twörld\n"),
        ("ass", "Dialogue: 0,0:01:01.25,1:00:05.00,Default,,0,0,0,,wörld\n"),
        ("json", '"language": "en"}'),
    ],
)
def test_every_format(tmp_path: Path, name: str, end: str) -> None:
    written = files(tmp_path, name).write(recording(output="b/talk.2024"), TRANSCRIPT)
    assert written == [f"{tmp_path}/b/talk.2024.{name}"]
    assert Path(written[0]).read_text(encoding="utf-8").endswith(end)
    assert name in FORMATS


def test_layout_of_subtitles(tmp_path: Path) -> None:
    for layout, subtitles in (
        ({}, ["one two three"]),
        ({"max_words_per_line": 2}, ["one two", "three"]),
        ({"max_line_width": 8}, ["one two\nthree"]),
        ({"max_line_width": 8, "max_line_count": 1}, ["one two", "three"]),
    ):
        files(tmp_path, "srt", **layout).write(recording(), SPOKEN)
        blocks = (tmp_path / "in.srt").read_text().rstrip("\n").split("\n\n")
        assert [block.split("\n", 2)[2] for block in blocks] == subtitles
    for layout in ({"max_line_count": 2}, {"max_words_per_line": 2, "max_line_width": 40}):
        assert len(check_layout(layout, True)) == 1, "has no effect"
    with pytest.raises(OptionError, match="--max_line_width requires --word_timestamps True"):
        check_layout({"max_line_width": 40}, False)
    with pytest.raises(OptionError, match="--max_line_count -1"):
        check_layout({"max_line_count": -1}, True)


def test_a_failed_write_leaves_the_old_output_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"in.txt: cannot be written \(No space.*free some space"):
        files(tmp_path).write(recording(), TRANSCRIPT)
    assert (tmp_path / "in.txt").read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["in.txt"]


def test_an_output_never_replaces_its_input(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("audio, it says")
    with pytest.raises(OutputError, match="overwrite the input"):
        files(tmp_path).write(recording(source), TRANSCRIPT)
    assert source.read_text() == "audio, it says"


def test_names_of_outputs_are_checked_before_a_recording_is_read(tmp_path: Path) -> None:
    named = recording(output=f"b/{250 * 'n'}")
    assert files(tmp_path, "json").check_name(named) is named
    error = files(tmp_path, "parts").check_name(named)
    assert isinstance(error, AudioError) and "256 bytes" in str(error)
    with pytest.raises(OutputError, match="File name too long"):
        files(tmp_path).write(recording(output="n" * 253), TRANSCRIPT)
