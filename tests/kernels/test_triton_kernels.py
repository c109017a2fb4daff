"""Triton's kernels against their references: on a GPU where there is one, else interpreted."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.kernels.attention import CacheWrite, Latent, add_norm
from slimwhisper.kernels.configurations import (
    MAX_SPLITS,
    Configuration,
    TritonDevice,
    choose_splits,
    configurations,
    find_configuration,
)
from slimwhisper.kernels.gpu.back_ends import ByTriton
from slimwhisper.kernels.gpu.combine import MAX_MAPPED_SPLITS, PartialSums, combine, combine_and_map
from slimwhisper.kernels.gpu.heads import split_heads
from slimwhisper.kernels.gpu.latent import split_latent
from slimwhisper.kernels.gpu.norm import add_norm_by_triton, e4m3_of
from tests.support.attention import NAN, SEEDS, latent_reference, make_call
from tests.support.fuzz import examples

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# the interpreter's bfloat16 is wrong
DTYPES = [torch.float16, torch.float32, *([torch.bfloat16] if GPU else [])]
HOPPER, AMPERE, ADA = (
    TritonDevice(shared, 100, capability)
    for shared, capability in ((232_448, 90), (166_912, 80), (101_376, 89))
)
WIDTHS = {64: 1, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 20}  # d: heads


@pytest.fixture(autouse=True)
def fresh_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten, or reads before writing, is seen."""
    plain = torch.empty

    def filled(*args: object, **kwargs: object) -> Tensor:
        return plain(*args, **kwargs).fill_(NAN)

    monkeypatch.setattr(torch, "empty", filled)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(DEVICE, dtype)


def shape_of(kernel: str, dtype: torch.dtype, width: int, queries: int) -> Configuration:
    found = find_configuration(kernel, str(dtype)[6:], width, queries, HOPPER)
    assert found is not None
    return found


def assert_close(found: Tensor, plain: Tensor, true: Tensor, more: float = 0) -> None:
    """At most twice PyTorch's error, flash-attention's rule; and FlashMLA's cosine distance."""
    error, allowed = (found - true).abs().max(), 2 * (plain - true).abs().max()
    assert torch.isfinite(found).all()
    assert error <= allowed + 1e-6 + more, (error, allowed, more)
    a, b = found.double().flatten(), true.flatten()
    if b.abs().max() > 0:
        distance = 1 - 2 * (a @ b) / (a @ a + b @ b)
        assert distance < 5e-6, distance


def assert_latent(found: Tensor, queries: Tensor, latent: Tensor, scale: float) -> None:
    """As close to the true attention as PyTorch in the dtype itself: latent [B, T, d]."""
    true = latent_reference(queries.double(), Latent(latent.double()), scale)
    grouped = queries.reshape(len(latent), -1, latent.shape[-1])
    scores = grouped @ latent.transpose(1, 2) * scale
    plain = scores.float().softmax(dim=-1).to(latent.dtype) @ latent
    # the kernel rounds a score once more than PyTorch: to base 2
    largest = (grouped.double() @ latent.double().transpose(1, 2)).abs().max() * scale
    assert_close(found, plain.view(queries.shape), true, 2**-24 * float(largest))


