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

from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache
from slimwhisper.cache.fold import Attention, Folded, fold
from slimwhisper.cache.forms import PRESETS
from slimwhisper.cache.rows import DecodeStep, Rows
from slimwhisper.errors import OptionError
from slimwhisper.kernels.attention import MAX_ROWS, Latent
from slimwhisper.kernels.configurations import TritonDevice, find_configuration
from slimwhisper.kernels.cpu.library import library
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.gpu import driver
from slimwhisper.kernels.gpu import latent as latent_kernel
from slimwhisper.model.decoder import Decoder
from tests.support.checkpoints import random_state, tiny_dims

CPU = torch.device("cpu")
INTERPRETED = not torch.cuda.is_available()
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="on a GPU nothing is interpreted")
needs_library = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attend(kernels: Kernels, width: int = 64) -> tuple[Tensor, Tensor]:
    """Both operations, two rows of two heads a window."""
    dtype, device = kernels.dtype, kernels.device
    queries = normal(4, 2, width, dtype=dtype).to(device)
    latent = normal(2, 9, width, seed=1, dtype=dtype).to(device)
    keys = normal(2, 2, 9, width, seed=2, dtype=dtype).to(device)
    return kernels.latent(queries, Latent(latent), 0.2), kernels.heads(queries, keys, keys)


@needs_library
def test_a_cpu_uses_c() -> None:
    kernels, pytorch = Kernels(CPU, torch.float32), Kernels(CPU, torch.float32, "torch")
    torch.testing.assert_close(attend(kernels), attend(pytorch))
    assert dict(kernels.used) == {("latent", "c"): 1, ("heads", "c"): 1}
    keys = normal(1, 2, 9, 64)
    kernels.heads(normal(MAX_ROWS + 1, 2, 64), keys, keys)
    assert kernels.used["heads", "torch"] == 1, "long prompts go to flash-attention"
    assert kernels.describe() == "C and PyTorch: the device is a CPU"


def test_a_cpu_without_the_library_uses_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.kernels.dispatch.library", lambda *_: None)
    kernels = Kernels(CPU, torch.float32)
    attend(kernels)
    assert dict(kernels.used) == {("latent", "torch"): 1, ("heads", "torch"): 1}
    assert kernels.describe() == "PyTorch: the device is a CPU"


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_triton_gives_the_same(dtype: torch.dtype) -> None:
    plain, triton = Kernels(CPU, dtype), Kernels(CPU, dtype, "triton")
    torch.testing.assert_close(attend(triton), attend(plain), rtol=2e-3, atol=2e-3)
    assert dict(triton.used) == {("latent", "triton"): 1, ("heads", "triton"): 1}
    assert triton.describe() == "Triton: interpreted on the CPU"


@needs_interpreter
def test_what_triton_leaves_to_pytorch() -> None:
    """A width without a configuration, float8, and long prompts, which flash-attention reads."""
    kernels = Kernels(CPU, torch.float32, "triton")
    attend(kernels, width=16)
    keys = normal(1, 2, 9, 64)
    kernels.heads(normal(MAX_ROWS + 1, 2, 64), keys, keys)
    kernels.latent(normal(2, 2, 64), Latent.allocate((2, 9, 64), CPU, torch.float32, fp8=True), 0.2)
    assert dict(kernels.used) == {("latent", "torch"): 2, ("heads", "torch"): 2}


@needs_interpreter
def test_a_failing_kernel_gives_one_warning_and_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault = RuntimeError("Failed to find C compiler.\nPlease specify one")
    monkeypatch.setattr(latent_kernel, "split_latent", Mock(side_effect=fault))
    kernels = Kernels(CPU, torch.float32, "triton")
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
    monkeypatch.setattr(latent_kernel, "split_latent", Mock(side_effect=error("CUDA error: 700")))
    kernels = Kernels(CPU, torch.float32, "triton")
    with pytest.raises(error, match="CUDA"):
        attend(kernels)
    assert not kernels.failures


def test_a_failed_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton raises a RuntimeError of its own for it; the device tells whether it still works."""
    fault = RuntimeError("Triton Error [CUDA]: misaligned address")
    monkeypatch.setattr(latent_kernel, "split_latent", Mock(side_effect=fault))
    kernels = Kernels(CPU, torch.float32, "triton")
    kernels.device = torch.device("cuda", 0)
    monkeypatch.setattr("slimwhisper.kernels.dispatch.on_device", lambda _: nullcontext())
    failed = torch.AcceleratorError("CUDA error: misaligned address")
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=failed))
    queries, latent = normal(4, 2, 64), Latent(normal(2, 9, 64))
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


@pytest.mark.parametrize("preset", ["baseline", "slim"])
def test_decoding_by_triton_gives_the_same_logits(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, then steps: rows of different lengths, beams, rows that change their slots."""
    dims = tiny_dims(width=64, heads=1)
    state = random_state(dims, seed=5)
    device = CPU if INTERPRETED else torch.device("cuda")
    features = normal(3, 20, 64).to(device)
    layers = range(dims.n_text_layer)

    def folded(name: str, form: str) -> list[Folded]:
        prefixes = [f"decoder.blocks.{i}.{name}." for i in layers]
        return [fold(Attention.from_state(state, prefix, 1), form) for prefix in prefixes]

    def logits(choice: str) -> tuple[list[Tensor], Kernels]:
        monkeypatch.setenv("SLIMWHISPER_KERNELS", choice)
        cross, own = PRESETS[preset]
        plan = CachePlan(folded("cross_attn", cross), folded("attn", own))
        plan = plan.to(device, torch.float32)
        decoder = Decoder(state, dims, device, torch.float32)
        cache = DecoderCache.allocate(plan, 3, 20, dims.n_text_ctx, group=2)
        cache.cross.put(torch.arange(3, device=device), features)
        for layer in cache.self_.layers:  # some rows have no prompt
            for buffer in layer.tensors:
                buffer.zero_()
        found = []
        tokens = torch.tensor([[7, 8, 9], [4, 5, 0]], device=device)
        given = Rows.of(torch.tensor([2, 5], device=device), torch.tensor([1, 2], device=device))
        found.append(decoder.prefill(tokens, given, cache)[:, 1])
        rows = Rows.block(2, 2, device=device)
        rows = replace(rows, ids=rows.ids + 2, slots=rows.slots + 1, first_slot=1, first_row=2)
        positions = torch.tensor([3, 0, 5, 2], device=device)
        for _ in range(2):
            step = DecodeStep.at(rows, positions, int(positions.max()) + 1, False, torch.float32)
            found.append(decoder.step(positions + 1, step, cache))
            positions = positions + 1
        alone = Rows.of(torch.tensor([4, 3], device=device), torch.tensor([2, 1], device=device))
        step = DecodeStep.at(
            alone, positions[[2, 1]], int(positions.max()) + 1, False, torch.float32
        )
        found.append(decoder.step(positions[:2], step, cache))
        return found, plan.kernels

    (expected, plain), (found, kernels) = logits("torch"), logits("triton")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert {path for _, path in plain.used} == {"torch"}
    wanted = "heads" if preset == "baseline" else "latent"
    assert (wanted, "triton") in kernels.used and {p for _, p in kernels.used} == {"triton"}
