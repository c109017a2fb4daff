"""Triton's kernels against their references: on a GPU where there is one, else interpreted."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.kernels.attention import Latent, Reads
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
from tests.support.attention import combine_reference, heads_reference, latent_reference

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# the interpreter's bfloat16 is wrong
DTYPES = [torch.float16, torch.float32, *([torch.bfloat16] if GPU else [])]
NAN = float("nan")
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


def normal(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("heads", [1, 17])
def test_split_latent_reads_only_what_it_may(heads: int, splits: int, dtype: torch.dtype) -> None:
    """Slots in any order, lengths from 0 on, strides, and NaN everywhere else."""
    width, group = 64, 2
    lengths = torch.tensor([0, 1, 29, 64], device=DEVICE)
    slots = torch.tensor([4, 0, 6, 2], device=DEVICE)
    wide = torch.full((7, 70, 2 * width), NAN, device=DEVICE, dtype=dtype)
    latent = wide[:, :, :width]
    clean = torch.zeros(7, 70, width, device=DEVICE, dtype=dtype)
    for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
        clean[slot, :length] = normal(length, width, seed=slot, dtype=dtype)
        latent[slot, :length] = clean[slot, :length]
    queries = normal(heads, 4 * group, width, seed=9, dtype=dtype).transpose(0, 1)
    configuration = shape_of("latent", dtype, width, group * heads)
    reads = Reads(*torch.stack((slots, lengths), dim=1).unbind(1))  # strided, as columns are
    found = split_latent(queries, latent, 0.125, configuration, splits, reads)
    plain = latent_reference(queries, Latent(clean), 0.125, reads)
    true = latent_reference(queries.double(), Latent(clean.double()), 0.125, reads)
    assert (found[:group] == 0).all()  # nothing to read
    assert_close(found, plain, true)


@pytest.mark.parametrize("kernel", ["latent", "heads"])
@pytest.mark.parametrize(("tokens", "splits"), [(2, 1), (7, 3)])
def test_each_token_of_a_step_reads_up_to_itself(tokens: int, splits: int, kernel: str) -> None:
    """Texts of different lengths, read once for all their new tokens; NaN behind the last one.

    Some parts have nothing for a text's first tokens, and a text may be as long as it can be.
    """
    dtype, heads, length = torch.float32, 3, 70
    first = torch.tensor([1, 62, 12], device=DEVICE)
    lengths = (first[:, None] + torch.arange(tokens, device=DEVICE)).clamp(max=66)
    slots = torch.tensor([4, 0, 2], device=DEVICE)
    reads = Reads(slots, lengths.flatten())
    alone = Reads(slots.repeat_interleave(tokens), lengths.flatten())  # each token by itself
    queries = normal(heads, 3 * tokens, 64, seed=9, dtype=dtype).transpose(0, 1)
    kept = normal(2, 5, heads, length, 64, seed=1, dtype=dtype)
    for slot, end in zip(slots.tolist(), lengths[:, -1].tolist(), strict=True):
        kept[:, slot, :, end:] = NAN
    latent = Latent(kept[0, :, 0])
    if kernel == "heads":
        shape = shape_of(kernel, dtype, 64, tokens)
        found = split_heads(queries, *kept, shape, splits, reads)
        true = heads_reference(queries.double(), *kept.double(), alone)
        plain = heads_reference(queries, *kept, reads)
    else:
        shape = shape_of(kernel, dtype, 64, tokens * heads)
        found = split_latent(queries, latent.values, 0.125, shape, splits, reads)
        true = latent_reference(queries.double(), Latent(latent.values.double()), 0.125, alone)
        plain = latent_reference(queries, latent, 0.125, reads)
    assert_close(found, plain, true)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("kernel", ["latent", "heads"])
def test_texts_by_pages(kernel: str, splits: int) -> None:
    """Pages of 16 positions, in any order; NaN wherever nothing may be read."""
    dtype = torch.float32
    lengths = torch.tensor([0, 1, 29, 64], device=DEVICE)
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(22, generator=generator)[:20].view(4, 5).to(DEVICE)
    for row, length in enumerate(lengths.tolist()):
        table[row, -(-length // 16) :] = 2**40  # never looked at
    own = normal(2, 4, 3, 70, 64, seed=1, dtype=dtype)
    pages = torch.full((2, 22, 3, 16, 64), NAN, device=DEVICE, dtype=dtype)
    for row, length in enumerate(lengths.tolist()):
        for t in range(length):
            pages[:, table[row, t // 16], :, t % 16] = own[:, row, :, t]
    queries = normal(4, 3, 64, seed=9, dtype=dtype)
    reads, plain = Reads(lengths=lengths, block_table=table, extent=70), Reads(lengths=lengths)
    if kernel == "heads":
        found = split_heads(queries, *pages, shape_of("heads", dtype, 64, 1), splits, reads)
        expected = heads_reference(queries, *own, plain)
    else:
        kept, configuration = pages[0, :, 0], shape_of("latent", dtype, 64, 3)
        found = split_latent(queries, kept, 0.2, configuration, splits, reads)
        expected = latent_reference(queries, Latent(own[0, :, 0]), 0.2, plain)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_bias_for_each_position(splits: int) -> None:
    """Of a slot, whoever reads it: as if a position stood there several times."""
    dtype = torch.float32
    counts = torch.tensor([[1, 3, 2], [2, 1, 5], [4, 4, 4]], device=DEVICE).repeat(1, 12)
    slots = torch.tensor([2, 0], device=DEVICE)
    latent = Latent(normal(3, 36, 64, seed=1, dtype=dtype))
    queries = normal(4, 3, 64, seed=9, dtype=dtype)
    bias = torch.full((3, 40), NAN, device=DEVICE)[:, :36]
    bias[slots] = counts[slots].float().log()
    reads, shape = Reads(slots, position_bias=bias), shape_of("latent", dtype, 64, 6)
    found = split_latent(queries, latent.values, 0.125, shape, splits, reads)
    expected = []
    for window, slot in enumerate(slots.tolist()):
        repeated = latent[slot : slot + 1][
            :, torch.arange(36).repeat_interleave(counts[slot].cpu())
        ]
        asked = queries[2 * window : 2 * window + 2]
        expected.append(latent_reference(asked.double(), repeated, 0.125))
    error = 1e-5
    torch.testing.assert_close(found.double(), torch.cat(expected), rtol=error, atol=error)
    plain = latent_reference(queries, latent, 0.125, reads)
    torch.testing.assert_close(found, plain, rtol=error, atol=error)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES[:2], (2, 17, 40, 2)], ids=str)
def test_split_heads(case: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    windows, group, positions, splits = case
    queries = normal(windows * group, 3, 64, seed=0, dtype=dtype)
    keys, values = (normal(windows, 3, positions, 64, seed=s, dtype=dtype) for s in (1, 2))
    configuration = shape_of("heads", dtype, 64, group)
    found = split_heads(queries, keys, values, configuration, splits)
    true = heads_reference(queries.double(), keys.double(), values.double())
    by_head = queries.view(windows, group, 3, 64).transpose(1, 2)
    scores = (by_head @ keys.transpose(2, 3) * 0.125).float().softmax(dim=-1).to(dtype)
    plain = (scores @ values).transpose(1, 2).reshape(queries.shape)
    assert_close(found, plain, true)


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
    expected = combine_reference(parts, torch.empty(rows, heads, width, device=DEVICE))
    out = torch.empty(rows, heads, width, device=DEVICE)
    if mapped:
        maps = normal(heads, 16, width, seed=3, dtype=torch.float32)
        expected = torch.einsum("nhd,hwd->nhw", expected, maps)
        found = combine_and_map(parts, out, maps)
    else:
        found = combine(parts, out)
    assert (found[0, 0] == 0).all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


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
