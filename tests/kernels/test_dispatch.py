"""Which path each attention takes, why, and that every path gives the same."""

import logging
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.forms import PRESETS
from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError
from slimwhisper.kernels.attention import MAX_ROWS, Latent
from slimwhisper.kernels.configurations import TritonDevice, find_configuration
from slimwhisper.kernels.cpu.library import library
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.gpu import driver
from slimwhisper.kernels.gpu import latent as latent_kernel
from tests.support.compiled import noise
from tests.support.windows import CPU, SHORT, assert_same, decode, random_model, windows

INTERPRETED = not torch.cuda.is_available()
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="on a GPU nothing is interpreted")
needs_library = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")


def attend(kernels: Kernels, width: int = 64) -> tuple[Tensor, Tensor]:
    """Both operations, two rows of two heads a window."""
    dtype, device = kernels.dtype, kernels.device
    queries = noise(4, 2, width, dtype=dtype).to(device)
    latent = noise(2, 9, width, seed=1, dtype=dtype).to(device)
    keys = noise(2, 2, 9, width, seed=2, dtype=dtype).to(device)
    return kernels.latent(queries, Latent(latent), 0.2), kernels.heads(queries, keys, keys)


@needs_library
def test_a_cpu_uses_c() -> None:
    kernels, pytorch = Kernels(CPU, torch.float32), Kernels(CPU, torch.float32, "torch")
    torch.testing.assert_close(attend(kernels), attend(pytorch))
    assert dict(kernels.used) == {("latent", "c"): 1, ("heads", "c"): 1}
    keys = noise(1, 2, 9, 64)
    kernels.heads(noise(MAX_ROWS + 1, 2, 64), keys, keys)
    assert kernels.used["heads", "torch"] == 1, "long prompts go to flash-attention"
    assert kernels.describe() == "C and PyTorch: the device is a CPU"


def test_a_cpu_without_the_library_uses_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.kernels.dispatch.library", lambda *_: None)
    kernels = Kernels(CPU, torch.float32)
    attend(kernels)
    assert dict(kernels.used) == {("latent", "torch"): 1, ("heads", "torch"): 1}
    assert kernels.describe() == "PyTorch: the device is a CPU"


@needs_interpreter
def test_what_triton_leaves_to_pytorch() -> None:
    """A width without a configuration, float8, and long prompts, which flash-attention reads."""
    kernels = Kernels(CPU, torch.float32, "triton")
    attend(kernels, width=16)
    keys = noise(1, 2, 9, 64)
    kernels.heads(noise(MAX_ROWS + 1, 2, 64), keys, keys)
    kernels.latent(noise(2, 2, 64), Latent.allocate((2, 9, 64), CPU, torch.float32, fp8=True), 0.2)
    assert dict(kernels.used) == {("latent", "torch"): 2, ("heads", "torch"): 2}
    assert kernels.describe() == "Triton: interpreted on the CPU"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Kernels:
    """Those of which one, when it is called, raises this."""
    monkeypatch.setattr(latent_kernel, "split_latent", Mock(side_effect=error))
    return Kernels(CPU, torch.float32, "triton")


@needs_interpreter
def test_a_failing_kernel_gives_one_warning_and_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = failing(monkeypatch, RuntimeError("Failed to find C compiler.\nPlease specify one"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = attend(kernels)
    torch.testing.assert_close(found, attend(Kernels(CPU, torch.float32)))
    assert dict(kernels.used) == {("latent", "torch"): 3, ("heads", "triton"): 3}
    (record,) = caplog.records
    for said in (record.message, kernels.describe()):
        assert "latent" in said and "Failed to find C compiler." in said


@needs_interpreter
@pytest.mark.parametrize("error", [torch.AcceleratorError, torch.OutOfMemoryError])
def test_an_error_of_the_device_is_raised(
    error: type[RuntimeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would fail as well, with a second error that hides the first."""
    kernels = failing(monkeypatch, error("CUDA error: 700"))
    with pytest.raises(error, match="CUDA"):
        attend(kernels)
    assert not kernels.failures


def test_a_failed_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton raises a RuntimeError of its own for it; the device tells whether it still works."""
    kernels = failing(monkeypatch, RuntimeError("Triton Error [CUDA]: misaligned address"))
    kernels.device = torch.device("cuda", 0)
    monkeypatch.setattr("slimwhisper.kernels.dispatch.on_device", lambda _: nullcontext())
    failed = torch.AcceleratorError("CUDA error: misaligned address")
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=failed))
    queries, latent = noise(4, 2, 64), Latent(noise(2, 9, 64))
    with pytest.raises(torch.AcceleratorError):
        kernels.latent(queries, latent, 0.2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    kernels.latent(queries, latent, 0.2)
    assert "misaligned" in kernels.failures["latent", "triton"]


def on_gpu(name: str, capability: tuple[int, int] = (9, 0), **properties: int) -> Kernels:
    """The kernels that a GPU with these properties gets."""
    found = SimpleNamespace(name=name, multi_processor_count=132, **properties)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.version, "hip", "7.2" if name.startswith("AMD") else None)
        patch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        patch.setattr(torch.cuda, "get_device_properties", lambda _: found)
        return Kernels(torch.device("cuda"), torch.float16)


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm runs what `bench/compilation.py --rocm` compiles."""
    mi300 = on_gpu("AMD Instinct MI300X", shared_memory_per_block=65_536)
    assert mi300.triton_device == TritonDevice(65_536, 132, 80) and mi300.hopper is None
    assert "AMD Instinct MI300X" in mi300.describe()
    assert find_configuration("latent", "float16", 384, 6, mi300.triton_device) is not None
    assert find_configuration("latent", "float16", 1280, 20, mi300.triton_device) is None
    assert "7.5 is below" in on_gpu("T4", (7, 5), shared_memory_per_block_optin=65_536).why
    for bindings in (True, False):
        monkeypatch.setattr(driver, "has_bindings", lambda b=bindings: b)
        h200 = on_gpu("H200", shared_memory_per_block_optin=232_448)
        assert h200.triton_device == TritonDevice(232_448, 132, 90)
        assert h200.hopper == (h200.triton_device if bindings else None)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert on_gpu("H200", shared_memory_per_block_optin=232_448).triton_device is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "bfloat16" in Kernels(CPU, torch.bfloat16, "triton").why


def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMWHISPER_KERNELS", "cutlass")
    with pytest.raises(OptionError, match="SLIMWHISPER_KERNELS: 'cutlass' is not one of auto"):
        Kernels(CPU, torch.float32)


@pytest.mark.parametrize(("preset", "operation"), [("baseline", "heads"), ("slim", "latent")])
def test_texts_by_triton_are_the_same(
    preset: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of different lengths, beams, and windows that change their rows."""
    device = CPU if INTERPRETED else torch.device("cuda")
    dims = replace(SHORT, n_audio_ctx=48, n_text_layer=1)  # quick to interpret
    asked, found, used = windows(3, 4, dims=dims), [], []
    for choice in ("torch", "triton"):
        monkeypatch.setenv("SLIMWHISPER_KERNELS", choice)
        model = random_model(device, PRESETS[preset], dims=dims)
        found.append(decode(model, asked, 2, Search(beams=2)))
        used.append(model.plan.kernels.used)
    assert_same(*found)
    assert {path for _, path in used[0]} == {"torch"}
    assert used[1][operation, "triton"] > 10 and used[1][operation, "torch"] <= len(asked)
