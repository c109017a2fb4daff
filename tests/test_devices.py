"""The device, and the batch on a GPU from its free memory. No GPU is needed: only what PyTorch says
of it is replaced.
"""

import logging
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from slimwhisper import devices
from slimwhisper.api import SlimWhisper
from slimwhisper.cache.forms import Form, choose_forms
from slimwhisper.devices import (
    CPU_BATCH,
    MOST_BATCH,
    check_batch_size,
    choose_batch_size,
    choose_device,
    choose_dtype,
    device_warning,
    free_bytes,
    is_slow,
)
from slimwhisper.engine.engine import slot_bytes
from slimwhisper.engine.requests import Search
from slimwhisper.errors import CheckpointError, OptionError
from slimwhisper.loading import load_model
from tests.support.command import python
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.models import made
from tests.support.windows import random_model

GPU = torch.device("cuda", 1)
GB = 1_000_000_000


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU's counters."""
    found = SimpleNamespace(free=20 * GB, reserved=0, allocated=0, share=1.0)
    for name, counter in {
        "mem_get_info": lambda: (found.free, 144 * GB),
        "memory_reserved": lambda: found.reserved,
        "memory_allocated": lambda: found.allocated,
        "get_per_process_memory_fraction": lambda: found.share,
    }.items():
        # of another device: KeyError
        monkeypatch.setattr(torch.cuda, name, lambda device, c=counter: {GPU: c}[device]())
    return found


