"""Products by matrices, in C and by oneDNN, against float64: any shape, dtype and argument."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.attention import ALL, Latent
from slimwhisper.kernels.cpu.library import (
    AVX2_ROWS,
    BFLOAT16_ROWS,
    DEPTHS,
    PART_DEPTH,
    Library,
    library,
)
from slimwhisper.kernels.linear import (
    PACKED_DEPTH,
    Compiled,
    Packed,
    Plain,
    as_it_is,
    describe_paths,
    linear,
    pack,
    packed_width,
)
from tests.support.compiled import ROWS, THREADS, assert_near, noise, threads_of
from tests.support.fuzz import examples

BFLOAT16 = torch.bfloat16
packs = {t: packed_width(torch.zeros(2, 2, dtype=t)) is not None for t in (torch.float32, BFLOAT16)}
needs_packing = pytest.mark.skipif(not packs[torch.float32], reason="oneDNN packs nothing here")
DEPTHS_OF_16 = st.sampled_from([1, 3, 24, 80, 97, PART_DEPTH // 16 + 2, 320])


@examples(60)
@given(rows=ROWS, width=st.integers(1, 97), sixteens=DEPTHS_OF_16, threads=THREADS)
def test_in_c(any_c: Library, rows: int, width: int, sixteens: int, threads: int) -> None:
    """With and without a bias and an addend; by halves bit for bit the same, and by integers."""
    c, rounds = any_c, any_c.dtype == BFLOAT16
    depth, rows = (16 + 16 * rounds) * sixteens, min(rows, BFLOAT16_ROWS) if rounds else rows
    shapes = ((rows, depth), (width, depth), (width,), (rows, width))
    x, weight, bias, addend = (noise(*s, seed=i, dtype=c.dtype) for i, s in enumerate(shapes))
    exact = x.double() @ weight.double().T
    with threads_of(threads):
        assert_near(c.linear(x, weight), exact)
        found = c.linear(x[:, None], weight, bias, addend[:, None])
        assert_near(found, (exact + bias + addend)[:, None])
        if rounds:
            found = c.linear(x, weight, bias, unrounded=True)
            assert_near(found, exact + bias)
            assert found is not None and found.dtype == torch.float32
            return
        assert_near(c.linear(x.T.contiguous().T, weight), exact)  # x need not be contiguous
        halves = c.linear(x, weight.half(), bias, addend)
        assert halves is not None and found is not None and torch.equal(halves, found[:, 0])
        if rows < 9:
            integers, factors = (40 * weight).round().clamp(-127, 127), bias.abs() / 40
            exact = x.double() @ integers.double().T * factors + bias
            found = c.linear(x, integers.to(torch.int8), bias, None, factors)
            assert_near(found, exact, off=1e-3)


@examples(40)
@given(
    rows=ROWS | st.integers(10, 12),
    sixteens=st.sampled_from([3, 4, 5, 8]),
    transpose=st.booleans(),
    threads=THREADS,
)
def test_of_every_head(
    any_c: Library, rows: int, sixteens: int, transpose: bool, threads: int
) -> None:
    c, depth = any_c, 16 * sixteens
    depth = -(-depth // DEPTHS[c.dtype]) * DEPTHS[c.dtype]
    maps = noise(3, depth, 96, seed=1, dtype=c.dtype)
    x = noise(3, rows, 96 if transpose else depth, dtype=c.dtype).transpose(0, 1)
    letters = "rho,hio->rhi" if transpose else "rhi,hio->rho"
    exact = torch.einsum(letters, x.double(), maps.double())
    with threads_of(threads):
        found = c.multiply_heads(x, maps, transpose)
        assert_near(found, exact)
        if c.dtype == torch.float32:
            halves = c.multiply_heads(x, maps.half(), transpose)
            assert halves is not None and found is not None and torch.equal(halves, found)
        else:
            wide, x = (noise(*s, dtype=BFLOAT16) for s in ((2, 32, PART_DEPTH + 64), (5, 2, 1600)))
            exact = torch.einsum("rho,hio->rhi", x.double(), wide.double())
            assert_near(c.multiply_heads(x, wide, transpose=True), exact)


@needs_packing
@examples(60)
@given(
    shape=st.sampled_from([(1,), (3, 5), (2, 1, 7), (70,)]),
    depth=st.sampled_from([1, 64, PACKED_DEPTH, PACKED_DEPTH + 1, 1280]),
    width=st.sampled_from([9, 40]),
    # no layer has a sum before GELU, which would be rounded twice in bfloat16
    extra=st.sets(st.sampled_from(["bias", "addend", "columns"])) | st.just({"bias", "gelu"}),
    dtype=st.sampled_from([t for t, possible in packs.items() if possible] or [torch.float32]),
)
def test_by_onednn(
    shape: tuple[int, ...], depth: int, width: int, extra: set[str], dtype: torch.dtype
) -> None:
    """An encoder's: in bfloat16 rounded at their end alone, after GELU or the sum."""
    weight = noise(width, depth, seed=1, dtype=dtype)
    x = noise(*shape, depth + 5, dtype=dtype)[..., 3 : depth + 3]  # of a wider tensor
    x = x if "columns" in extra else x.contiguous()
    bias = noise(width, seed=2, dtype=dtype) if "bias" in extra else None
    base = noise(*shape, width, seed=3, dtype=dtype) if "addend" in extra else None
    exact = F.linear(x.double(), weight.double())
    for term in (bias, base):
        exact = exact if term is None else exact + term
    exact = F.gelu(exact) if "gelu" in extra else exact
    packed = pack(weight)
    assert isinstance(packed, Packed)
    assert len(packed.parts) == (1 if dtype == BFLOAT16 else -(-depth // PACKED_DEPTH))
    for kind in (packed, as_it_is(weight)) if dtype == torch.float32 else (packed,):
        assert_near(kind.multiply(x, bias, base, "gelu" in extra), exact, off=1e-3)


@needs_packing
@pytest.mark.parametrize("depth", [384, 1280, 5120])
def test_parts_keep_rounding_within_the_rule(depth: int) -> None:
    """At most twice the error of `F.linear`, which one part alone would pass for wide layers."""
    x, weight = noise(64, depth), noise(512, depth, seed=1)
    truth = x.double() @ weight.double().T
    ours, plain = (
        (y - truth).pow(2).mean() for y in (linear(x, pack(weight)), F.linear(x, weight))
    )
    assert ours <= 4 * plain


def test_what_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = {"avx512_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: claimed)
    for dtype in (torch.float64, torch.float16, BFLOAT16):
        assert isinstance(pack(torch.zeros(2, 2, dtype=dtype)), Plain)
    claimed["avx512_bf16"] = True
    assert packed_width(torch.zeros(2, 2, dtype=BFLOAT16)) == (2 if packs[torch.float32] else None)
    assert isinstance(pack(torch.zeros(2, 2, device="meta")), Plain)
    monkeypatch.setattr(linear_module.platform, "machine", lambda: "aarch64")
    assert isinstance(pack(torch.zeros(2, 2)), Plain)


def test_many_rows_without_avx_512(c: Library) -> None:
    weight = noise(20, 64)
    for kind in (weight, weight.half()):
        assert c.linear(noise(AVX2_ROWS - 1, 64), kind) is not None
        assert (c.linear(noise(AVX2_ROWS, 64), kind) is None) == c.is_avx2
    expected = noise(AVX2_ROWS, 64).double() @ weight.double().T
    assert_near(linear(noise(AVX2_ROWS, 64), weight.half()), expected)


def test_what_c_leaves_to_pytorch(any_c: Library) -> None:
    dtype, unit = any_c.dtype, DEPTHS[any_c.dtype]
    other = torch.float64 if dtype == torch.float32 else torch.float32
    weight, maps = noise(8, 64, dtype=dtype), noise(2, 32, 32, dtype=dtype)
    assert any_c.multiplies(weight)
    assert not any_c.multiplies(noise(64, 8, dtype=dtype).T), "not contiguous"
    assert not any_c.multiplies(noise(8, 3 * unit - 8, dtype=dtype)), "no multiple"
    assert any_c.linear(noise(1, 64, dtype=other), weight) is None
    assert any_c.multiply_heads(noise(1, 2, 24), noise(2, 24, 32)) is None
    assert any_c.multiply_heads(noise(1, 2, 32, dtype=other), maps) is None
    z = Latent(noise(1, 9, 32, dtype=dtype))
    assert any_c.latent(noise(1, 2, 32, dtype=other), z, 1.0, ALL, None) is None
    if dtype == BFLOAT16:
        assert any_c.linear(noise(BFLOAT16_ROWS + 1, 64, dtype=dtype), weight) is None
        assert any_c.multiply_heads(noise(1, 2, 160).to(dtype), noise(2, 160, 32).to(dtype)) is None


@pytest.mark.parametrize("rows", [1, 4, 9, 66])
def test_halves_are_widened_bit_for_bit(c: Library, rows: int) -> None:
    """The smallest of them and the largest."""
    weight, maps = noise(7, 48, seed=1), noise(3, 80, 96, seed=1)
    for matrix in (weight, maps):
        matrix.view(-1)[:5] = torch.tensor([2.0**-24, -3 * 2.0**-24, 65504.0, -0.0, 2.0**-14])
    x, by_head, bias = noise(rows, 48) / 3, noise(rows, 3, 80) / 3, noise(7, seed=2)
    for of in (
        lambda kind: c.linear(x, weight.to(kind), bias),
        lambda kind: c.multiply_heads(by_head, maps.to(kind)),
    ):
        assert torch.equal(of(torch.float16), of(torch.float32))


@needs_packing
def test_what_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(pack(noise(40, 64)), Packed), "for many rows"
    assert isinstance(pack(noise(40, 40), small_batches=True), Packed), "no multiple of 16"
    for dtype in (torch.float32, BFLOAT16):
        kept = pack(noise(40, 64, dtype=dtype), small_batches=True)
        assert isinstance(kept, Compiled) == (library(dtype) is not None), "few rows, read by C"
    monkeypatch.setattr(linear_module, "library", lambda *_: None)
    assert isinstance(pack(noise(40, 64), small_batches=True), Packed), "not compiled"


def test_what_multiplies_here(c: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = {torch.float32: c}
    monkeypatch.setattr(linear_module, "library", lambda dtype=torch.float32: libraries.get(dtype))
    if c.is_avx2:
        assert describe_paths() == "float32 AVX2, int8 AVX2, bfloat16 PyTorch"
    elif c.has_integers:
        assert describe_paths().startswith("float32 AVX-512, int8 AVX")
    libraries.clear()
    assert describe_paths() == "float32 PyTorch, int8 PyTorch, bfloat16 PyTorch"
