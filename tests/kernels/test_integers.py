"""Products of integers in C against float64, and which weights are laid out for them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.cpu.library import FINE_ROWS, NATIVE, Library, library
from slimwhisper.kernels.linear import Quantized, QuantizedByOneDNN, QuantizedInC, linear, quantize
from tests.support.compiled import THREADS, noise, threads_of
from tests.support.fuzz import examples

AMX = dict.fromkeys(("amx_tile", "amx_int8", "amx_bf16"), True)


@pytest.fixture(params=["wide", "narrow"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """With AVX512-VNNI, where the processor has it, as if there were AMX; and with AVX2."""
    claimed = AMX if request.param == "wide" else {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: claimed)
    if library() is None:
        pytest.skip("kernels/cpu is not compiled here")
    variant = Library(NATIVE, wide=request.param == "wide")
    if not variant.has_integers:
        pytest.skip("products of integers are for x86")
    monkeypatch.setattr(linear_module, "library", lambda *_: variant)
    return variant


def largest_errors(x: Tensor, quantized: Quantized) -> Tensor:
    """[rows, out]: what a product is off by if every input is off by half a step of its row."""
    span = x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)
    compiled = linear_module.library()
    assert compiled is not None
    bits_16 = min(8191, (2**31 - 1) // 128 // x.shape[1])  # without overflow of a sum
    step = span / (65535 if len(x) <= FINE_ROWS else bits_16 if compiled.is_avx2 else 255)
    return 0.51 * step[:, None] * quantized.dequantized().abs().sum(1)


@examples(60)
@given(
    rows=st.sampled_from([1, 2, 3, 4, FINE_ROWS, FINE_ROWS + 1, 13, 16, 95, 97, 200]),
    width=st.sampled_from([1, 16, 33, 51, 70, 200]),
    depth=st.sampled_from([16, 48, 64, 384, 1536, 5120]),
    adds=st.booleans(),
    threads=THREADS,
)
def test_products(rows: int, width: int, depth: int, adds: bool, threads: int) -> None:
    weight, bias = noise(width, depth, seed=1), noise(width, seed=2)
    x, addend = 3 * noise(rows, depth) + 0.5, noise(rows, width, seed=3) if adds else None
    quantized = quantize(weight)
    assert isinstance(quantized, QuantizedInC)
    exact = x.double() @ quantized.dequantized().double().T + bias
    exact = exact if addend is None else exact + addend
    base = None if addend is None else addend[:, None]
    with threads_of(threads):
        found = quantized.multiply(x[:, None], bias, base, False)
        curved = quantized.multiply(x, bias, addend, True)
        strided = linear(x.T.contiguous().T, quantized)
    assert found.shape == (rows, 1, width)
    assert ((found[:, 0] - exact).abs() <= largest_errors(x, quantized) + 1e-4).all()
    torch.testing.assert_close(curved, F.gelu(found[:, 0]), atol=2e-6, rtol=1e-6)
    assert torch.equal(strided, linear(x, quantized))


def test_the_integers_are_those_of_the_weight() -> None:
    weight = noise(37, 96)
    factors = weight.abs().amax(1, keepdim=True) / 127
    quantized = quantize(weight)
    assert torch.equal(quantized.dequantized(), (weight / factors).round() * factors)
    assert isinstance(quantized, QuantizedInC) and quantized.integers.numel() == 48 * 96


def test_inputs_of_one_sign_and_rows_of_their_own_size() -> None:
    """A row does not lose precision to a larger one."""
    weight = noise(40, 64)
    x = torch.stack([noise(64).abs() * 1e4, -noise(64, seed=1).abs() * 1e-4, torch.zeros(64)])
    quantized = quantize(weight)
    for rows in (x, x.repeat(4, 1)):
        exact = rows.double() @ quantized.dequantized().double().T
        assert ((linear(rows, quantized) - exact).abs() <= largest_errors(rows, quantized)).all()
        assert (linear(rows, quantized)[2] == 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [2, FINE_ROWS + 1])
def test_what_is_not_finite_stays_in_its_row(rows: int, value: float) -> None:
    x = noise(rows, 48)
    x[1, 20] = value
    found = linear(x, quantize(noise(20, 48, seed=1)))
    assert found[1].isnan().all() and found[0].isfinite().all()


def test_where_operators_are_watched() -> None:
    """A mode sees PyTorch's operators, with the same weights."""
    quantized, bias, x, addend = quantize(noise(40, 64)), noise(40), noise(3, 64), noise(3, 40)
    with FlopCounterMode(display=False) as counter:
        watched = quantized.multiply(x, bias, addend, True)
    assert counter.get_total_flops() == 2 * 3 * 40 * 64
    torch.testing.assert_close(
        quantized.multiply(x, bias, addend, True), watched, atol=0.01, rtol=0
    )


@pytest.mark.skipif(not linear_module.INT8_PRODUCTS, reason="oneDNN's products are for x86")
@pytest.mark.parametrize("reason", ["depth", "older processor"])
def test_weights_for_onednn(
    compiled: Library, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "older processor":
        monkeypatch.setattr(compiled, "has_integers", False)
    quantized = quantize(noise(40, 40 if reason == "depth" else 64))
    assert isinstance(quantized, QuantizedByOneDNN)


def test_all_processors_have_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows, bit for bit, where they differ in how many sums they have at a time."""
    found = []
    for wide in (True, False):
        variant = Library(NATIVE, wide=wide)
        monkeypatch.setattr(linear_module, "library", lambda *_, v=variant: v)
        quantized = quantize(noise(70, 192))
        found.append(quantized.multiply(noise(3, 192), noise(70), noise(3, 70), False))
    assert torch.equal(*found)


def test_no_sum_overflows(compiled: Library) -> None:
    """Of the largest weights and inputs, where a sum is as large as it can be."""
    for depth in (64, 1536, 5120):
        x = torch.ones(FINE_ROWS + 1, depth)
        assert linear(x, quantize(torch.ones(16, depth))).sub(depth).abs().max() <= depth / 250
