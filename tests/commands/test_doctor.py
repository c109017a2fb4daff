"""The doctor: every part looked at for real, and broken parts named in words that help."""

import argparse
import io
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import av
import numpy as np
import pytest
import torch

from slimwhisper.audio import load as audio
from slimwhisper.checkpoint.formats import openai as checkpoint
from slimwhisper.commands import doctor
from slimwhisper.commands.doctor import checks, failing, print_doctor, run_doctor
from slimwhisper.commands.packages import PACKAGES, Check, check_package
from slimwhisper.kernels.cpu.library import library

LINES = (
    "python, slimwhisper, torch, triton, openai-whisper, av, soundfile, torchaudio, soxr, "
    "safetensors, huggingface_hub, tokenizers, silero-vad, gradio, CPU, GPU, kernels, C compiler, "
    "decoding audio, resampling, speakers, models folder, hub cache"
).split(", ")


def fails(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise error

    return call


def printed(found: dict[str, Check]) -> str:
    file = io.StringIO()
    print_doctor(found, file)
    return file.getvalue()


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test looks at, or writes to, the folders of who runs it."""
    models = tmp_path / "models"
    monkeypatch.setattr(checkpoint, "default_download_root", lambda: models)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return models


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_looks_at_everything_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = checks()
    assert list(found) == LINES
    assert not failing(found)
    assert run_doctor(argparse.Namespace(json=True)) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["healthy"] is True and [check["name"] for check in rows["checks"]] == LINES
    assert all(set(check) == {"name", "value", "ok", "advice"} for check in rows["checks"])
    assert found["torch"].value == torch.__version__
    assert metadata.version("openai-whisper") in found["openai-whisper"].value
    assert "libavcodec" in found["av"].value
    assert "libsndfile" in found["soundfile"].value
    assert found["decoding audio"].value.startswith("PyAV decodes")
    assert found["resampling"].value.startswith(audio.resampler()[0])
    text = printed(found)
    lines = text.splitlines()
    for name in LINES:
        assert sum(line[5:].startswith(f"{name} ") for line in lines) == 1, name
    assert max(map(len, lines)) <= 80 or " " not in max(lines, key=len).strip()
    assert lines[-1] == "Nothing stands in the way of transcribing."


def test_kernels_of_a_cpu(no_gpu: None) -> None:
    check = doctor._kernels()
    assert check.ok is (True if library() else None)
    assert "PyTorch: the device is a CPU" in check.value
    assert ("not compiled" in check.advice) == (library() is None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_run_on_the_gpu() -> None:
    check = doctor._kernels()
    assert check.ok is True and check.value.startswith("Triton: triton ")


@pytest.mark.parametrize(
    ("programs", "chosen", "value", "advice"),
    [
        ({}, None, "none found", "apt-get install gcc python3-dev"),
        ({"gcc": "/usr/bin/gcc"}, "nocc", "CC is 'nocc'", "unset CC"),
        ({"clang": "/usr/bin/clang"}, None, "/usr/bin/clang, but no ", "python3-dev"),
    ],
)
def test_compilers(
    programs: dict[str, str],
    chosen: str | None,
    value: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None, one that is not there, and one without Python's headers."""
    monkeypatch.setattr(doctor.shutil, "which", programs.get)
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    if chosen is not None:
        monkeypatch.setenv("CC", chosen)
    check = doctor._c_compiler()
    assert check.ok is None and check.value.startswith(value) and advice in check.advice


def test_pyav_raises_and_decodes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "open", fails(RuntimeError("libavcodec\nis broken")))
    found = checks()
    assert failing(found) == ["decoding audio"]
    check = found["decoding audio"]
    assert "libavcodec is broken" in check.value and "pip install 'av" in check.advice
    text = printed(found)
    assert "BAD  decoding audio" in text and "decoding audio" in text.splitlines()[-1]
    monkeypatch.setattr(audio, "load_audio", lambda _: np.zeros(1600, np.float32))
    check = doctor._decoding()
    assert check.ok is False and "0.00, not 1600 of 0.25" in check.value


