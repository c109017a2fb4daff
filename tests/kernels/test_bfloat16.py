"""The functions in C for bfloat16 against float64, and that a model in bfloat16 uses them."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.attention import Latent
from slimwhisper.kernels.cpu import functions
from slimwhisper.kernels.cpu import library as module
from slimwhisper.kernels.cpu.library import BFLOAT16_ROWS, NATIVE, PART_DEPTH, Library, library
from slimwhisper.kernels.linear import Compiled, Packed, linear, pack, packed_width
from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.reference import whisper_model
from tests.support.windows import decode, random_model, windows

CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16
compiled = library(BFLOAT16)
packs = packed_width(torch.zeros(2, 2, dtype=BFLOAT16)) is not None
pytestmark = pytest.mark.skipif(compiled is None, reason="no compiled kernels, or no AVX512-BF16")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BFLOAT16)


@pytest.fixture
def c() -> Library:
    assert compiled is not None
    return compiled


def assert_rounded_once(found: Tensor | None, exact: Tensor) -> None:
    """Within a rounding to bfloat16, and what sums in float32 are off by."""
    assert found is not None and found.dtype == BFLOAT16
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=2**-8)


@pytest.mark.skipif(not packs, reason="oneDNN packs no weights here")
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(("width", "depth"), [(20, 96), (384, 1280), (9, 5120)])
def test_packed_products(width: int, depth: int, gelu: bool) -> None:
    """An encoder's: rounded at their end alone, after GELU."""
    x, weight, bias = noise(70, depth), noise(width, depth, seed=1), noise(width, seed=2)
    packed, exact = pack(weight), x.double() @ weight.double().T + bias
    assert isinstance(packed, Packed) and len(packed.parts) == 1
    assert_rounded_once(linear(x, packed, bias, gelu), F.gelu(exact) if gelu else exact)
    addend = noise(70, width, seed=3)
    assert_rounded_once(linear(x, packed, bias, addend=addend), exact + addend)
    kept = pack(weight, small_batches=True)
    assert isinstance(kept, Compiled) and kept.matrix is weight, "a decoder's are read by C"


def test_products_of_a_heads_many_values(c: Library) -> None:
    maps, x = noise(2, 32, PART_DEPTH + 64, seed=1), noise(5, 2, PART_DEPTH + 64)
    exact = torch.einsum("rho,hio->rhi", x.double(), maps.double())
    assert_rounded_once(c.multiply_heads(x, maps, transpose=True), exact)


def test_what_it_leaves_to_pytorch(c: Library) -> None:
    weight, maps, z = noise(8, 64), noise(2, 32, 32), Latent(noise(1, 9, 32))
    assert c.linear(noise(BFLOAT16_ROWS + 1, 64), weight) is None
    assert not c.multiplies(noise(8, 48)), "no multiple of 32"
    assert c.linear(noise(1, 64).float(), weight) is None
    assert c.multiply_heads(noise(1, 2, 160), noise(2, 160, 32)) is None
    assert c.multiply_heads(noise(1, 2, 32).float(), maps) is None
    assert c.latent(noise(1, 2, 32).float(), z, 1.0) is None


def test_linear_takes_it(monkeypatch: pytest.MonkeyPatch, c: Library) -> None:
    weight, calls, run = noise(40, 64), [], c.functions["multiply_rows"]
    monkeypatch.setitem(c.functions, "multiply_rows", lambda *a: (calls.append(a), run(*a)))
    for rows, expected in ((1, 1), (BFLOAT16_ROWS, 2), (BFLOAT16_ROWS + 1, 2)):
        x = noise(rows, 64, seed=2)
        assert_rounded_once(linear(x, weight), x.double() @ weight.double().T)
        assert len(calls) == expected


def test_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the library of float32 alone."""
    load = functions.ctypes.CDLL

    def older(path: str) -> SimpleNamespace:
        known = load(path)
        every = functions._SIGNATURES | functions._FLOATS | functions._ENCODER_ATTENTION
        wide = (every | functions._X86).keys() - {*functions.NARROW, *functions._INTEGERS}
        names = *(f"{name}_wide" for name in wide), "encoder_rows"
        names += *functions.NARROW, *functions._INTEGERS
        return SimpleNamespace(
            usable=lambda: 2, version=known.version, **{n: getattr(known, n) for n in names}
        )

    monkeypatch.setattr(functions.ctypes, "CDLL", older)
    assert Library(NATIVE).dtype == torch.float32
    with pytest.raises(OSError, match="AVX512-BF16"):
        Library(NATIVE, dtype=BFLOAT16)
    assert module._load.__wrapped__(NATIVE, BFLOAT16)[0] is None


@torch.inference_mode()
def test_an_encoder_keeps_the_rule() -> None:
    """At most twice the error of openai-whisper's in bfloat16, both against float64."""
    dims = tiny_dims(width=128, heads=2, audio_layers=4)
    state = random_state(dims, seed=0)
    mel = torch.randn(2, dims.n_mels, 3000, generator=torch.Generator().manual_seed(0))
    exact = whisper_model(dims, state, torch.float64).encoder(mel.double())
    plain = whisper_model(dims, state).encoder(mel.to(BFLOAT16))
    found = Encoder(state, dims, CPU, BFLOAT16)(mel)
    ours, theirs = ((t.double() - exact).pow(2).mean().sqrt() for t in (found, plain))
    assert ours <= 2 * theirs


@pytest.mark.parametrize(
    ("forms", "kernel"), [(("e", "x"), "latent"), (("kv", "kv"), "heads")], ids=str
)
def test_a_model_uses_it(forms: tuple[str, str], kernel: str) -> None:
    requests = windows(5)
    ours = random_model(forms=forms, dtype=BFLOAT16)
    found = decode(ours, requests, 2)
    used = ours.plan.kernels.used
    assert len(found) == len(requests)
    assert used[kernel, "c"] > 10 * used[kernel, "torch"], "all but long prompts"