# windows, rows of one, positions, splits
CASES = [(1, 1, 1, 1), (3, 1, 37, 1), (2, 2, 53, 3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("width", "gain"), [(64, 1), (64, 100), (384, 1), pytest.param(1280, 1, marks=pytest.mark.slow)]
)
def test_split_latent(
    width: int, gain: float, case: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    """Also with extreme scores."""
    windows, group, positions, splits = case
    heads = WIDTHS[width]
    queries = gain * normal(windows * group, heads, width, seed=0, dtype=dtype)
    latent = normal(windows, positions, width, seed=1, dtype=dtype)
    configuration = shape_of("latent", dtype, width, group * heads)
    scale = 2 * width**-0.5
    found = split_latent(queries, latent, scale, configuration, splits)
    assert_latent(found, queries, latent, scale)


@pytest.mark.parametrize("latent", [True, False])
@examples(18)
@given(seed=SEEDS, dtype=st.sampled_from(DTYPES), splits=st.sampled_from([1, 3]))
def test_every_way_to_read(latent: bool, seed: int, dtype: torch.dtype, splits: int) -> None:
    """Some windows have nothing to read, and some of the others' parts."""
    kinds = {"strides": (1, 2), "latent": latent, "heads": (1, 3)}
    call = make_call(seed, dtype, [64], (1, 129), **kinds, device=DEVICE)
    (rows, heads, _), windows = call.queries.shape, call.own.shape[1]
    if call.latent is not None:
        shape, latent = shape_of("latent", dtype, 64, rows // windows * heads), call.latent.values
        found = split_latent(call.queries, latent, 0.125, shape, splits, call.reads)
    else:
        shape, operands = shape_of("heads", dtype, 64, rows // windows), (call.keys, call.values)
        found = split_heads(call.queries, *operands, shape, splits, call.reads)
    assert_close(found, call.expected(dtype), call.expected(torch.float64))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("splits", [2, MAX_MAPPED_SPLITS, MAX_MAPPED_SPLITS + 3])
def test_combine(splits: int, mapped: bool) -> None:
    """Parts without a position weigh nothing, whatever stands in them; with the heads' maps by one
    kernel, or of many parts by two.
    """
    rows, heads, width = 3, 5, 64 if mapped else 1280
    sums = normal(rows * heads, splits, width, seed=0, dtype=torch.float32)
    best = normal(rows * heads, splits, seed=1, dtype=torch.float32) * 50
    weights = normal(rows * heads, splits, seed=2, dtype=torch.float32).abs() + 1
    empty = torch.rand(best.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE) < 0.4
    empty[0] = True
    weights[empty], best[empty], sums[empty] = 0, float("-inf"), NAN
    parts = PartialSums(sums, torch.stack([best, weights], dim=-1))
    factors = torch.exp2(best.double())
    totals = (factors[:, None] @ sums.double().nan_to_num())[:, 0]
    expected = totals / (factors * weights).sum(1, keepdim=True)
    expected = expected.nan_to_num().view(rows, heads, width)
    out = torch.empty(rows, heads, width, device=DEVICE)
    if mapped:
        maps = normal(heads, 16, width, seed=3, dtype=torch.float32)
        expected = torch.einsum("nhd,hwd->nhw", expected, maps.double())
        found = combine_and_map(parts, out, maps)
    else:
        found = combine(parts, out)
    assert (found[0, 0] == 0).all()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("programs", "tiles", "part", "splits"),
    [
        (64, 24, 0, 2),
        (132, 24, 0, 1),
        (1, 24, 0, 24),
        (1, 94, 0, 47),  # 48 parts would have 2 tiles each as well
        (1, 3, 0, 3),  # no more than there are tiles
        (5, 0, 0, 1),
        (112, 94, 0, 7),  # fills 132 processors, but writes what costs 42 tiles
        (112, 94, 5, 1),
        (56, 94, 5, 2),
        (1, 94, 5, 47),  # one window alone has processors to spare
    ],
)
def test_splits_fill_the_processors(programs: int, tiles: int, part: int, splits: int) -> None:
    """Where partial sums are worth their bytes."""
    assert choose_splits(programs, tiles, 132, part) == splits
    for processors in (1, 40, 300):
        most = max(1, min(tiles, MAX_SPLITS))
        assert 1 <= choose_splits(programs, tiles, processors, part) <= most


def test_the_dispatch_counts_partial_sums() -> None:
    """20 queries of 1,280 columns in float32 are 5 tiles of 16 positions, written and read."""
    c = find_configuration("latent", "float16", 1280, 20, HOPPER)
    assert c and c.block_t == 16
    kernels, windows = ByTriton(HOPPER, torch.float16), 85 * HOPPER.programs(c)  # 85 % run at once
    assert kernels.splits(c, windows, count=20, positions=1500, width=2) == 1
    assert kernels.splits(c, windows, count=1, positions=1500, width=2) > 1


def test_a_processor_holds_what_its_memory_and_registers_allow() -> None:
    c = replace(shape_of("latent", torch.float16, 64, 16), warps=8, shared=50_000, registers=32)
    assert HOPPER.programs(c) == 4  # by shared memory
    assert HOPPER.programs(replace(c, registers=128)) == 2
    assert HOPPER.programs(replace(c, shared=1_000)) == 8  # by registers
    assert ADA.programs(replace(c, shared=101_376)) == 1
    assert AMPERE.programs(replace(c, shared=200_000)) == 1  # not launched there


def test_the_table_has_the_official_widths() -> None:
    """On every device since 8.0 in half precision; float32 needs the memory of 8.0 or 9.0."""
    for dtype, width in itertools.product(("float16", "bfloat16", "float32"), WIDTHS):
        for device in (HOPPER, AMPERE) if dtype == "float32" else (HOPPER, AMPERE, ADA):
            for queries in (1, WIDTHS[width], 5 * WIDTHS[width]):
                assert find_configuration("latent", dtype, width, queries, device), (dtype, width)
            assert find_configuration("heads", dtype, 64, 5, device)
    assert find_configuration("latent", "float16", 100, 4, HOPPER) is None
    for c in configurations():
        assert c.block_q >= 16 and c.block_t >= 16  # the least that tensor cores take
        assert c.width % c.block_d == 0 and c.block_d & (c.block_d - 1) == 0
        assert c.slices in (1, c.warps) and c.shared > 0 and 0 < c.registers <= 255


# Add and norm in one launch: the same as PyTorch's operators, and the row is in its cache


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
    out = torch.zeros(2048, dtype=torch.uint8, device=DEVICE)
    convert[(1,)](padded, out, COUNT=2048)
    expected = padded.to(torch.float8_e4m3fn).view(torch.uint8)
    same = (out == expected) | ((out & 0x7F == 0) & (expected & 0x7F == 0))
    assert same.all(), padded[~same]
