"""Products by weights in int8 against float64, in every way that there is, and which is taken."""

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
# with AVX512-VNNI, where the processor has it, as if there were AMX; with AVX2; by oneDNN without
# AVX512-VNNI; and as on ARM, where the input is not rounded
KINDS = {
    "wide": QuantizedInC,
    "narrow": QuantizedInC,
    "onednn": QuantizedByOneDNN,
    "plain": Quantized,
}


@pytest.fixture(params=KINDS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMX if name == "wide" else {})
    if library() is None:
        pytest.skip("kernels/cpu is not compiled here")
    if name == "onednn" and not linear_module.INT8_PRODUCTS:
        pytest.skip("oneDNN's products are for x86")
    variant = Library(NATIVE, wide=name == "wide")
    if KINDS[name] is QuantizedInC and not variant.has_integers:
        pytest.skip("products of integers are for x86")
    variant.has_integers = KINDS[name] is QuantizedInC
    monkeypatch.setattr(linear_module, "library", lambda *_: variant)
    if name == "plain":
        monkeypatch.setattr(linear_module, "INT8_PRODUCTS", False)
    return name


def rounded(weight: Tensor) -> Tensor:
    """What a weight becomes: by a factor for each output, whole numbers up to 127."""
    factors = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
    return (weight / factors).round() * factors


def largest_errors(x: Tensor, weight: Tensor, kind: str) -> Tensor:
    """[rows, out]: what a product is off by if every input is off by half a step of its row, and
    sums by their rounding.
    """
    span = x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)
    bits_16 = min(8191, (2**31 - 1) // 128 // x.shape[1])  # without overflow of a sum
    steps = {"wide": 255, "narrow": bits_16, "onednn": 127, "plain": float("inf")}[kind]
    if kind in ("wide", "narrow") and len(x) <= FINE_ROWS:
        steps = 65535
    sums = x.abs() @ weight.abs().T
    return 0.51 * (span / steps)[:, None] * weight.abs().sum(1) + 2e-6 * sums + 1e-4


@examples(60)
@given(
    rows=st.sampled_from([1, 2, 3, 4, FINE_ROWS, FINE_ROWS + 1, 13, 16, 95, 97, 200]),
    width=st.sampled_from([1, 16, 33, 51, 70, 200]),
    depth=st.sampled_from([16, 48, 64, 384, 1536, 5120]),
    adds=st.booleans(),
    threads=THREADS,
)
def test_products(kind: str, rows: int, width: int, depth: int, adds: bool, threads: int) -> None:
    """Of rows of the weight that are zeros, large and small, too."""
    weight, bias = noise(width, depth, seed=1), noise(width, seed=2)
    weight *= torch.tensor([1, 0, 1e5, 1, 1e-5]).repeat(width)[:width, None]
    x, addend = 3 * noise(rows, depth) + 0.5, noise(rows, width, seed=3) if adds else None
    quantized = quantize(weight)
    assert type(quantized) is KINDS[kind]
    if kind != "onednn":
        assert torch.equal(quantized.dequantized(), rounded(weight))
    exact = x.double() @ rounded(weight).double().T + bias
    exact = exact if addend is None else exact + addend
    base = None if addend is None else addend[:, None]
    with threads_of(threads):
        found = quantized.multiply(x[:, None], bias, base, False)
        curved = quantized.multiply(x, bias, addend, True)
        strided = linear(x.T.contiguous().T, quantized)
    assert found.shape == (rows, 1, width)
    assert ((found[:, 0] - exact).abs() <= largest_errors(x, rounded(weight), kind)).all()
    torch.testing.assert_close(curved, F.gelu(found[:, 0]), atol=2e-5, rtol=1e-6)
    assert torch.equal(strided, linear(x, quantized))


def test_inputs_of_one_sign_and_rows_of_their_own_size(kind: str) -> None:
    """A row does not lose precision to a larger one."""
    weight = noise(40, 64)
    x = torch.stack([noise(64).abs() * 1e4, -noise(64, seed=1).abs() * 1e-4, torch.zeros(64)])
    for rows in (x, x.repeat(4, 1)):
        found, exact = linear(rows, quantize(weight)), rows.double() @ rounded(weight).double().T
        assert ((found - exact).abs() <= largest_errors(rows, rounded(weight), kind)).all()
        assert (found[2] == 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [2, FINE_ROWS + 1])
def test_what_is_not_finite_stays_in_its_row(kind: str, rows: int, value: float) -> None:
    """Where inputs are rounded, the row becomes NaN."""
    x = noise(rows, 48)
    x[1, 20] = value
    found = linear(x, quantize(noise(20, 48, seed=1)))
    lost = ~found[1].isfinite() if kind == "plain" else found[1].isnan()
    assert lost.all() and found[0].isfinite().all()


def test_where_operators_are_watched() -> None:
    """A mode sees PyTorch's operators, with the same weights."""
    quantized, bias, x, addend = quantize(noise(40, 64)), noise(40), noise(3, 64), noise(3, 40)
    with FlopCounterMode(display=False) as counter:
        watched = quantized.multiply(x, bias, addend, True)
    assert counter.get_total_flops() == 2 * 3 * 40 * 64 or type(quantized) is QuantizedByOneDNN
    found = quantized.multiply(x, bias, addend, True)
    torch.testing.assert_close(found, watched, atol=0.01, rtol=0)


def test_depths_that_c_leaves(kind: str) -> None:
    """To oneDNN, where it has products of integers."""
    found, x, weight = quantize(noise(40, 24)), noise(3, 24), rounded(noise(40, 24))
    assert type(found) is (QuantizedByOneDNN if linear_module.INT8_PRODUCTS else Quantized)
    exact = x.double() @ weight.double().T
    assert ((linear(x, found) - exact).abs() <= largest_errors(x, weight, "onednn")).all()


def test_all_processors_have_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows, bit for bit, where they differ in how many sums they have at a time."""
    found = []
    for wide in (True, False):
        variant = Library(NATIVE, wide=wide)
        monkeypatch.setattr(linear_module, "library", lambda *_, v=variant: v)
        quantized = quantize(noise(70, 192))
        found.append(quantized.multiply(noise(3, 192), noise(70), noise(3, 70), False))
    assert torch.equal(*found)


def test_no_sum_overflows() -> None:
    """Of the largest weights and inputs, where a sum is as large as it can be."""
    for depth in (64, 1536, 5120):
        x = torch.ones(FINE_ROWS + 1, depth)
        assert linear(x, quantize(torch.ones(16, depth))).sub(depth).abs().max() <= depth / 250
