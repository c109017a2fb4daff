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
from slimwhisper.commands.doctor import checks, healthy, print_doctor, run_doctor
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


def printed(found: list[Check]) -> str:
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


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The programs that can be found, at first none."""
    programs: dict[str, str] = {}
    monkeypatch.setattr(doctor.shutil, "which", programs.get)
    return programs


def test_looks_at_everything_on_this_machine() -> None:
    found = checks()
    assert [check.name for check in found] == LINES
    by_name = {check.name: check for check in found}
    assert healthy(found), [check for check in found if check.ok is False]
    assert by_name["torch"].value == torch.__version__
    assert metadata.version("openai-whisper") in by_name["openai-whisper"].value
    assert "libavcodec" in by_name["av"].value
    assert "libsndfile" in by_name["soundfile"].value
    assert by_name["decoding audio"].value.startswith("PyAV decodes")
    assert by_name["resampling"].value.startswith(audio.resampler()[0])
    text = printed(found)
    lines = text.splitlines()
    for name in LINES:
        assert sum(line[5:].startswith(f"{name} ") for line in lines) == 1, name
    assert max(map(len, lines)) <= 80 or " " not in max(lines, key=len).strip()
    assert lines[-1] == "Nothing stands in the way of transcribing."


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(argparse.Namespace(json=True)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert [check["name"] for check in found["checks"]] == LINES
    assert all(set(check) == {"name", "value", "ok", "advice"} for check in found["checks"])


def test_kernels_of_a_cpu(no_gpu: None) -> None:
    check = doctor._kernels()
    assert check.ok is (True if library() else None)
    assert "PyTorch: the device is a CPU" in check.value
    assert ("not compiled" in check.advice) == (library() is None)


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("triton does not load (No module named 'triton')", "pip install 'triton"),
        ("PermissionError: [Errno 13] /root/.triton", "set TRITON_CACHE_DIR to a folder"),
        ("Failed to find C compiler", "see the C compiler"),
    ],
)
def test_advice_where_triton_fails(why: str, advice: str) -> None:
    assert advice in doctor._triton_advice(why)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_run_on_the_gpu() -> None:
    check = doctor._kernels()
    assert check.ok is True and check.value.startswith("Triton: triton ")


def test_compiler_missing(compiler: dict[str, str], no_gpu: None) -> None:
    check = doctor._c_compiler()
    assert (check.value, check.ok) == ("none found", None)
    assert "apt-get install gcc python3-dev" in check.advice and "not here" in check.advice


def test_compiler_is_needed_with_a_gpu(
    compiler: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert doctor._c_compiler().advice.endswith("to start kernels on a GPU")


def test_compilers_that_triton_does_not_find(
    compiler: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler["cc"] = "/usr/bin/cc"
    assert "export CC=cc" in doctor._c_compiler().advice
    monkeypatch.setenv("CC", "nocc")
    check = doctor._c_compiler()
    assert check.value == "CC is 'nocc', which is not there" and "unset CC" in check.advice


def test_headers_of_python_missing(
    compiler: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler["clang"] = "/usr/bin/clang"
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    check = doctor._c_compiler()
    assert check.value.startswith("/usr/bin/clang, but no ") and "python3-dev" in check.advice


def test_pyav_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "open", fails(RuntimeError("libavcodec\nis broken")))
    found = checks()
    (check,) = [check for check in found if check.ok is False]
    assert check.name == "decoding audio"
    assert check.value == "PyAV fails: RuntimeError: libavcodec is broken"
    assert "pip install 'av" in check.advice and "--force-reinstall" in check.advice
    assert not healthy(found)
    text = printed(found)
    assert "BAD  decoding audio" in text
    assert text.splitlines()[-1] == "In the way of transcribing: decoding audio."


def test_pyav_decodes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "load_audio", lambda _: np.zeros(1600, np.float32))
    check = doctor._decoding()
    assert check.ok is False and "1600 samples of 0.00, not 1600 of 0.25" in check.value


@pytest.mark.parametrize(
    ("module", "name"), [("torch", "torch"), ("whisper", "openai-whisper"), ("soxr", "soxr")]
)
def test_package_does_not_import(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found = checks()
    check = next(check for check in found if check.name == name)
    assert check.ok is False and "does not import: ModuleNotFoundError" in check.value
    assert f"pip install '{name}" in check.advice
    assert not healthy(found)


def test_package_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", fails(metadata.PackageNotFoundError("it")))
    by_name = {check.name: check for check in checks()}
    assert by_name["torch"].value == by_name["gradio"].value == "not installed"
    assert by_name["torch"].ok is False and "pip install 'torch" in by_name["torch"].advice
    for name in ("gradio", "torchaudio", "triton", "slimwhisper"):
        assert by_name[name].ok is None, name
    assert "pip install 'slimwhisper[app]'" in by_name["gradio"].advice


def test_package_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "99.0")
    check = check_package("soxr", True, "soxr", "resamples")
    assert check.ok is None and check.value == "99.0"
    assert "slimwhisper is made for <2,>=1" in check.advice


def test_torchaudio_that_does_not_load_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    check = check_package("torchaudio", False, "torchaudio", "not needed: soxr resamples")
    assert check.ok is None and "soxr" in check.advice
    (row,) = [package for package in PACKAGES if package[0] == "torchaudio"]
    advice = check_package(*row).advice
    assert "from the index that torch came from, or pip uninstall torchaudio" in advice


def test_resampler_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "torchaudio does not import: OSError: no such symbol"
    monkeypatch.setattr(audio, "resampler", lambda: ("soxr", why))
    assert doctor._resampling() == Check("resampling", "soxr: torchaudio does not import", True)


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


def test_models_folder_not_made_yet(own_places: Path) -> None:
    check = doctor._models()
    assert check.ok is True and f"{own_places}: not made yet; " in check.value
    assert not own_places.exists(), "looking makes nothing"


def test_models_folder_cannot_be_written(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_places.mkdir()
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: Path(path) != own_places)
    check = doctor._models()
    assert check.ok is False and f"{own_places} cannot be written" in check.value
    assert "--model_dir" in check.advice


def test_models_folder_is_a_file(own_places: Path) -> None:
    own_places.touch()
    check = doctor._models()
    assert check.ok is False and f"{own_places} is not a folder" in check.value


def test_hub_cache_that_cannot_be_written_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert doctor._hub().ok is None and doctor._models().ok is False


def test_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2e9))
    check = doctor._models()
    assert check.value.endswith("2.0 GB free") and "large-v3 takes 3.1 GB" in check.advice


def test_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    one = "NVIDIA H200, 140 GiB, compute capability 9.0"
    assert doctor._gpu() == Check("GPU", f"cuda:0 {one}; cuda:1 {one}; CUDA 12.8", True)


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
