"""Weights that are kept in float16 for products in float32: the same results, bit for bit."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.cache.fold import Folded
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.kernels.attention import ALL
from slimwhisper.kernels.blocks import LatentBlock, MLPBlock
from slimwhisper.kernels.cpu import library as module
from slimwhisper.kernels.cpu.library import NATIVE, Library, library
from slimwhisper.kernels.linear import Plain, Weight, in_half, linear, quantize
from slimwhisper.model.model import Model
from tests.support.windows import CPU, DIMS, decode, windows

pytestmark = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")
ROWS = [1, 2, 3, 4, 5, 9, 66]


def noise(*shape: int, seed: int = 0) -> Tensor:
    """In numbers of float16, the smallest and the largest among them."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half().float()
    edges = torch.tensor([2.0**-24, -3 * 2.0**-24, 65504.0, -0.0, 2.0**-14])
    made.view(-1)[:5] = edges[: made.numel()]
    return made


def matrix_of(weight: Weight) -> Tensor:
    assert isinstance(weight, Plain)
    return weight.matrix


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("width", "depth"), [(1, 16), (7, 48), (51, 384), (20, 1552)])
def test_products(c: Library, threads: int, rows: int, width: int, depth: int) -> None:
    x, weight, bias = noise(rows, depth) / 3, noise(width, depth, seed=1), noise(width, seed=2)
    addend = x[:, :1].expand(-1, width)
    expected, found = (c.linear(x, w, bias, addend) for w in (weight, weight.half()))
    assert expected is not None and found is not None and torch.equal(found, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("transpose", [False, True])
def test_every_heads_own_product(c: Library, threads: int, rows: int, transpose: bool) -> None:
    maps, x = noise(3, 80, 96, seed=1), noise(rows, 3, 96 if transpose else 80) / 3
    expected, found = (c.multiply_heads(x, m, transpose) for m in (maps, maps.half()))
    assert expected is not None and found is not None and torch.equal(found, expected)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_blocks(c: Library, threads: int, rows: int) -> None:
    shapes = ((96, 96), (3, 32, 96), (3, 32, 96), (96, 96), (96,), (96,))
    weights = [noise(*shape, seed=i) for i, shape in enumerate(shapes)]
    halves = [w.half() if w.ndim > 1 else w for w in weights]
    x, latent = noise(rows, 1, 96, seed=8) / 3, noise(rows, 40, 96, seed=9)
    expected, found = (LatentBlock.of(c, *w) for w in (weights, halves))
    assert expected is not None and found is not None
    attended = expected(x, latent, ALL, rows)
    assert attended is not None and torch.equal(attended, found(x, latent, ALL, rows))
    assert LatentBlock.of(c, *halves[:3], *weights[3:]) is None, "of both kinds"
    assert LatentBlock.of(c, *(w.half() for w in weights)) is None, "biases are in float32"

    weights = [noise(*s, seed=i) for i, s in enumerate(((160, 96), (96, 160), (160,), (96,)))]
    halves = [w.half() if w.ndim > 1 else w for w in weights]
    one, other = (MLPBlock.of(c, *w) for w in (weights, halves))
    assert one is not None and other is not None
    hidden = one(x)
    assert hidden is not None and torch.equal(hidden, other(x))


def test_which_weights() -> None:
    """Those that float16 holds exactly, in a shape and of a dtype that C multiplies by."""
    weight = noise(4, 32)
    assert torch.equal(in_half(weight), weight.half()) and in_half(weight).dtype == torch.float16
    finer, larger, spoiled = weight.clone(), weight.clone(), weight.clone()
    finer[3, 31], larger[0, 0], spoiled[1, 1] = 1 + 2.0**-11, 65536.0, torch.nan
    for other in (finer, larger, spoiled, noise(4, 24), weight.double(), weight.to("meta")):
        assert in_half(other) is other


def test_operators_that_are_watched() -> None:
    """PyTorch's own product takes them too."""
    x, weight = noise(2, 32) / 3, noise(4, 32, seed=1)
    with FlopCounterMode(display=False):
        found = linear(x, weight.half())
    torch.testing.assert_close(found, x @ weight.T)


@pytest.mark.parametrize(
    "forms", [("e", "x"), ("kv", "kv"), ("k", "k"), ("sparq_latent:r=9,k=7", "keyformer:budget=6")]
)
def test_a_model(forms: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrices of a checkpoint in float16 stay so, and texts and scores are the same."""
    checkpoint = random_checkpoint(DIMS)
    model = Model(checkpoint, CPU, torch.float32, forms)
    decoder = model.decoder
    parts = [part for block in decoder.blocks for part in block.mlp.parts]
    kept = {matrix_of(layer.weight).dtype for part in parts for layer in part}
    head = matrix_of(decoder.head)
    assert kept == {head.dtype} == {torch.float16}
    assert head.data_ptr() == decoder.embedding.data_ptr()
    folded: list[Folded] = [*model.plan.cross, *model.plan.self_]
    assert {matrix_of(w).dtype for f in folded for w in (f.query, f.out)} == {torch.float16}
    exact = {f.value_map.dtype for f in folded if f.value_map is not None}
    assert exact == {("k", "k"): {torch.float32}, ("kv", "kv"): set()}.get(forms, {torch.float16})
    found = decode(model, windows(3), 2)
    for name in ("kernels.linear", "cache.fold", "model.decoder"):
        monkeypatch.setattr(f"slimwhisper.{name}.in_half", Tensor.contiguous)
    plain = Model(checkpoint, CPU, torch.float32, forms)
    assert matrix_of(plain.decoder.head).dtype == torch.float32
    assert found == decode(plain, windows(3), 2)


def test_integers() -> None:
    """Of weights in float16, rows of zeros among them, they are the same."""
    weight = noise(40, 64)
    weight[7] = 0
    found, expected = (quantize(w) for w in (weight.half(), weight))
    for name in ("integers", "factors", "sums"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    model = Model(random_checkpoint(DIMS), CPU, torch.float32, int8=True)
    assert model.decoder.embedding.dtype == torch.float16
    assert all(answer.tokens for answer in decode(model, windows(3), 2))


def test_another_version_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    with pytest.raises(AttributeError, match="version"):
        Library(NATIVE)
