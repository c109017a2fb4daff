"""Outputs are whole or absent, and what a killed run left is cleared away."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from slimwhisper.errors import AudioError, OutputError
from slimwhisper.files import Fingerprint, InputFile, open_sink
from slimwhisper.jobs.writers import Files
from slimwhisper.types import Segment, Transcript

TRANSCRIPT = Transcript(
    " hello", [Segment(0, 0, 0.0, 1.5, " hello", [1], 0.0, -0.5, 1.0, 0.1)], "en"
)


def recording(path: Path = Path("in.wav"), output: str = "in") -> InputFile:
    return InputFile(path, output, Fingerprint.of(path))


def files(folder: Path, *formats: str) -> Files:
    return Files(open_sink(str(folder)), formats or ("txt",), {})


def test_a_failed_write_leaves_the_old_output_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("before")

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
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
