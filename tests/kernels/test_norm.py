"""Add and norm in one launch: the same as PyTorch's operators, and the row is in its cache."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.attention import CacheWrite, Latent, add_norm

pytest.importorskip("triton")

from slimwhisper.kernels.gpu.norm import add_norm_by_triton, e4m3_of
from tests.kernels.test_triton_kernels import DEVICE, DTYPES, normal


def affine(width: int) -> tuple[Tensor, Tensor]:
    return 1 + 0.3 * normal(width, seed=8), 0.2 * normal(width, seed=9)


def cache_write(width: int, rows: int, dtype: torch.dtype, fp8: bool) -> CacheWrite:
    latent = Latent.allocate((rows + 2, 5, width), DEVICE, dtype, fp8)
    for tensor in latent.tensors():
        tensor.view(torch.uint8).fill_(0x7F)  # NaN, or nearly: it must stay where nothing is stored
    ids = torch.randperm(rows + 2, generator=torch.Generator().manual_seed(1))[:rows].to(DEVICE)
    positions = torch.arange(rows, device=DEVICE) % 5
    column_scales = offset = None
    if fp8:
        column_scales, offset = affine(width)[0].abs().to(dtype), affine(width)[1].to(dtype)
    return CacheWrite(latent, ids, positions, column_scales, offset)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (5, 384), (2, 3, 1280)], ids=str)
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("shifts", [True, False])
def test_sum_and_norm(shape: tuple[int, ...], dtype: torch.dtype, adds: bool, shifts: bool) -> None:
    x = 3 * normal(*shape, dtype=dtype) + 1
    addend = normal(*shape, seed=1, dtype=dtype) if adds else None
    weight, bias = affine(shape[-1])
    shift = normal(shape[-1], seed=2) if shifts else None
    total, normed = add_norm_by_triton(x, addend, weight, bias, None, shift)
    expected_total, expected = add_norm(x, addend, weight, bias, None, shift)
    assert torch.equal(total, expected_total)  # the stream is rounded once, as before
    exact = expected_total.double() + (0 if shift is None else shift.double())
    exact = F.layer_norm(exact, exact.shape[-1:], weight.double(), bias.double())
    own = (expected.double() - exact).abs().max()
    rounding = exact.abs().max() * torch.finfo(torch.float32).eps
    assert (normed.double() - exact).abs().max() <= 2 * own + rounding


def test_rows_far_from_zero() -> None:
    """The mean is taken off before squares are summed."""
    x = 1e4 + normal(3, 384)
    weight, bias = affine(384)
    expected = F.layer_norm(x.double(), (384,), weight.double(), bias.double())
    found = add_norm_by_triton(x, None, weight, bias)[1]
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "float8"])
@pytest.mark.parametrize("width", [64, 384])
def test_the_row_is_stored_in_the_cache(width: int, dtype: torch.dtype, fp8: bool) -> None:
    x, addend = normal(6, width, dtype=dtype), normal(6, width, seed=1, dtype=dtype)
    ours, theirs = (cache_write(width, 6, dtype, fp8) for _ in range(2))
    _, normed = add_norm_by_triton(x, addend, *affine(width), ours)
    theirs.write(normed)
    for found, expected in zip(ours.latent.tensors(), theirs.latent.tensors(), strict=True):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_float8_is_rounded_as_pytorch_does() -> None:
    """Every e4m3 value, what lies half way between two, and their neighbours."""
    import triton
    import triton.language as tl

    @triton.jit
    def convert(values, out, COUNT: tl.constexpr):
        at = tl.arange(0, COUNT)
        tl.store(out + at, e4m3_of(tl.load(values + at)))

    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()].sort().values
    halves = (every[1:] + every[:-1]) / 2
    values = torch.cat([every, halves])
    values = torch.cat([values, values.nextafter(values + 1), values.nextafter(values - 1)])
    values = values[values.abs() <= 448]
    padded = F.pad(values, (0, 2048 - len(values))).to(DEVICE)
    out = torch.empty(2048, dtype=torch.uint8, device=DEVICE)
    convert[(1,)](padded, out, COUNT=2048)
    expected = padded.to(torch.float8_e4m3fn).view(torch.uint8)
    same = (out == expected) | ((out & 0x7F == 0) & (expected & 0x7F == 0))
    assert same.all(), padded[~same]
