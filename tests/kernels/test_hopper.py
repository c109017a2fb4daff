"""The CUDA kernel for Hopper: against its reference on such a GPU; compiled on any machine."""

import itertools

import pytest
import torch
from torch import Tensor

from bench.compilation import SHARED, resources
from slimwhisper.kernels.attention import ALL, Latent, Reads
from slimwhisper.kernels.gpu.driver import CAPABILITY, has_bindings
from slimwhisper.kernels.gpu.hopper import Variant, attend, compile_for, variant_of
from tests.kernels.test_triton_kernels import DEVICE, NAN, WIDTHS, assert_latent, normal
from tests.support.attention import latent_reference
from tests.support.marks import slow

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(
    not (HOPPER and has_bindings()), reason="no GPU of compute capability 9.0, or no cuda-bindings"
)
OFFICIAL = [(width, heads) for width, heads in WIDTHS.items() if width >= 384]
CASES = [  # windows, rows of one, positions, splits
    (1, 1, 1, 1),
    (3, 1, 37, 1),
    (2, 1, 64, 1),
    (2, 2, 777, 3),
    (3, 1, 1500, 2),
    (3, 1, 1500, 1),
]


def attended(
    queries: Tensor, latent: Latent, scale: float, splits: int, reads: Reads = ALL
) -> Tensor:
    variant = variant_of(queries, latent, reads)
    assert variant is not None
    return attend(variant, queries, latent, scale, splits, reads)


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("gain", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("width", "heads"), OFFICIAL)
def test_attention(
    width: int, heads: int, case: tuple[int, int, int, int], dtype: torch.dtype, gain: float
) -> None:
    """Also with extreme scores."""
    windows, group, positions, splits = case
    if width > 768:
        group = 1  # more do not fit
    queries = gain * normal(heads, windows * group, width, seed=0, dtype=dtype).transpose(0, 1)
    latent, scale = normal(windows, positions, width, seed=1, dtype=dtype), width**-0.5
    assert_latent(attended(queries, Latent(latent), scale, splits), queries, latent, scale)


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
@pytest.mark.parametrize("fp8", [False, True], ids=["float16", "float8"])
@pytest.mark.parametrize(("width", "heads"), OFFICIAL)
def test_reads_nothing_else(width: int, heads: int, fp8: bool, paged: bool, splits: int) -> None:
    """Slots or pages in any order, lengths from 0 on, and NaN everywhere else."""
    dtype, page, extent = torch.float16, 16, 448
    counts = [0, 1, 29, 64, 100, 448]
    lengths = torch.tensor(counts, device=DEVICE)
    places = torch.randperm(7 * extent // page, generator=torch.Generator().manual_seed(3))
    table = places[: 6 * extent // page].view(6, -1).to(DEVICE)
    slots = torch.tensor([4, 0, 6, 2, 1, 5], device=DEVICE)
    kept = Latent.allocate((7, extent, width), DEVICE, dtype, fp8=fp8)
    kept.values.view(torch.uint8).fill_(0x7F if fp8 else 0xFF)  # NaN
    if kept.factors is not None:
        kept.factors.fill_(NAN)
    paging = Latent(*(t.view(-1, page, *t.shape[2:]) for t in kept.tensors()))
    clean = torch.zeros(6, extent, width, device=DEVICE, dtype=torch.float64)
    for b, count in enumerate(counts):
        x = normal(count, width, seed=b, dtype=dtype)
        t = torch.arange(count, device=DEVICE)
        store, where = (paging, (table[b, t // page], t % page)) if paged else (kept, (slots[b], t))
        store.write(where, x)
        read = Latent(*(stored[where] for stored in store.tensors()))
        clean[b, :count] = read.dequantized(torch.float32).double()
    queries = normal(heads, 6, width, seed=9, dtype=dtype).transpose(0, 1)
    reads = Reads(slots, lengths)
    if paged:
        reads = Reads(lengths=lengths, block_table=table, extent=extent)
    found = attended(queries, paging if paged else kept, width**-0.5, splits, reads)
    true = latent_reference(queries.double(), Latent(clean), width**-0.5, Reads(lengths=lengths))
    assert (found[0] == 0).all()  # nothing to read
    # weights are rounded to half precision
    torch.testing.assert_close(found.double(), true, rtol=2e-3, atol=2e-3)


def test_what_it_leaves_to_triton() -> None:
    """Odd widths, float32, more queries than a thread has registers for, rows that are not aligned,
    and a bias.
    """
    half = torch.float16
    for width, heads, dtype in (64, 1, half), (128, 2, torch.float32), (1280, 40, half):
        queries, latent = (torch.zeros(1, n, width, dtype=dtype) for n in (heads, 9))
        assert variant_of(queries, Latent(latent), ALL) is None
    queries, wide = torch.zeros(6, 2, 128).half(), torch.zeros(3, 20, 129).half()
    aligned = Latent(wide[..., :128].contiguous())
    for reads in (ALL, Reads(lengths=torch.tensor([5, 0, 20]))):
        assert variant_of(queries, Latent(wide[..., :128]), reads) is None
        assert variant_of(queries, aligned, reads) is not None
    assert variant_of(queries, aligned, Reads(position_bias=torch.zeros(3, 20))) is None


def compiled() -> list[Variant]:
    """Each official width, with one row of a window, and with as many as fit."""
    found = []
    for (width, heads), page, halves in itertools.product(OFFICIAL, (0, 16), range(3)):
        rows = [-(-n * heads // 8) * 8 for n in range(1, 16)]
        cluster = (0, 2, 1)[halves] if page else 2 - halves
        variants = [Variant(width, n, page, halves == 1, halves == 2, cluster) for n in rows]
        fitting = [v for v in variants if v.fits]
        found += {fitting[0], fitting[-1]}
    return sorted(found, key=str)


@pytest.mark.skipif(not has_bindings(), reason="no cuda-bindings")
@pytest.mark.parametrize(
    "variant",
    [*compiled()[::12], *slow(*([v] for i, v in enumerate(compiled()) if i % 12))],
    ids=str,
)
def test_it_compiles(variant: Variant) -> None:
    """With NVRTC, which needs no GPU; without spilling more than a register or two."""
    code = compile_for(variant)
    _, stack = resources(code)
    assert b"attend" in code and stack <= 8 and variant.shared <= SHARED[CAPABILITY]
