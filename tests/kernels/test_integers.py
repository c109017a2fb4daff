"""Products of integers in C against float64, and which weights are laid out for them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.cpu.library import FINE_ROWS, NATIVE, Library, library
from slimwhisper.kernels.linear import Quantized, QuantizedByOneDNN, QuantizedInC, linear, quantize

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


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def largest_errors(x: Tensor, quantized: Quantized) -> Tensor:
    """[rows, out]: what a product is off by if every input is off by half a step of its row."""
    span = x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)
    compiled = linear_module.library()
    assert compiled is not None
    bits_16 = min(8191, (2**31 - 1) // 128 // x.shape[1])  # without overflow of a sum
    step = span / (65535 if len(x) <= FINE_ROWS else bits_16 if compiled.is_avx2 else 255)
    return 0.51 * step[:, None] * quantized.dequantized().abs().sum(1)


@pytest.mark.parametrize(
    ("width", "depth"), [(1, 16), (16, 48), (51, 384), (70, 1536), (200, 64), (33, 5120)]
)
def test_products(threads: int, width: int, depth: int) -> None:
    weight, bias = noise(width, depth, seed=1), noise(width, seed=2)
    for rows in (1, 2, 3, 4, FINE_ROWS, FINE_ROWS + 1, 13, 16, 95, 97, 200):
        assert_product(weight, bias, rows)


def assert_product(weight: Tensor, bias: Tensor, rows: int) -> None:
    width, depth = weight.shape
    x, addend = 3 * noise(rows, depth) + 0.5, noise(rows, width, seed=3)
    quantized = quantize(weight)
    assert isinstance(quantized, QuantizedInC)
    exact = x.double() @ quantized.dequantized().double().T + bias
    worst = largest_errors(x, quantized) + 1e-4
    for added in (None, addend):
        expected = exact if added is None else exact + added
        found = linear(
            x[:, None], quantized, bias, False, None if added is None else added[:, None]
        )
        assert found.shape == (rows, 1, width)
        assert ((found[:, 0] - expected).abs() <= worst).all()
        curved = linear(x, quantized, bias, gelu=True, addend=added)
        torch.testing.assert_close(curved, F.gelu(found[:, 0]), atol=2e-6, rtol=1e-6)
    strided = linear(x.T.contiguous().T, quantized)
    torch.testing.assert_close(strided, linear(x, quantized), atol=0, rtol=0)


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


def test_linear_takes_it(compiled: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of rows, with no weights of oneDNN."""
    calls, run = [], compiled.functions["multiply_integers"]
    spy = lambda *a: (calls.append(a), run(*a))  # noqa: E731
    monkeypatch.setitem(compiled.functions, "multiply_integers", spy)
    for rows in (1, FINE_ROWS, FINE_ROWS + 1, 300):
        linear(noise(rows, 64), quantize(noise(40, 64)))
    assert len(calls) == 4


def test_where_operators_are_watched() -> None:
    """A mode sees PyTorch's operators, with the same weights."""
    quantized, bias, x, addend = quantize(noise(40, 64)), noise(40), noise(3, 64), noise(3, 40)
    with FlopCounterMode(display=False) as counter:
        watched = linear(x, quantized, bias, gelu=True, addend=addend)
    assert counter.get_total_flops() == 2 * 3 * 40 * 64
    torch.testing.assert_close(
        linear(x, quantized, bias, gelu=True, addend=addend), watched, atol=0.01, rtol=0
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
        found.append(linear(noise(3, 192), quantized, noise(70), addend=noise(3, 70)))
    assert torch.equal(*found)


def test_no_sum_overflows(compiled: Library) -> None:
    """Of the largest weights and inputs, where a sum is as large as it can be."""
    for depth in (64, 1536, 5120):
        x = torch.ones(FINE_ROWS + 1, depth)
        assert linear(x, quantize(torch.ones(16, depth))).sub(depth).abs().max() <= depth / 250
