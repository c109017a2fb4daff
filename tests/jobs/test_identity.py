"""A file counts as done only for the same model, precision and caches."""

import os
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from slimwhisper import cli
from slimwhisper.disk import MIB, WHOLE_FILE, file_digest
from slimwhisper.formats.names import BUNDLED
from slimwhisper.jobs.journal import identify_model
from tests.support.command import python
from tests.support.fake_model import FakeModel


@pytest.fixture
def job(run: Any, fake_model: FakeModel, tree: Path) -> Any:
    """Runs the job on three good files; returns how many of them were transcribed."""
    (tree / "c/x.wav").unlink()

    def call(*arguments: str) -> int:
        fake_model.taken.clear()
        done = run("in", *arguments)
        assert done.status == 0
        assert ("Nothing to do: 3 already done." in done.err) == (not fake_model.taken)
        return len(fake_model.taken)

    return call


STEPS = tomllib.loads(Path(__file__).with_name("steps.toml").read_text())["steps"]


@pytest.mark.parametrize("steps", STEPS)
def test_what_is_the_same(job: Any, steps: list[str]) -> None:
    for step in steps:
        expected, *flags = step.split()
        assert job(*flags) == int(expected), step


def test_other_weights(job: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    model.write_bytes(b"some weights")
    assert job("--model", str(model)) == 3
    os.utime(model, (5, 5))
    assert job("--model", str(model)) == job("--model", "model.pt") == 0
    model.write_bytes(b"more weights")
    assert job("--model", str(model)) == 3


def test_hot_words_are_their_content(job: Any, tmp_path: Path) -> None:
    words, same = tmp_path / "words.txt", tmp_path / "same.txt"
    for path in (words, same):
        path.write_text("Lagrange\n")
    assert [job("--hot_words", str(path)) for path in (words, same)] == [3, 0]
    words.write_text("Ann Lee\n")
    assert job("--hot_words", str(words)) == 3
    assert job("--hot_words", str(words), "--hot_word_bonus", "4") == 3
    assert job() == 3


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiny", "turbo", "openai/whisper-tiny", "", "~nobody/x", "\0"):
        assert identify_model(name) == {"model": name}
    for name in BUNDLED:
        assert identify_model(name).keys() == {"model", "digest"}
    folder = tmp_path / "whisper"
    folder.mkdir()
    assert identify_model(str(folder)) == {"model": str(folder)}  # it has no model
    digests = []
    for name, text in (
        ("config.json", "{}"),
        ("model-1.safetensors", "one"),
        ("model-2.safetensors", "two"),
        ("model-2.safetensors", "owt"),
        ("generation_config.json", "{}"),
    ):
        (folder / name).write_text(text)
        digests.append(identify_model(str(folder)).get("digest"))
    assert len(set(digests)) == 5
    (folder / "README.md").write_text("not read by the loader")
    os.utime(folder / "config.json", (5, 5))
    assert identify_model(str(folder)) == {"model": "whisper", "digest": digests[-1]}
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(Path, "open", Mock(side_effect=refused))  # left to the loader
    assert identify_model(str(folder)) == {"model": str(folder)}


def test_digests_of_files(tmp_path: Path) -> None:
    """Small ones are read completely. Of large ones any matrix of 1 MiB is seen, wherever it lies,
    and so is the end of the file.
    """
    path = tmp_path / "model.safetensors"
    small, large = 3 * MIB + 17, WHOLE_FILE + 12_345
    changes = [(small, start, 1) for start in (0, 5000, MIB, small - 1, small)]
    changes += [(large, start, 1) for start in (0, WHOLE_FILE, large - 1, 12 * MIB + 4095)]
    changes += [(large, start, MIB) for start in (1, 10 * MIB + 7, 33 * MIB - 1)]
    seen = set()
    for size, start, count in changes:
        path.touch()
        os.truncate(path, max(size, path.stat().st_size))
        with path.open("r+b") as file:
            file.seek(start)
            file.write(b"\1" * count)
        seen.add(file_digest(path))
    assert len(seen) == len(changes)


def test_the_end_of_a_torch_file_covers_every_tensor(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("slimwhisper.disk.WHOLE_FILE", MIB)
    tensors = {f"{i}": torch.zeros(50_000) for i in range(30)}
    digests = set()
    for name in (None, "7", "0"):
        if name is not None:
            tensors[name][31_234] = 1
        torch.save(tensors, tmp_path / "model.pt")
        digests.add(file_digest(tmp_path / "model.pt"))
    assert len(digests) == 3


def test_nothing_to_do_without_torch(fake_model: FakeModel, tree: Path) -> None:
    """The settings are compared before anything slow is imported."""
    arguments = ["transcribe", "in/b", "-o", "out", "-f", "txt", "--model", "digits"]
    assert cli.main(arguments) == 0
    code = (
        "import sys; from slimwhisper.cli import main\n"
        "status = main(sys.argv[1:])\n"
        'sys.exit(f\'{status} {[m for m in ("torch", "whisper") if m in sys.modules]}\')'
    )
    done = python("-c", code, *arguments)
    assert done.stderr.startswith("Nothing to do: 2 already done.\n")
    assert done.stderr.endswith("\n0 []\n")
