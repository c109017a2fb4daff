"""Where `slimwhisper convert` writes: whole or not at all, and nothing of yours is lost."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.commands.conversion import convert as command
from slimwhisper.commands.conversion.convert import convert
from slimwhisper.errors import OptionError, OutputError
from tests.support.checkpoints import assert_equal
from tests.support.command import Run
from tests.support.conversion import STATE, refused


def test_an_existing_output_is_kept(
    openai_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.pt"
    out.write_text("mine")
    run = Run(capsys, "convert", str(openai_file), str(out))
    assert run.status == 1 and run.err.count("\n") == 1
    assert "exists; give another place, or --overwrite" in run.err
    assert out.read_text() == "mine"
    assert Run(capsys, "convert", str(openai_file), str(out), "--overwrite").status == 0
    assert_equal(load_checkpoint(out).state, STATE)


def test_a_folder_is_overwritten_only_if_it_is_a_models(openai_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    out.mkdir()
    convert(str(openai_file), out)  # an empty folder is free
    inode = out.stat().st_ino
    assert "exists" in refused(OutputError, openai_file, out)
    (out / "NOTES.md").write_text("mine")
    assert "also holds NOTES.md" in refused(OutputError, openai_file, out, overwrite=True)
    (out / "NOTES.md").rename(tmp_path / "NOTES.md")
    convert(str(openai_file), out, overwrite=True)
    assert out.stat().st_ino != inode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["NOTES.md", "m"]


def test_outputs_that_are_something_else(openai_file: Path, tmp_path: Path) -> None:
    (tmp_path / "dir.pt").mkdir()
    assert "is no file" in refused(OutputError, openai_file, tmp_path / "dir.pt", overwrite=True)
    (tmp_path / "file").write_text("")
    assert "is no folder" in refused(OutputError, openai_file, tmp_path / "file", overwrite=True)
    (tmp_path / "link.pt").symlink_to(tmp_path / "file")
    assert "is a link" in refused(OutputError, openai_file, tmp_path / "link.pt", overwrite=True)
    assert "NAME.pt or a folder" in refused(OptionError, openai_file, tmp_path / "x.safetensors")
    assert "is the model itself" in refused(OptionError, openai_file, openai_file, overwrite=True)
    message = refused(OutputError, openai_file, tmp_path / "file" / "x.pt")
    assert "x.pt: cannot be written: Not a directory" in message or "exists" in message


def test_failures_leave_nothing(
    openai_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, weights that do not read back, and a rename that fails."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        message = refused(OutputError, openai_file, tmp_path / "out.pt")
        assert "No space left on device; free the space" in message
    with monkeypatch.context() as patch:
        patch.setattr(command, "_equal", lambda a, b: False)
        message = refused(OutputError, openai_file, tmp_path / "out.pt")
        assert "does not read back" in message
    assert list(tmp_path.iterdir()) == []

    old = convert(str(openai_file), tmp_path / "m").path
    before = {p.name: p.read_bytes() for p in old.iterdir()}
    rename = Path.replace

    def fails_once(self: Path, target: Path) -> Path:
        if Path(target) == old and self.name != "old":
            raise OSError(5, os.strerror(5))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails_once)
        message = refused(OutputError, openai_file, old, overwrite=True)
        assert "Input/output error" in message
    assert {p.name: p.read_bytes() for p in old.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
