"""Outputs are whole or absent, and what a killed run left is cleared away."""

import json
import os
from pathlib import Path

import pytest

from slimwhisper.errors import AudioError, OptionError, OutputError
from slimwhisper.jobs.inputs.inputs import InputFile
from slimwhisper.jobs.results.files import (
    Sweeper,
    check_names,
    output_paths,
    outputs_exist,
    prepare_output_dir,
    write_outputs,
)
from slimwhisper.outputs.formats import FORMATS, segment_line
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


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(tmp_path: Path, name: str) -> None:
    recording = InputFile(Path("in.wav"), tmp_path / "in")
    assert write_outputs(TRANSCRIPT, recording, [name]) == [tmp_path / f"in.{name}"]
    text = (tmp_path / f"in.{name}").read_text(encoding="utf-8")
    expected = {
        "txt": "hello\nwörld\n",
        "vtt": "WEBVTT\n\n00:00.000 --> 00:01.500\nhello\n\n01:01.250 --> 01:00:05.000\nwörld\n\n",
        "srt": "1\n00:00:00,000 --> 00:00:01,500\nhello\n\n"
        "2\n00:01:01,250 --> 01:00:05,000\nwörld\n\n",
        "lrc": "[la:en]\n[re:slimwhisper]\n"
        "[00:00.00]hello\n[00:01.50]\n[01:01.25]wörld\n[60:05.00]\n",
        "rttm": "",
        "tsv": "start\tend\ttext\n0\t1500\thello\n61250\t3605000\twörld\n",
    }
    if name == "ass":
        assert text.endswith(
            "Dialogue: 0,0:00:00.00,0:00:01.50,Default,,0,0,0,,hello\n"
            "Dialogue: 0,0:01:01.25,1:00:05.00,Default,,0,0,0,,wörld\n"
        )
    elif name == "json":
        assert json.loads(text) == TRANSCRIPT.as_dict()
    else:
        assert text == expected[name]


@pytest.mark.parametrize(
    ("layout", "subtitles"),
    [
        ({}, ["one two three"]),
        ({"max_words_per_line": 2}, ["one two", "three"]),
        ({"max_line_width": 8}, ["one two\nthree"]),
        ({"max_line_width": 8, "max_line_count": 1}, ["one two", "three"]),
        (
            {"highlight_words": True},
            ["<u>one</u> two three", "one <u>two</u> three", "one two <u>three</u>"],
        ),
    ],
)
def test_layout_of_subtitles(
    tmp_path: Path, layout: dict[str, object], subtitles: list[str]
) -> None:
    write_outputs(SPOKEN, InputFile(Path("in.wav"), tmp_path / "in"), ["srt"], layout)
    blocks = (tmp_path / "in.srt").read_text().rstrip("\n").split("\n\n")
    assert [block.split("\n", 2)[2] for block in blocks] == subtitles


def test_layout_needs_words() -> None:
    assert check_layout({}, False) == []
    assert check_layout({"highlight_words": True, "max_words_per_line": 3}, True) == []
    with pytest.raises(OptionError, match="--max_line_width requires --word_timestamps True"):
        check_layout({"max_line_width": 40}, False)
    with pytest.raises(OptionError, match="--max_line_count -1 is not a positive number"):
        check_layout({"max_line_count": -1}, True)
    with pytest.raises(OptionError, match="--max_line_width"):
        check_layout({"sentences": True, "max_line_width": 30}, True)
    (warning,) = check_layout({"max_line_count": 2}, True)
    assert warning == "--max_line_count has no effect without --max_line_width"
    (warning,) = check_layout({"max_words_per_line": 2, "max_line_width": 40}, True)
    assert warning == "--max_words_per_line has no effect with --max_line_width"


def test_segment_line() -> None:
    assert segment_line(TRANSCRIPT.segments[1]) == "[01:01.250 --> 01:00:05.000]  wörld"


def test_a_failed_write_leaves_the_old_output_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = InputFile(Path("in.wav"), tmp_path / "in")
    (tmp_path / "in.txt").write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slimwhisper.jobs.results.files.write_transcript", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_outputs(TRANSCRIPT, recording, ["txt"])
    assert (tmp_path / "in.txt").read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["in.txt"]


def test_an_output_never_replaces_its_input(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("audio, it says")
    with pytest.raises(OutputError, match="is the input itself"):
        write_outputs(TRANSCRIPT, InputFile(source, tmp_path / "in"), ["txt"])
    assert source.read_text() == "audio, it says"


def test_an_output_that_is_a_link_in_a_circle_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "in.txt").symlink_to("in.txt")
    write_outputs(TRANSCRIPT, InputFile(Path("in.wav"), tmp_path / "in"), ["txt"])
    assert (tmp_path / "in.txt").read_text(encoding="utf-8") == "hello\nwörld\n"


def test_outputs_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = InputFile(Path("in.wav"), tmp_path / "in")
    assert not outputs_exist(file, ["txt", "srt"])
    write_outputs(TRANSCRIPT, file, ["txt"])
    assert outputs_exist(file, ["txt"]) and not outputs_exist(file, ["txt", "srt"])

    def closed(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", closed)
    assert not outputs_exist(file, ["txt"])


def test_a_name_too_long_for_its_suffix(tmp_path: Path) -> None:
    recording = InputFile(Path("in.wav"), tmp_path / ("n" * 253))
    with pytest.raises(OutputError, match="File name too long"):
        write_outputs(TRANSCRIPT, recording, ["json"])
    assert not list(tmp_path.iterdir())


def test_names_of_outputs_are_checked_before_a_recording_is_read(tmp_path: Path) -> None:
    long = tmp_path / f"{250 * 'n'}.wav"
    recording = InputFile(long, tmp_path / long.stem)
    check_names(recording, ["txt"], 255)
    message = r"wav: its outputs would have names of 255 bytes, and 254 are possible; give it a sh"
    with pytest.raises(AudioError, match=message):
        check_names(recording, ["srt", "json"], 254)


def test_an_output_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write there") as caught:
        prepare_output_dir(tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)


def test_output_paths_keep_dots(tmp_path: Path) -> None:
    recording = InputFile(Path("talk.2024.wav"), tmp_path / "talk.2024")
    assert output_paths(recording, ["txt", "json"]) == [
        tmp_path / "talk.2024.txt",
        tmp_path / "talk.2024.json",
    ]


def test_parts_of_a_killed_run_are_swept(tmp_path: Path) -> None:
    old, new, other = (tmp_path / n for n in (".slimwhisper-1.part", ".slimwhisper-2.part", ".x"))
    for path in (old, new, other):
        path.write_text("half")
        os.utime(path, (1, 1))
    os.utime(new, (4e9, 4e9))  # newer than this run
    sweeper = Sweeper()
    sweeper.sweep(tmp_path / "not yet there")
    sweeper.sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])
    old.write_text("half")
    os.utime(old, (1, 1))
    sweeper.sweep(tmp_path)
    assert old.exists()  # each folder is looked at once
