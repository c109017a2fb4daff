"""An encoder's rows in C against its layers one by one and in float64, and when they are used."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels import blocks as blocks_module
from slimwhisper.kernels import dispatch
from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.blocks import PART, BlockWeights, Layer, Pair, encoder_rows
from slimwhisper.kernels.cpu.library import Library
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import Quantized, Tiled, linear, quantize
from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.compiled import THREADS, noise, threads_of
from tests.support.fuzz import examples

KINDS = pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
CPU = torch.device("cpu")
DIMS = tiny_dims(width=128, heads=2)


@pytest.fixture(autouse=True)
def compiled(c: Library, monkeypatch: pytest.MonkeyPatch) -> Library:
    """With AVX-512, where the processor has it, as if there were no AMX; and with AVX2."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    if "encoder_rows" not in c.functions:
        pytest.skip("an encoder's rows are computed in C on x86")
    for user in (blocks_module, linear_module, dispatch):
        monkeypatch.setattr(user, "library", lambda *_: c)
    return c


def block(d: int, wide: int, int8: bool = True) -> BlockWeights:
    shapes = [(d, d)] * 4 + [(wide, d), (d, wide)]
    layers: list[Layer] = []
    for i, shape in enumerate(shapes):
        weight, bias = noise(*shape, seed=i) / shape[1] ** 0.5, noise(shape[0], seed=9)
        some = None if i == 1 else bias  # keys have none
        layers.append((quantize(weight) if int8 else Tiled.of(weight), some))
    return BlockWeights((noise(d) + 1, noise(d)), (noise(d) + 2, noise(d)), *layers)


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


@examples(15)
@given(
    rows=st.sampled_from([9, 95, 97, 200, 401]),
    shape=st.sampled_from([(16, 48), (144, 576), (384, PART)]),
    threads=THREADS,
)
def test_as_the_layers_one_by_one(rows: int, shape: tuple[int, int], threads: int) -> None:
    """In int8, bit for bit, before the first block, between two, and after the last."""
    d, wide = shape
    one, last = block(d, wide), (noise(d, seed=5), noise(d, seed=6))
    x, attended = noise(1, rows, d), noise(1, rows, d, seed=1)
    add_norm = Kernels(CPU, torch.float32).add_norm
    total, normed = add_norm(x, linear(attended, *one.out), *one.mlp_norm)
    added = linear(one.up[0].multiply(normed, one.up[1], None, True), *one.down)
    total, normed = add_norm(total, added, *one.norm)
    expected = [linear(normed, *w) for w in (one.query, one.key, one.value)]

    first, between, end = encoder_rows([one, one], last)
    with threads_of(threads):
        found = between(x, attended)
        assert_equal([x, *found], [total, *expected])
        assert_equal([*first(x, None), x], [*expected, total])
        (result,) = end(noise(1, rows, d), attended)
    assert_equal([result], [add_norm(total, None, *last)[1]])


@examples(25)
@given(
    rows=st.sampled_from([1, 2, 97, 203]),
    shape=st.sampled_from([(64, 256), (32, PART + 16), (32, 3 * PART), (400, 80)]),
    threads=THREADS,
    int8=st.booleans(),
)
def test_against_float64(rows: int, shape: tuple[int, int], threads: int, int8: bool) -> None:
    """With hidden values in several parts too."""
    d, wide = shape
    one, last = block(d, wide, int8), (noise(d, seed=5), noise(d, seed=6))
    x, attended = noise(rows, d), noise(rows, d, seed=1)

    def product(x: Tensor, layer: Layer) -> Tensor:
        weight, bias = layer
        assert isinstance(weight, Tiled | Quantized)
        matrix = weight.matrix() if isinstance(weight, Tiled) else weight.dequantized()
        y = x @ matrix.double().T
        return y if bias is None else y + bias

    def norm(x: Tensor, norm: Pair) -> Tensor:
        return F.layer_norm(x, (d,), norm[0].double(), norm[1].double())

    first, between, end = encoder_rows([one, one], last)
    total = x + product(attended.double(), one.out)
    total = total + product(F.gelu(product(norm(total, one.mlp_norm), one.up)), one.down)
    expected = [product(norm(total, one.norm), w) for w in (one.query, one.key, one.value)]
    added = x.clone()
    with threads_of(threads):
        found = between(added, attended)
        again = [*first(added.clone(), None)]
        (result,) = end(x.clone(), attended)
    pairs = [(added, total), (result, norm(total, last)), *zip(found, expected, strict=True)]
    for mine, exact in pairs:
        assert 0 < (mine - exact).norm() / exact.norm() < (0.02 if int8 else 1e-6)
    assert_equal(again, found)


@KINDS
def test_what_is_not_finite_stays_in_its_row(int8: bool) -> None:
    x, attended = noise(60, 32), noise(60, 32)
    x[7, 3], attended[50, 2] = math.nan, math.inf
    (found,) = encoder_rows([block(32, 64, int8)], (noise(32), noise(32)))[1](x, attended)
    assert found.isnan().any(1).nonzero().flatten().tolist() == [7, 50]


@KINDS
def test_encoders_use_them(compiled: Library, int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where operators are watched, an encoder runs layer by layer."""
    name = "encoder_rows_integers" if int8 else "encoder_rows"
    calls, run = [], compiled.functions[name]
    monkeypatch.setitem(compiled.functions, name, lambda *a: (calls.append(a), run(*a)))
    encoder = Encoder(random_state(DIMS, seed=0), DIMS, CPU, torch.float32, int8)
    mel, blocks = noise(2, 80, 400), DIMS.n_audio_layer
    found = encoder(mel)
    assert len(calls) == blocks + 1
    with FlopCounterMode(display=False) as counter:
        watched = encoder(mel)
    assert len(calls) == blocks + 1 and counter.get_total_flops() > 200 * 12 * 128 * 128 * 2
    assert 0 < (found - watched).norm() / watched.norm() < (0.03 if int8 else 1e-5)


def test_which_encoders_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state(DIMS, seed=0)
    assert not Encoder(state, DIMS, CPU, torch.bfloat16).rows
    wide = PART + 16
    assert not encoder_rows([block(32, 64)], (noise(wide), noise(wide)))
    for user in (blocks_module, linear_module):
        monkeypatch.setattr(user, "library", lambda *_: None)
    assert not Encoder(state, DIMS, CPU, torch.float32).rows
    assert not Encoder(state, DIMS, CPU, torch.float32, int8=True).rows
