"""A file counts as done only for the same model, precision and caches."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper import cli
from slimwhisper.checkpoint.bundled import BUNDLED
from slimwhisper.digests import MIB, WHOLE_FILE, file_digest
from slimwhisper.errors import OptionError
from slimwhisper.jobs.journal.identity import (
    accepted_precisions,
    folder_digest,
    identify_caches,
    identify_model,
    identify_precision,
)
from slimwhisper.jobs.journal.journal import JOURNAL_NAME
from tests.support.fake_model import FakeModel, fake_model
from tests.support.folder_job import journal, run, tree

__all__ = ["fake_model", "run", "tree"]


@pytest.fixture
def job(run: Any, fake_model: FakeModel, tree: Path) -> Any:
    """Runs the job on three good files; returns how many of them were transcribed."""
    (tree / "c/x.wav").unlink()

    def call(*arguments: str) -> int:
        fake_model.taken.clear()
        done = run("in", *arguments)
        assert done.status == 0
        assert ("Nothing to do: 3 files already done." in done.err) == (not fake_model.taken)
        return len(fake_model.taken)

    return call


def test_another_dtype(job: Any) -> None:
    assert job("--compute_type", "int8") == 3
    assert job() == 3
    assert job("--compute_type", "int8") == 0
    assert job("--dtype", "bfloat16") == 3
    for same in ([], ["--dtype", "float32"], ["--fp16", "False"], ["--device", "cpu"]):
        assert job(*same) == 0
    assert job("--dtype", "float16") == 3  # on a CPU this is not the default
    assert {(line["options"]["dtype"], line["options"]["device"]) for line in journal()} == {
        (dtype, "cpu") for dtype in ("int8", "float32", "bfloat16", "float16")
    }


def test_the_default_dtype_of_each_device(job: Any) -> None:
    assert job("--device", "cuda:0") == 3
    assert job("--device", "cuda") == job("--dtype", "float16") == job() == 0
    assert job("--device", "cpu") == 3
    assert job("--dtype", "float32") == 0


def test_a_named_dtype_that_is_not_the_default(job: Any) -> None:
    assert job("--dtype", "float16", "--device", "cpu") == 3
    assert job() == 3
    assert job("--dtype", "float32", "--device", "cuda") == 0  # a float32 is a float32
    assert job("-o", "other", "--dtype", "float32", "--device", "cuda") == 3
    assert job("-o", "other") == 3  # float32 is not the default of a GPU


def test_other_caches(job: Any) -> None:
    assert job() == 3
    for same in (
        ("--cache", "slim"),
        ("--cross-cache", "e", "--self-cache", "x"),
        ("--cache", "baseline", "--cross-cache", "e", "--self-cache", "x"),
        ("--strict-cache",),
    ):
        assert job(*same) == 0
    assert job("--cache", "baseline") == 3
    assert job("--cache_dtype", "fp8") == 3
    assert job("--cache", "option2") == 3
    assert job("--self-cache", "k") == 0  # the same two forms
    assert {line["options"]["cache"] for line in journal()} == {"e+x", "kv+kv", "e8+x8", "e+k"}


def test_other_weights(job: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    model.write_bytes(b"some weights")
    assert job("--model", str(model)) == 3
    os.utime(model, (5, 5))
    assert job("--model", str(model)) == job("--model", "model.pt") == 0
    model.write_bytes(b"more weights")
    assert job("--model", str(model)) == 3
    assert job() == job("--model", "tiny") == 3
    assert job("--model", "turbo") == 0  # the default


def test_a_journal_from_before_these_settings(job: Any) -> None:
    """Its lines do not say what they were computed with, so they do not count."""
    assert job() == 3
    path = Path("out") / JOURNAL_NAME
    old = path.read_text().replace('"cache": "e+x", ', "")
    assert '"cache"' not in old
    path.write_text(old)
    assert job() == 3


def test_names() -> None:
    for name in ("tiny", "turbo", "distil-large-v3", "openai/whisper-tiny", "", "~nobody/x", "\0"):
        assert identify_model(name) == {"model": name}
    for name in BUNDLED:
        assert identify_model(name).keys() == {"model", "digest"}


def test_unreadable_files_are_left_to_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    path.touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert identify_model(str(path)) == {"model": str(path)}


def test_small_files_are_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    data = bytearray(3 * MIB + 17)
    seen = set()
    for position in (None, 0, 5000, MIB, 2 * MIB + 12_345, len(data) - 1):
        if position is not None:
            data[position] ^= 1
        path.write_bytes(data)
        seen.add(file_digest(path))
    path.write_bytes(data + b"\0")
    seen.add(file_digest(path))
    assert len(seen) == 7


def test_large_files_are_sampled(tmp_path: Path) -> None:
    """Any matrix of 1 MiB is seen, wherever it lies, and so is the end of the file."""
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(WHOLE_FILE + 12_345)
    before = file_digest(path)
    changes = [(0, 1), (WHOLE_FILE, 1), (WHOLE_FILE + 12_344, 1), (12 * MIB + 4095, 1)]
    changes += [(start, MIB) for start in (1, 10 * MIB + 7, 33 * MIB - 1)]
    for start, count in changes:
        with path.open("r+b") as file:
            file.seek(start)
            file.write(b"\1" * count)
        after = file_digest(path)
        assert after != before, (start, count)
        before = after
    with path.open("r+b") as file:
        file.seek(20 * MIB + 5000)
        file.write(b"small")
    assert file_digest(path) == before  # what the docstring admits


def test_the_end_of_a_torch_file_covers_every_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slimwhisper.digests.WHOLE_FILE", MIB)
    tensors = {f"{i}": torch.zeros(50_000) for i in range(30)}
    digests = set()
    for name in (None, "7", "0"):
        if name is not None:
            tensors[name][31_234] = 1
        torch.save(tensors, tmp_path / "model.pt")
        digests.add(file_digest(tmp_path / "model.pt"))
    assert len(digests) == 3
    assert (tmp_path / "model.pt").stat().st_size > 5 * MIB


def test_folders(tmp_path: Path) -> None:
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
        digests.append(folder_digest(folder))
    assert len(set(digests)) == 5
    (folder / "README.md").write_text("not read by the loader")
    os.utime(folder / "config.json", (5, 5))
    assert identify_model(str(folder)) == {"model": "whisper", "digest": digests[-1]}


def test_precisions() -> None:
    cpu, gpu = ({"dtype": d, "device": k} for d, k in (("float32", "cpu"), ("float16", "gpu")))
    assert accepted_precisions(None, None) == [cpu, gpu]
    assert identify_precision("float32", "cpu") == cpu
    assert identify_precision("float16", "cuda:1") == gpu
    for dtype, device in (("float32", None), ("float32", "cuda"), (None, "cpu"), (None, "cpu:0")):
        accepted = accepted_precisions(dtype, device)
        assert [p["dtype"] for p in accepted] == ["float32"] * 2
        assert [p["device"] for p in accepted] == ["cpu", "gpu"]


def test_caches() -> None:
    assert identify_caches("slim", None, None, None) == "e+x"
    with pytest.raises(OptionError, match="cache_dtype: fp8 is for"):
        identify_caches("baseline", None, None, "fp8")


def test_nothing_to_do_without_torch(
    fake_model: FakeModel, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings are compared before anything slow is imported."""
    arguments = ["transcribe", "in/b", "-o", "out", "-f", "txt", "--model", "digits"]
    assert cli.main(arguments) == 0
    code = (
        "import sys; from slimwhisper.cli import main\n"
        "status = main(sys.argv[1:])\n"
        'sys.exit(f\'{status} {[m for m in ("torch", "whisper") if m in sys.modules]}\')'
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("Nothing to do: 2 files already done.\n")
    assert done.stderr.endswith("\n0 []\n")
