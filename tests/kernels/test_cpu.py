"""The functions in C against float64: every shape, every argument, any number of threads."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.attention import Latent, Reads
from slimwhisper.kernels.cpu import library as module
from slimwhisper.kernels.cpu.library import (
    AVX2_ROWS,
    BFLOAT16_ROWS,
    PART_DEPTH,
    Library,
    library,
    why_not_compiled,
)
from slimwhisper.kernels.linear import (
    Compiled,
    Packed,
    describe_paths,
    linear,
    pack,
    packed_width,
    quantize,
)
from slimwhisper.model.model import Model
from tests.support.attention import heads_reference
from tests.support.windows import assert_same, decode, random_model, windows

compiled = library()
needs_library = pytest.mark.skipif(compiled is None, reason="kernels/cpu is not compiled here")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_near(
    found: Tensor | None, exact: Tensor, plain: Tensor | None = None, off: float = 1e-4
) -> None:
    """In float32 as near as its sums are; in bfloat16 with one rounding, or, where operands are
    rounded on the way, with at most twice the error of `plain`, PyTorch's in bfloat16."""
    assert found is not None and found.shape == exact.shape
    if found.dtype == torch.float32:
        torch.testing.assert_close(found.double(), exact, atol=off, rtol=1e-5)
    elif plain is None:
        torch.testing.assert_close(found.double(), exact, atol=off, rtol=2**-8)
    else:
        ours, theirs = ((t.double() - exact).pow(2).mean() for t in (found, plain))
        assert ours <= 4 * theirs


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9, 64, 66])
@pytest.mark.parametrize(
    ("width", "depth"),
    [(1, 16), (7, 48), (51, 384), (96, 1280), (20, 1552), (20, PART_DEPTH + 32), (9, 5120)],
)
def test_products(any_c: Library, threads: int, rows: int, width: int, depth: int) -> None:
    c, rounds = any_c, any_c.dtype == torch.bfloat16
    rows, depth = (min(rows, BFLOAT16_ROWS), -(-depth // 32) * 32) if rounds else (rows, depth)
    x, weight, bias, addend = (
        noise(*shape, seed=seed).to(c.dtype)
        for seed, shape in enumerate(((rows, depth), (width, depth), (width,), (rows, width)))
    )
    exact = x.double() @ weight.double().T
    assert_near(c.linear(x, weight), exact)
    assert_near(
        c.linear(x[:, None], weight, bias, addend[:, None]), (exact + bias + addend)[:, None]
    )
    if rounds:
        found = c.linear(x, weight, bias, unrounded=True)
        assert_near(found, exact + bias)
        assert found is not None and found.dtype == torch.float32
    else:
        assert_near(c.linear(x.T.contiguous().T, weight), exact)  # x need not be contiguous


def test_many_rows_without_avx_512(c: Library) -> None:
    weight = noise(20, 64)
    for kind in (weight, weight.half()):
        assert c.linear(noise(AVX2_ROWS - 1, 64), kind) is not None
        assert (c.linear(noise(AVX2_ROWS, 64), kind) is None) == c.is_avx2
    expected = noise(AVX2_ROWS, 64).double() @ weight.half().double().T
    found = linear(noise(AVX2_ROWS, 64), weight.half())
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows", range(1, 9))
def test_integers_with_factors(c: Library, threads: int, rows: int) -> None:
    weight = torch.randint(-127, 128, (37, 96), generator=torch.Generator().manual_seed(0))
    x, factors, bias = noise(rows, 96), noise(37, seed=1).abs(), noise(37, seed=2)
    found = c.linear(x, weight.to(torch.int8), bias, None, factors)
    expected = x.double() @ weight.double().T * factors + bias
    assert found is not None
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 64, 66])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("depth", [48, 64, 80, 128])
def test_every_heads_own_product(
    any_c: Library, threads: int, rows: int, transpose: bool, depth: int
) -> None:
    depth = depth if any_c.dtype == torch.float32 else -(-depth // 32) * 32
    maps = noise(3, depth, 96, seed=1).to(any_c.dtype)
    x = noise(3, rows, 96 if transpose else depth).to(any_c.dtype).transpose(0, 1)
    letters = "rho,hio->rhi" if transpose else "rhi,hio->rho"
    exact = torch.einsum(letters, x.double(), maps.double())
    assert_near(any_c.multiply_heads(x, maps, transpose), exact)


@pytest.mark.parametrize("kind", ["all", "slots", "lengths", "bias", "everything"])
@pytest.mark.parametrize(
    ("windows", "queries", "width", "positions"),
    [(1, 6, 384, 200), (2, 1, 64, 1), (3, 7, 48, 63), (5, 13, 16, 64), (4, 20, 128, 131)],
)
def test_latent_attention(
    any_c: Library,
    threads: int,
    windows: int,
    queries: int,
    width: int,
    positions: int,
    kind: str,
) -> None:
    generator, dtype, scale = torch.Generator().manual_seed(0), any_c.dtype, 0.3
    width = width if dtype == torch.float32 else -(-width // 32) * 32
    q = (noise(windows, queries, width) * (2 if dtype == torch.float32 else 1)).to(dtype)
    # a view of a longer one
    z = noise(windows + 2, positions + 5, width, seed=1).to(dtype)[:, :positions]
    slots = lengths = bias = None
    if kind in ("slots", "everything"):
        slots = torch.randint(0, windows + 2, (windows,), generator=generator)
    if kind in ("lengths", "everything"):
        lengths = torch.randint(1, positions + 1, (windows,), generator=generator)
        z[:, int(lengths.max()) :] = torch.nan  # never read
    if kind in ("bias", "everything"):
        bias = noise(windows + 2, positions, seed=2).to(dtype).float()
    kept, reads = z[:windows] if slots is None else z, Reads(slots, lengths, position_bias=bias)
    found = any_c.latent(q, Latent(kept), scale, reads)
    exact, plain = (by_pytorch(q.to(k), kept.to(k), reads, scale) for k in (torch.float64, dtype))
    assert_near(found, exact, plain, off=2e-5)


def by_pytorch(q: Tensor, z: Tensor, reads: Reads, scale: float) -> Tensor:
    """Latent attention in the operands' dtype."""
    found = []
    for b, rows in enumerate(q):
        slot = b if reads.slots is None else int(reads.slots[b])
        length = z.shape[1] if reads.lengths is None else int(reads.lengths[b])
        known, bias = z[slot, :length][None, None], torch.zeros(length)
        if reads.position_bias is not None:
            bias = reads.position_bias[slot, :length]
        mask = bias.to(q.dtype)[None, None, None]
        attended = F.scaled_dot_product_attention(rows[None, None], known, known, mask, scale=scale)
        found.append(attended[0, 0])
    return torch.stack(found)


def assert_attended(found: Tensor | None, q: Tensor, k: Tensor, v: Tensor, reads: Reads) -> None:
    """[B, h, Q, d_k], of queries times 0.3."""
    assert found is not None
    queries, rows = (t.double().transpose(1, 2).flatten(0, 1) for t in (q, found))
    expected = heads_reference(queries, k[: len(q)] if reads.slots is None else k, v, reads, 0.3)
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["all", "slots", "lengths", "both"])
@pytest.mark.parametrize(
    ("windows", "heads", "queries", "width", "positions"),
    [(1, 6, 1, 64, 200), (2, 1, 4, 16, 1), (3, 2, 7, 48, 63), (5, 3, 32, 64, 131)],
)
def test_attention_by_heads(
    c: Library,
    threads: int,
    windows: int,
    heads: int,
    queries: int,
    width: int,
    positions: int,
    kind: str,
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, scale = 2 * noise(windows, queries, heads, width).transpose(1, 2), 0.3
    shape = windows + 2, heads, positions + 5, width  # of which a part is read
    k, v = (noise(*shape, seed=seed)[:, :, :positions] for seed in (1, 2))
    slots = lengths = None
    if kind in ("slots", "both"):
        slots = torch.randint(0, windows + 2, (windows,), generator=generator)
    if kind in ("lengths", "both"):
        lengths = torch.randint(1, positions + 1, (windows,), generator=generator)
        k[:, :, int(lengths.max()) :] = v[:, :, int(lengths.max()) :] = torch.nan  # never read
    found = c.attend(q, k, v, scale, Reads(slots, lengths))
    assert_attended(found, q, k, v, Reads(slots, lengths))


@pytest.mark.parametrize(("page", "extent"), [(16, 150), (8, 70), (8, 61), (16, 5), (448, 448)])
def test_texts_by_pages(any_c: Library, threads: int, page: int, extent: int) -> None:
    """Pages in any order, of which no position past a text's length is read."""
    generator, pages, dtype = torch.Generator().manual_seed(0), -(-extent // page), any_c.dtype
    lengths = torch.tensor([1, extent // 2 + 1, extent])
    table = torch.randperm(3 * pages + 2, generator=generator)[: 3 * pages].view(3, pages)
    k, v = torch.full((2, 3 * pages + 2, 2, page, 32), torch.nan, dtype=dtype)
    texts = noise(2, 3, 2, extent, 32).to(dtype)
    for b, length in enumerate(lengths.tolist()):
        for t in range(length):
            for kept, own in zip((k, v), texts, strict=True):
                kept[table[b, t // page], :, t % page] = own[b, :, t]
    q = (noise(3, 2, 4, 32, seed=1) * (2 if dtype == torch.float32 else 1)).to(dtype)
    found = any_c.attend(q, k, v, 0.3, Reads(lengths=lengths, block_table=table, extent=extent))
    read, attended = list(enumerate(lengths.tolist())), F.scaled_dot_product_attention
    exact, plain = (
        torch.stack(
            [attended(q[b].to(kind), *texts[:, b, :, :n].to(kind), scale=0.3) for b, n in read]
        )
        for kind in (torch.float64, dtype)
    )
    assert_near(found, exact, plain, off=2e-5)


def test_scores_far_apart_and_alike(c: Library) -> None:
    """Where e^x underflows, and where a later position takes all."""
    z = noise(1, 300, 32)
    z[0, 290] = 40 * z[0, 0]
    for scale in (0.0, 1.0, 30.0):
        found = c.latent(z[:, :2].contiguous(), Latent(z), scale)
        expected = (z[:, :2].double() @ z.double().mT * scale).softmax(-1) @ z.double()
        assert found is not None
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


def test_what_it_leaves_to_pytorch(c: Library) -> None:
    weight, maps, z = noise(8, 64), noise(2, 16, 32), Latent(noise(1, 9, 32))
    assert c.multiplies(weight)
    assert not c.multiplies(noise(64, 8).T), "not contiguous"
    assert not c.multiplies(noise(8, 40)), "no multiple of 16"
    assert c.linear(noise(1, 64).double(), weight) is None
    assert c.multiply_heads(noise(1, 2, 24), noise(2, 24, 32)) is None
    assert c.multiply_heads(noise(1, 2, 16).double(), maps) is None
    assert c.latent(noise(1, 2, 32).double(), z, 1.0) is None
    assert c.latent(noise(1, 2, 24), Latent(noise(1, 9, 24)), 1.0) is None
    keys = noise(1, 3, 9, 32)
    assert c.attend(noise(1, 3, 2, 32), keys, noise(1, 3, 11, 32)[:, :, :9], 1.0) is None
    assert c.attend(noise(1, 3, 2, 32), keys.mT.contiguous().mT, keys, 1.0) is None
    with FlopCounterMode(display=False):  # as all need that watch operators
        assert c.linear(noise(1, 64), weight) is None
        assert c.latent(noise(1, 2, 32), z, 1.0) is None


@needs_library
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_linear_takes_it(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of rows; in int8 as on ARM."""
    assert compiled is not None
    monkeypatch.setattr(compiled, "has_integers", False)
    monkeypatch.setattr(linear_module, "INT8_PRODUCTS", False)
    weight, bias, addend, calls = noise(40, 64), noise(40, seed=1), noise(rows, 40, seed=3), []
    run = compiled.functions["multiply_rows"]
    monkeypatch.setitem(compiled.functions, "multiply_rows", spied(calls, run))
    kept, quantized = pack(weight, small_batches=True), quantize(weight.clone())
    assert isinstance(kept, Compiled)
    assert kept.matrix.data_ptr() == weight.data_ptr(), "no copy"
    x = noise(rows, 64, seed=2)
    expected = F.gelu(x.double() @ weight.double().T + bias + addend)
    found = linear(x, kept, bias, gelu=True, addend=addend)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)
    assert len(calls) == 1
    rounded = linear(x, quantized, bias, gelu=True, addend=addend)
    torch.testing.assert_close(rounded.double(), expected, atol=0.5, rtol=0)
    assert len(calls) == 2


@pytest.mark.skipif(packed_width(noise(40, 64)) is None, reason="oneDNN packs no weights here")
def test_what_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(pack(noise(40, 64)), Packed), "for many rows"
    assert isinstance(pack(noise(40, 40), small_batches=True), Packed), "no multiple of 16"
    monkeypatch.setattr("slimwhisper.kernels.linear.library", lambda *_: None)
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


def spied(calls: list[tuple[object, ...]], function):  # type: ignore[no-untyped-def]
    def call(*args: object) -> None:
        calls.append(args)
        function(*args)

    return call


@needs_library
@pytest.mark.parametrize(
    ("forms", "int8", "kernel", "slots"),
    [
        *((("e", "x"), False, "latent", slots) for slots in (2, 12)),
        *((("e", "x"), True, "latent", 2), (("kv", "kv"), False, "heads", 12)),
    ],
)
def test_a_model_decodes_the_same_without(
    forms: tuple[str, str], int8: bool, kernel: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = windows(slots + 3)
    ours = random_model(forms=forms, int8=int8)
    found = decode(ours, requests, slots)
    used = ours.plan.kernels.used
    assert used[kernel, "c"] > 0
    prompts = used["heads", "torch"] if kernel == "heads" else 0  # long ones, in one call each
    assert used[kernel, "torch"] == prompts < used[kernel, "c"] / 10, "whatever the number of rows"
    for name in ("kernels.linear", "kernels.dispatch", "model.layers"):
        monkeypatch.setattr(f"slimwhisper.{name}.library", lambda *_: None)
    theirs: Model = random_model(forms=forms, int8=int8)
    expected = decode(theirs, requests, slots)
    assert theirs.plan.kernels.used[kernel, "c"] == 0
    if int8:  # few rows are not rounded
        assert [len(f.tokens) for f in found] and len(found) == len(expected)
    else:
        assert_same(found, expected)


def test_turned_off_and_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh = library.__wrapped__
    monkeypatch.setenv("SLIMWHISPER_KERNELS", "torch")
    assert fresh() is None and "SLIMWHISPER_KERNELS=torch" in why_not_compiled()
    monkeypatch.delenv("SLIMWHISPER_KERNELS")
    assert (fresh() is None) == (compiled is None) == bool(why_not_compiled())
    for name, file, text, reason in (
        ("never", None, "", "no compiled file"),
        ("failed", "native.txt", "gcc failed:\n x.c:1: error: no such builtin", "no such builtin"),
        ("another", "_native.so", "no library", "does not load"),
    ):
        (tmp_path / name).mkdir()
        if file is not None:
            (tmp_path / name / file).write_text(text)
        monkeypatch.setattr(module, "NATIVE", tmp_path / name / "_native.so")
        assert fresh() is None and reason in why_not_compiled()
