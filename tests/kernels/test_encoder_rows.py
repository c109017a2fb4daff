"""An encoder's rows in C against its layers one by one and in float64, and when they are used."""

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.cpu.library import library
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.encoder_rows import PART, BlockWeights, Norm, encoder_rows
from slimwhisper.kernels.linear import Quantized, Weight, linear, quantize
from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims

compiled = library()
pytestmark = pytest.mark.skipif(
    compiled is None or not compiled.has_integers, reason="no compiled kernels, or no AVX512-VNNI"
)
CPU = torch.device("cpu")
DIMS = tiny_dims(width=128, heads=2)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block(d: int, wide: int) -> BlockWeights:
    shapes = [(d, d)] * 4 + [(wide, d), (d, wide)]
    weights = [
        quantize(noise(*s, seed=i) / s[1] ** 0.5, noise(s[0], seed=9) if i != 1 else None)
        for i, s in enumerate(shapes)
    ]
    return BlockWeights((noise(d) + 1, noise(d)), (noise(d) + 2, noise(d)), *weights)


def assert_equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def numbers(weight: Weight) -> Quantized:
    assert isinstance(weight, Quantized)
    return weight


@pytest.mark.parametrize("rows", [9, 95, 97, 200, 401])
@pytest.mark.parametrize(("d", "wide"), [(16, 48), (144, 576), (384, PART)])
def test_as_the_layers_one_by_one(threads: int, rows: int, d: int, wide: int) -> None:
    """Bit for bit, before the first block, between two, and after the last."""
    one, last = block(d, wide), (noise(d, seed=5), noise(d, seed=6))
    x, attended = noise(1, rows, d), noise(1, rows, d, seed=1)
    add_norm = Kernels(CPU, torch.float32).add_norm
    total, normed = add_norm(x, linear(attended, one.out), *one.mlp_norm)
    added = linear(linear(normed, one.up, gelu=True), one.down)
    total, normed = add_norm(total, added, *one.norm)
    expected = [linear(normed, w) for w in (one.query, one.key, one.value)]

    first, between, end = encoder_rows([one, one], last)
    found = between(x, attended)
    assert_equal([x, *found], [total, *expected])
    assert_equal([*first(x, None), x], [*expected, total])
    (result,) = end(noise(1, rows, d), attended)
    assert_equal([result], [add_norm(total, None, *last)[1]])


@pytest.mark.parametrize("rows", [1, 2, 97])
@pytest.mark.parametrize(("d", "wide"), [(64, 256), (32, PART + 16), (32, 3 * PART)])
def test_against_float64(threads: int, rows: int, d: int, wide: int) -> None:
    """With hidden values in several parts too."""
    one, last = block(d, wide), (noise(d, seed=5), noise(d, seed=6))
    x, attended = noise(rows, d), noise(rows, d, seed=1)

    def product(x: Tensor, weight: Weight) -> Tensor:
        y = x @ numbers(weight).dequantized().double().T
        return y if (bias := numbers(weight).bias) is None else y + bias

    def norm(x: Tensor, norm: Norm) -> Tensor:
        return F.layer_norm(x, (d,), norm[0].double(), norm[1].double())

    total = x + product(attended.double(), one.out)
    total = total + product(F.gelu(product(norm(total, one.mlp_norm), one.up)), one.down)
    (found,) = encoder_rows([one], last)[1](x, attended)
    for mine, exact in ((x, total), (found, norm(total, last))):
        assert 0 < (mine - exact).norm() / exact.norm() < 0.02


def test_what_is_not_finite_stays_in_its_row() -> None:
    x, attended = noise(60, 32), noise(60, 32)
    x[7, 3], attended[50, 2] = math.nan, math.inf
    (found,) = encoder_rows([block(32, 64)], (noise(32), noise(32)))[1](x, attended)
    assert found.isnan().any(1).nonzero().flatten().tolist() == [7, 50]


def test_which_encoders_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in int8; where operators are watched, an encoder runs layer by layer."""
    assert compiled is not None
    calls, run = [], compiled.functions["encoder_rows"]
    spy = lambda *a: (calls.append(a), run(*a))  # noqa: E731
    monkeypatch.setitem(compiled.functions, "encoder_rows", spy)
    state, mel = random_state(DIMS, seed=0), noise(2, 80, 400)
    encoder = Encoder(state, DIMS, CPU, torch.float32, int8=True)
    found = encoder(mel)
    assert len(calls) == DIMS.n_audio_layer + 1
    with FlopCounterMode(display=False):
        watched = encoder(mel)
    assert len(calls) == DIMS.n_audio_layer + 1
    assert 0 < (found - watched).norm() / watched.norm() < 0.03
    Encoder(state, DIMS, CPU, torch.float32)(mel)
    monkeypatch.setattr(linear_module, "INT8_AMX", True)
    Encoder(state, DIMS, CPU, torch.float32, int8=True)(mel)
    assert len(calls) == DIMS.n_audio_layer + 1
    assert not encoder_rows([None], (noise(32), noise(32))), "of factors"
    assert not encoder_rows([block(32, 64)], (noise(PART + 16), noise(PART + 16))), "too wide"
