"""Large matrices in int8, on a CPU: what is rounded, by how much, and what still comes out."""

import pytest
import torch

import slimwhisper
from slimwhisper import devices
from slimwhisper.devices import choose_dtype
from slimwhisper.errors import OptionError
from slimwhisper.kernels import blocks as blocks_module
from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.cpu.library import library
from slimwhisper.kernels.linear import Packed, Plain, Quantized, linear, quantize
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.layers import Linear, Source
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.compiled import assert_near, noise
from tests.support.spoken import EXPECTED, SAMPLES

CPU = torch.device("cpu")
DIMS = tiny_dims(width=128, heads=2)


def without_integers_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where they are not compiled."""
    if (compiled := library()) is not None:
        monkeypatch.setattr(compiled, "has_integers", False)


def test_a_product_is_that_of_rounded_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of oneDNN, against the same in float64: weights to 8 bits by output, the input by row, to 7
    without AVX512-VNNI.
    """
    without_integers_in_c(monkeypatch)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    torch.manual_seed(0)
    weight, bias, x = torch.randn(96, 64), torch.randn(96), torch.randn(3, 5, 64) + 0.2
    x *= 10 ** torch.arange(-7.0, 8).view(3, 5, 1)  # a row keeps its precision beside a larger one
    factors = weight.abs().amax(1, keepdim=True).double() / 127
    rounded = (weight / factors).round() * factors
    result = linear(x, quantize(weight), bias)
    step = (x.amax(2) - x.amin(2)) / 127  # of the input's numbers
    exact = x.double() @ rounded.T + bias
    worst = 0.51 * step[..., None] * rounded.abs().sum(1) + 1e-4  # every number off by half a step
    assert ((result - exact).abs() <= worst).all()
    assert (result - exact).abs().max() > 0
    curved = torch.nn.functional.gelu(result)
    close = {"rtol": 1e-6, "atol": 2e-5}
    torch.testing.assert_close(quantize(weight).multiply(x, bias, None, True), curved, **close)
    addend = torch.randn(3, 5, 96)
    torch.testing.assert_close(quantize(weight).multiply(x, bias, addend, False), result + addend)


@pytest.mark.parametrize(("rows", "depth"), [(1, 64), (70, 64), (15, 40)])
def test_without_integer_products(rows: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ARM, in C and in PyTorch: the same integers, and the input is not rounded."""
    without_integers_in_c(monkeypatch)
    monkeypatch.setattr(linear_module, "INT8_PRODUCTS", False)
    weight, bias, x, addend = noise(96, depth), noise(96), noise(rows, depth), noise(rows, 96)
    factors = weight.abs().amax(1, keepdim=True).double() / 127
    exact = x.double() @ ((weight / factors).round() * factors).T + bias
    quantized = quantize(weight)
    assert type(quantized) is Quantized
    assert_near(linear(x, quantized, bias), exact)
    curved = torch.nn.functional.gelu(exact + addend)
    assert_near(quantized.multiply(x, bias, addend, True), curved)


def test_rows_of_zeros_and_huge_rows_are_kept_and_what_is_not_finite() -> None:
    weight = torch.zeros(3, 32)
    weight[1], weight[2] = 1e6, 1e-6
    result = linear(torch.ones(1, 32), quantize(weight))[0]
    assert result.tolist() == pytest.approx([0, 32e6, 32e-6], rel=0.01)
    for value in (float("nan"), float("inf")):
        result = linear(torch.tensor([[1.0, value]]), quantize(torch.ones(3, 2)))
        assert result.shape == (1, 3) and result.isnan().all()


def test_which_matrices_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # without AMX
    state = random_state(DIMS, seed=0)
    encoder = Encoder(state, DIMS, CPU, torch.float32, "int8")
    decoder = Decoder(state, DIMS, CPU, torch.float32, int8=True)
    for block in encoder.blocks:
        assert all(isinstance(one.weight, Quantized) for one in (*block.projections, block.out))
    for block in (*encoder.blocks, *decoder.blocks):
        ((up, down),) = block.mlp.parts
        assert isinstance(up.weight, Quantized) and isinstance(down.weight, Quantized)
    assert isinstance(decoder.head, Quantized)
    assert decoder.embedding.dtype == torch.float32  # what goes in is exact
    source = Source(state, "encoder.blocks.0.attn.query.", CPU, torch.float32)
    assert isinstance(Linear.read(source).weight, Packed | Plain)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("name", ["_reorder_linear_weight", "_linear_pointwise"])
def test_private_operators_of_onednn(name: str) -> None:
    gone = f"torch {torch.__version__} has no mkldnn.{name}: kernels/linear.py must pack otherwise"
    assert hasattr(torch.ops.mkldnn, name), gone


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "PyTorch"])
@pytest.mark.parametrize("amx", [False, True])
def test_the_encoder_is_near(amx: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor; with AMX, its weights are in bfloat16."""
    claimed = torch.cpu.get_capabilities() | {"amx_int8": amx, "amx_bf16": amx}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: claimed)
    if not compiled:
        for user in (blocks_module, linear_module):
            monkeypatch.setattr(user, "library", lambda *_: None)
    state = random_state(DIMS, seed=0)
    mel = torch.randn(1, 80, 3000)
    encoder = Encoder(state, DIMS, CPU, torch.float32, "int8")
    ((_, down),) = encoder.blocks[0].mlp.parts
    assert isinstance(down.weight, Quantized) != amx
    exact, near = Encoder(state, DIMS, CPU, torch.float32)(mel), encoder(mel)
    assert near.dtype == torch.float32
    assert 0 < (near - exact).norm() / exact.norm() < (0.01 if amx else 0.03)


@pytest.mark.slow
def test_the_same_words() -> None:
    """But one: in flight.m4a, float32 gives "one" 0.51 after a time, and "nine" nearly as much."""
    names = [name for name in EXPECTED if name != "three-minutes.ogg"]
    exact, near = (slimwhisper.load_model("digits", "cpu", dtype=t) for t in ("float32", "int8"))
    assert (near.compute_type, exact.compute_type) == ("int8", "float32")
    assert near.dtype == torch.float32
    words = [[m.transcribe(str(SAMPLES / n))["text"].split() for n in names] for m in (exact, near)]
    assert [len(text) for text in words[0]] == [len(text) for text in words[1]]
    pairs = [pair for texts in zip(*words, strict=True) for pair in zip(*texts, strict=True)]
    assert len(pairs) > 50 and {pair for pair in pairs if len(set(pair)) > 1} <= {("one", "nine")}


def test_where_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "INT8_PRODUCTS", False)
    monkeypatch.setattr(devices, "library", lambda: None)
    with pytest.raises(OptionError, match="int8 needs an x86 CPU, or compiled kernels"):
        choose_dtype("int8", CPU)
    monkeypatch.setattr(devices, "library", lambda: True)
    assert choose_dtype("int8", CPU) == torch.float32
    with pytest.raises(OptionError, match="int8 is for CPUs"):
        choose_dtype("int8", torch.device("cuda"))