def test_half_of_the_free_memory_in_eights(memory: SimpleNamespace) -> None:
    """At least 8, at most 256; on a CPU always 16."""
    assert choose_batch_size(GPU, GB // 10) == 96  # 100 fit
    assert choose_batch_size(GPU, GB) == 8  # 10 fit
    memory.reserved, memory.allocated = 8 * GB, 4 * GB  # what torch does not use is free, too
    assert choose_batch_size(GPU, GB // 4) == 48
    assert choose_batch_size(GPU, GB // 4, reusable=8 * GB) == 64
    memory.free = 139 * GB
    assert choose_batch_size(GPU, 41_000_000) == 256
    memory.free, memory.reserved, memory.allocated = GB, 0, 0
    assert choose_batch_size(GPU, GB) == 8
    assert choose_batch_size(torch.device("cpu"), GB) == CPU_BATCH == 16
    for size in (0, "2", 2.0):
        with pytest.raises(OptionError, match=f"batch_size {size!r} is not a whole number from 1"):
            check_batch_size(size)  # type: ignore[arg-type]


def test_a_model_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the caches that it would have had: for few windows, those that are fast with few. Its
    file is no damaged one.
    """
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"))
    monkeypatch.setattr("slimwhisper.loading.Model", full)

    def forms(memory: int = GB, **arguments: Any) -> tuple[Form, Form]:
        problem = "digits: not enough memory on cuda:0 for its weights; choose a smaller model"
        with pretend_cuda(memory=memory), pytest.raises(CheckpointError, match=problem):
            load_model("digits", "cuda", **arguments)
        chosen: tuple[Form, Form] = full.call_args.args[3]
        return chosen

    assert forms(windows=1) == forms(windows=8) == choose_forms("baseline")
    assert forms() == forms(windows=9) == forms(GB // 100, windows=1) == choose_forms("slim")
    assert forms(windows=1, self_cache="x") == choose_forms("slim")
    assert forms(windows=1, cache="option2") == choose_forms("option2")
    for name in ("torch.load", "slimwhisper.formats.load.read_checkpoint"):
        for error in (MemoryError(), OSError(12, "Cannot allocate memory"), full.side_effect):
            monkeypatch.setattr(name, Mock(side_effect=error))
            with pytest.raises(CheckpointError, match=r"digits\.pt: not enough memory to read it"):
                load_model("digits")


def test_two_processes_share_a_gpu(memory: SimpleNamespace) -> None:
    """Each keeps to its part, whether or not the other has started."""
    memory.free, memory.reserved, memory.allocated, memory.share = 140 * GB, 4 * GB, 3 * GB, 0.5
    assert free_bytes(GPU) == (72 - 3) * GB
    memory.free = 60 * GB  # the other has more than its part
    assert free_bytes(GPU) == (60 + 4 - 3) * GB


def test_a_gpu_without_a_number_is_the_current_one() -> None:
    """Some of PyTorch's functions refuse "cuda"; no tensor is on it."""
    cuda = torch.device("cuda")
    with pretend_cuda(count=2):
        with pytest.raises(ValueError, match="index"):
            free_bytes(cuda)
        for number in range(2):
            with torch.cuda.device(number):
                assert choose_device("cuda") == choose_device(None) == torch.device("cuda", number)
        with torch.cuda.device(1):
            model = made(("e", "x"), cuda, layers=1)
            assert {model.device, model.decoder.embedding.device} == {GPU}
            assert SlimWhisper(model).default_batch_size() == MOST_BATCH
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_the_gpu_of_this_machine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16; those that slimwhisper was never tried on come with a warning."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: kind == "xpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
    monkeypatch.setattr(torch, "ones", lambda *_, device: SimpleNamespace(device=device))
    device = choose_device(None)
    assert device.type == kind and choose_dtype(None, device) == torch.float16
    warning = device_warning(device, True)
    assert ("untested on" in warning, kind in warning) == ((kind != "cuda"), (kind != "cuda"))
    monkeypatch.setattr(torch.version, "hip", "7.2")
    assert kind != "cuda" or "untested on ROCm" in device_warning(device, True)


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16", ""])
def test_the_fastest_dtype(
    feature: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bfloat16 where the processor has instructions for it; the default stays float32."""
    monkeypatch.setattr("slimwhisper.devices.processor_has", lambda name: name == feature)
    cpu, fastest = torch.device("cpu"), torch.bfloat16 if feature else torch.float32
    assert choose_dtype("auto", cpu) == fastest and choose_dtype(None, cpu) == torch.float32
    for capability in ((7, 5), (8, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert choose_dtype("auto", GPU) == choose_dtype(None, GPU) == torch.float16
        assert is_slow(torch.bfloat16, GPU) == (capability < (8, 0))
    with pytest.raises(OptionError, match="one of auto, float32, float16, bfloat16, int8"):
        choose_dtype("fastest", cpu)
    model = load_model("digits", device="cpu", dtype="auto")
    assert model.dtype == fastest and model.compute_type == model.fastest_dtype
    assert "slow" not in caplog.text
    load_model("digits", device="cpu", dtype="bfloat16")
    assert ("bfloat16 is very slow on this CPU; use auto" in caplog.text) == (not feature)


def test_an_unused_gpu_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless the user chose the CPU, or has hidden the GPU."""
    present = tmp_path / "nvidia0"
    present.touch()
    monkeypatch.setattr("slimwhisper.devices.NVIDIA", present)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "update NVIDIA's driver to one for CUDA 13.0" in device_warning(cpu, True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "install PyTorch's CUDA build" in device_warning(cpu, True)
    assert device_warning(cpu, False) == ""
    with caplog.at_level(logging.WARNING, "slimwhisper"):
        load_model("digits")
        assert "this machine has a GPU, but the CPU is used" in caplog.text
        caplog.clear()
        load_model("digits", device="cpu")
    assert "this machine has a GPU" not in caplog.text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_warning(cpu, True) == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    present.unlink()
    assert device_warning(cpu, True) == ""


def test_a_model_keeps_to_its_choice(
    memory: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_model()
    model = SlimWhisper(network)
    assert model.default_batch_size() == 16
    monkeypatch.setattr(network, "device", GPU)
    memory.free = 2 * 100 * slot_bytes(network, Search())
    model.release()
    assert model.default_batch_size() == 96
    beams = model.default_batch_size(beam_size=5)
    assert 8 <= beams < 40 and beams % 8 == 0  # five texts a window, and one drawn at a temperature
    memory.free //= 3  # as after its engine was made
    assert (model.default_batch_size(), model.default_batch_size(beam_size=5)) == (96, beams)
    model.release()
    assert model.default_batch_size() == 32


# Freed memory stays in the heaps of a process with a model on a CPU

FAULTS = """
import resource
from tests.support.windows import random_model
random_model()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(b"x") * (20 << 20) for _ in range(3)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_freed_memory_is_not_fetched_again() -> None:
    """A model sees to it: the third time no page is; with a user's own settings, all are."""

    def faults(**settings: str) -> int:
        return int(python("-c", FAULTS, without=devices.SETTINGS, **settings).stdout)

    assert faults() < 1000 < faults(MALLOC_TRIM_THRESHOLD_="65536")


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has neither function, and nothing is set or trimmed."""
    monkeypatch.setattr(devices, "_glibc", lambda _: None)
    devices.keep_heaps.__wrapped__()
    devices.HeapTrimmer().trim()