@pytest.mark.parametrize(
    ("module", "name"), [("torch", "torch"), ("whisper", "openai-whisper"), ("soxr", "soxr")]
)
def test_package_does_not_import(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found = checks()
    check = found[name]
    assert name in failing(found) and "does not import: ModuleNotFoundError" in check.value
    assert f"pip install '{name}" in check.advice


def test_package_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", fails(metadata.PackageNotFoundError("it")))
    found = checks()
    assert found["torch"].value == found["gradio"].value == "not installed"
    assert found["torch"].ok is False and "pip install 'torch" in found["torch"].advice
    for name in ("gradio", "torchaudio", "triton", "slimwhisper"):
        assert found[name].ok is None, name
    assert "pip install 'slimwhisper[app]'" in found["gradio"].advice


def test_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not needed and does not load, and one of another version."""
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    (row,) = [package for package in PACKAGES if package[0] == "torchaudio"]
    check = check_package(*row)
    assert check.ok is None and "soxr" in check.advice and "uninstall torchaudio" in check.advice
    monkeypatch.setattr(metadata, "version", lambda _: "99.0")
    check = check_package("soxr", True, "soxr", "resamples")
    assert check.ok is None and check.value == "99.0" and "<2,>=1" in check.advice


def test_models_and_their_sizes(own_places: Path, tmp_path: Path) -> None:
    own_places.mkdir()
    for name, size in (("tiny.pt", 76_000_000), ("large-v3.pt", 3_090_000_000)):
        with (own_places / name).open("wb") as file:
            file.truncate(size)
    check = doctor._models()
    assert check.ok is True
    assert f"{own_places}: large-v3 3.1 GB, tiny 76.0 MB; " in check.value
    assert check.value.endswith(" free")

    blobs = tmp_path / "hub" / "models--openai--whisper-base" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "0123").write_bytes(b"0" * 2_000_000)
    (tmp_path / "hub" / "models--other--bert").mkdir()
    assert f"{tmp_path / 'hub'}: openai/whisper-base 2.0 MB; " in doctor._hub().value


@pytest.mark.parametrize(
    ("place", "ok", "value"),
    [
        ("none", True, "not made yet"),
        ("file", False, "is not a folder"),
        ("read-only", False, "cannot be written"),
    ],
)
def test_places(
    own_places: Path, monkeypatch: pytest.MonkeyPatch, place: str, ok: bool, value: str
) -> None:
    """The folder of models must be writable; the hub's cache need not be. Looking makes nothing."""
    if place == "file":
        own_places.touch()
    elif place == "read-only":
        own_places.mkdir()
        monkeypatch.setattr(doctor.os, "access", lambda *_: False)
        assert doctor._hub().ok is None
    check = doctor._models()
    assert check.ok is ok and str(own_places) in check.value and value in check.value
    assert ok or "--model_dir" in check.advice
    assert own_places.exists() == (place != "none")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2e9))
    assert not ok or "large-v3 takes 3.1 GB" in doctor._models().advice


def test_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    one = "NVIDIA H200, 140 GiB, compute capability 9.0"
    assert doctor._gpu() == Check(f"cuda:0 {one}; cuda:1 {one}; CUDA 12.8", True)


def test_no_gpu_and_why(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    check = doctor._gpu()
    assert check.ok is None and "built for the CPU" in check.value and "CUDA build" in check.advice
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    check = doctor._gpu()
    assert "CUDA 12.8" in check.value and "nvidia-smi" in check.advice
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "MPS" in doctor._gpu().value


def test_never_raises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every library call of the checks fails at once."""
    broken = fails(RuntimeError("broken"))
    for place, name in (
        (torch, "get_num_threads"),
        (torch.cuda, "is_available"),
        (audio, "resampler"),
        (checkpoint, "default_download_root"),
        (metadata, "version"),
        (doctor.platform, "python_version"),
        (doctor.sysconfig, "get_paths"),
        (os, "access"),
    ):
        monkeypatch.setattr(place, name, broken)
    assert run_doctor(argparse.Namespace(json=False)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in LINES if not any(line[5:].startswith(name) for line in lines)] == []
    assert "fails: RuntimeError: broken" in "".join(lines)
