"""A decoder layer's blocks in C against float64, and that a step calls nothing else of C."""

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.cache.latent import LatentSteps
from slimwhisper.kernels import blocks
from slimwhisper.kernels.attention import ALL, CacheWrite, Latent
from slimwhisper.kernels.blocks import LatentBlock, MLPBlock, encoder_attention
from slimwhisper.kernels.cpu.library import BFLOAT16_ROWS, Library, library
from slimwhisper.kernels.linear import quantize
from tests.kernels.conftest import variant
from tests.support.attention import SEEDS, Call, make_call
from tests.support.compiled import THREADS, assert_near, noise, threads_of
from tests.support.fuzz import examples
from tests.support.windows import decode, random_model, windows

HEADS, SIZE, WIDTH, WIDE = 3, 32, 96, 160
pytestmark = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")


def assert_block_near(found: Tensor | None, exact: Tensor) -> None:
    """In float32 within 2e-5; in bfloat16 each part is rounded."""
    assert found is not None
    off = 2e-5 if found.dtype == torch.float32 else 0.03
    torch.testing.assert_close(found.double(), exact, atol=off, rtol=off)


def made(found: Any) -> Any:
    """What C does not leave to PyTorch."""
    assert found is not None
    return found


def latent_weights(dtype: torch.dtype) -> list[Tensor]:
    """query, key_map, value_map, out, and the biases of query and out."""
    square, maps = (WIDTH, WIDTH), (HEADS, SIZE, WIDTH)
    shapes = (square, maps, maps, square, (WIDTH,), (WIDTH,))
    return [(noise(*s, seed=i) / 10).half().to(dtype) for i, s in enumerate(shapes)]


def mlp_weights(dtype: torch.dtype) -> list[Tensor]:
    shapes = ((WIDE, WIDTH), (WIDTH, WIDE), (WIDE,), (WIDTH,))
    return [(noise(*s, seed=i) / 5).half().to(dtype) for i, s in enumerate(shapes)]


def halves_of(weights: list[Tensor]) -> list[Tensor]:
    """As a model keeps them: biases are in float32."""
    return [w.half() if w.ndim > 1 else w for w in weights]


def attended(x: Tensor, weights: list[Tensor], call: Call) -> Tensor:
    """From the definition, in float64: x [R, 1, d] -> [R, 1, d]."""
    query, key_map, value_map, out, query_bias, out_bias = (w.double() for w in weights)
    q = (x.double() @ query.T + query_bias).view(len(x), HEADS, SIZE)
    folded = torch.einsum("rhk,hkd->rhd", q, key_map) * (WIDTH / SIZE) ** 0.5
    read = replace(call, queries=folded).expected(torch.float64)
    mixed = torch.einsum("hkd,rhd->rhk", value_map, read)
    return mixed.flatten(1)[:, None] @ out.T + out_bias


@examples(40)
@given(seed=SEEDS, threads=THREADS)
def test_attention(any_c: Library, seed: int, threads: int) -> None:
    call = make_call(seed, any_c.dtype, [WIDTH], (1, 48, 130), (8, 16), shortest=1, latent=True)
    rows, weights = len(call.queries), latent_weights(any_c.dtype)
    assume(any_c.dtype == torch.float32 or rows <= BFLOAT16_ROWS)
    x, stored = noise(rows, 1, WIDTH, seed=8, dtype=any_c.dtype), made(call.latent)
    reads = call.reads
    with threads_of(threads):
        found = made(LatentBlock.of(any_c, *weights))(x, stored, reads)
        assert_block_near(found, attended(x, weights, call))
        if any_c.dtype == torch.float32:  # by halves bit for bit the same
            other = made(LatentBlock.of(any_c, *halves_of(weights)))
            assert torch.equal(other(x, stored, reads), found)
            half, again = Latent(stored.values.half()), Latent(stored.values.half().float())
            assert torch.equal(other(x, half, reads), other(x, again, reads))


@examples(15)
@given(rows=st.sampled_from([1, 3, 5, BFLOAT16_ROWS]), threads=THREADS)
def test_mlp(any_c: Library, rows: int, threads: int) -> None:
    weights, x = mlp_weights(any_c.dtype), noise(rows, WIDTH, seed=8, dtype=any_c.dtype)
    up, down, up_bias, down_bias = (w.double() for w in weights)
    block = made(MLPBlock.of(any_c, *weights))
    with threads_of(threads):
        found = block(x)
    assert_block_near(found, F.gelu(x.double() @ up.T + up_bias) @ down.T + down_bias)
    if any_c.dtype == torch.float32:
        other = made(MLPBlock.of(any_c, *halves_of(weights)))
        with threads_of(threads):
            assert torch.equal(other(x), found)


def test_gelu_far_from_zero(any_c: Library) -> None:
    """Of numbers from -30 to 30, and NaN stays NaN."""
    one, zeros = torch.eye(WIDTH).to(any_c.dtype), torch.zeros(WIDTH).to(any_c.dtype)
    block = made(MLPBlock.of(any_c, one, one, zeros, zeros))
    x = torch.linspace(-30, 30, 4 * WIDTH).view(4, WIDTH).to(any_c.dtype)
    found, off = made(block(x)), 1e-5 if any_c.dtype == torch.float32 else 0.01
    torch.testing.assert_close(found.double(), F.gelu(x.double()), atol=off, rtol=off)
    x[1, 5] = torch.nan
    spoiled = made(block(x))
    assert torch.isnan(spoiled).any(1).tolist() == [False, True, False, False]
    assert torch.isnan(spoiled[1]).all()


@examples(15)
@given(rows=st.sampled_from([1, 2, 7, 40]), threads=THREADS)
def test_norm_of_a_sum(any_c: Library, rows: int, threads: int) -> None:
    x, addend = (noise(rows, WIDTH, seed=i, dtype=any_c.dtype) * 3 + 5 for i in (0, 1))
    weight, bias = noise(WIDTH, seed=2), noise(WIDTH, seed=3)
    cache = noise(50, 4, WIDTH, dtype=any_c.dtype)
    ids, positions = torch.randperm(50)[:rows], torch.arange(rows) % 4
    before, expected = cache.clone(), (x + addend).double()
    with threads_of(threads):
        write = CacheWrite(Latent(cache), ids, positions)
        total, normed = made(any_c.add_norm(x, addend, weight, bias, write))
    assert total.data_ptr() == addend.data_ptr(), "no copy"
    assert torch.equal(total.double(), expected)
    assert_block_near(normed, F.layer_norm(expected, (WIDTH,), weight.double(), bias.double()))
    before[ids, positions] = normed
    assert torch.equal(cache, before)
    alone = made(any_c.add_norm(total, None, weight, bias))
    assert alone[0] is total and torch.equal(alone[1], normed)


def test_what_they_leave(any_c: Library) -> None:
    dtype = any_c.dtype
    weights, x, z = latent_weights(dtype), noise(1, 1, WIDTH).to(dtype), noise(1, 9, WIDTH)
    block, latent = made(LatentBlock.of(any_c, *weights)), Latent(z.to(dtype))
    assert block(x, Latent(z.double()), ALL) is None and block(x.double(), latent, ALL) is None
    if dtype == torch.bfloat16:
        assert block(noise(BFLOAT16_ROWS + 1, 1, WIDTH).to(dtype), latent, ALL) is None
    else:
        halves = halves_of(weights)
        assert LatentBlock.of(any_c, *halves[:3], *weights[3:]) is None, "of both kinds"
        assert LatentBlock.of(any_c, *(w.half() for w in weights)) is None, "biases are in float32"
    with FlopCounterMode(display=False):
        assert block(x, latent, ALL) is None
        assert any_c.add_norm(x[0], None, noise(WIDTH), noise(WIDTH)) is None
    assert LatentBlock.of(None, *weights) is None
    assert LatentBlock.of(any_c, weights[0], None, *weights[2:]) is None, "a form without a map"
    narrow = (w[..., :40].contiguous() for w in weights)
    assert LatentBlock.of(any_c, *narrow) is None, "no multiple"


@examples(30)
@given(seed=SEEDS, threads=THREADS)
def test_attention_in_whole_numbers(c: Library, seed: int, threads: int) -> None:
    """Of weights in int8 and a latent in 16 bits, as near as 16 bits are."""
    if not c.has_integers:
        pytest.skip("for x86")
    call = make_call(seed, torch.float32, [WIDTH], (1, 48, 130), shortest=1, latent=True)
    assume(call.reads.block_table is None)
    *matrices, query_bias, out_bias = latent_weights(torch.float32)
    rows = matrices[0], matrices[1].mT.flatten(0, 1), matrices[2].flatten(0, 1), matrices[3]
    quantized = [quantize(w) for w in rows]
    block = made(LatentBlock.of(c, *quantized, query_bias, out_bias))
    query, keys, values, out = (w.dequantized() for w in quantized)
    keys, values = keys.view(HEADS, WIDTH, SIZE).mT, values.view(HEADS, SIZE, WIDTH)
    plain = made(call.latent).values
    stored = Latent.allocate(tuple(plain.shape), plain.device, torch.int16)
    stored.write(slice(None), plain)
    x = noise(len(call.queries), 1, WIDTH, seed=8)
    with threads_of(threads):
        found = block(x, stored, call.reads)
    expected = attended(x, [query, keys, values, out, query_bias, out_bias], call)
    assert 0 < (made(found) - expected).norm() / expected.norm() < 5e-4


@pytest.mark.parametrize("rows", [1, 8, 9, 40])
def test_mlp_in_whole_numbers(c: Library, rows: int) -> None:
    if not c.has_integers:
        pytest.skip("for x86")
    up, down, *biases = mlp_weights(torch.float32)
    up, down = (replace(quantize(w), library=c) for w in (up, down))
    x = noise(rows, WIDTH, seed=8)
    hidden = up.multiply(x, biases[0], None, True)
    expected = down.multiply(hidden, biases[1], None, False)
    assert torch.equal(made(MLPBlock.of(c, up, down, *biases))(x), expected)
    assert MLPBlock.of(c, quantize(noise(96, 24)), down, *biases) is None, "oneDNN's"


@pytest.mark.parametrize("int8", [False, True])
def test_a_step_is_one_call(monkeypatch: pytest.MonkeyPatch, int8: bool) -> None:
    """Of C, for all layers, and the logits; layer by layer gives the same."""
    model = random_model(forms=("e", "x"), int8=int8)
    compiled = made(model.plan.kernels.library)
    called = Mock()
    for name, run in compiled.functions.items():
        called.attach_mock(Mock(wraps=run), name)
        monkeypatch.setitem(compiled.functions, name, getattr(called, name))
    steps, step = list[Counter[str]](), model.decoder.step

    def counted(*arguments: object) -> Tensor:
        called.reset_mock()
        logits: Tensor = step(*arguments)  # type: ignore[arg-type]
        steps.append(Counter(name for name, *_ in called.mock_calls))
        return logits

    monkeypatch.setattr(model.decoder, "step", counted)
    answers = decode(model, windows(2), 2)
    expected = {"decoder_layers": 1, "multiply_integers" if int8 else "multiply_rows": 1}
    assert steps and all(found == expected for found in steps)
    steps.clear()
    monkeypatch.setattr(LatentSteps, "of", lambda *_: None)
    assert decode(model, windows(2), 2) == answers
    assert steps and all(f["latent_block"] == 2 * model.dims.n_text_layer for f in steps)


# Attention: slots, lengths, pages, biases, and any number of threads


FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
POSITIONS = (1, 2, 49, 63, 64, 131, 257)


@examples(80)
@given(seed=SEEDS, threads=THREADS)
def test_of_a_decoder(any_c: Library, seed: int, threads: int) -> None:
    widths = {-(-n // any_c.depth) * any_c.depth for n in (16, 48, 64, 128, 384)}
    call = make_call(seed, any_c.dtype, sorted(widths), POSITIONS, (8, 16, 448), shortest=1)

    def attend(*stored: Tensor) -> Tensor | None:
        """keys and values, which a latent is both."""
        if call.latent is None:
            return any_c.heads(call.queries, *stored, call.reads)
        scale, latent = call.queries.shape[-1] ** -0.5, Latent(stored[0][:, 0])
        return any_c.latent(call.queries, latent, scale, call.reads, None)

    with threads_of(threads):
        found = attend(call.keys, call.values)
        assert_near(found, call.expected(torch.float64), call.expected(any_c.dtype), off=2e-5)
        halves = call.keys.half(), call.values.half()
        by_halves = attend(*halves)
        if any_c.dtype != torch.float32:
            assert by_halves is None
        else:  # bit for bit what floats of them give
            assert torch.equal(by_halves, attend(*(t.float() for t in halves)))


def test_scores_far_apart_and_alike(c: Library) -> None:
    """Where e^x underflows, and where a later position takes all."""
    z = noise(1, 300, 32)
    z[0, 290] = 40 * z[0, 0]
    for scale in (0.0, 1.0, 30.0):
        found = c.latent(z[:, :2].contiguous(), Latent(z), scale, ALL, None)
        expected = (z[:, :2].double() @ z.double().mT * scale).softmax(-1) @ z.double()
        assert_near(found, expected)


def test_what_it_leaves_to_pytorch(c: Library) -> None:
    z, keys = Latent(noise(1, 9, 32)), noise(1, 3, 9, 32)
    assert c.latent(noise(1, 2, 24), Latent(noise(1, 9, 24)), 1.0, ALL, None) is None
    assert c.attend(noise(1, 3, 2, 32), keys, noise(1, 3, 11, 32)[:, :, :9], 1.0) is None
    assert c.attend(noise(1, 3, 2, 32), keys.mT.contiguous().mT, keys, 1.0) is None
    with FlopCounterMode(display=False):  # as all need that watch operators
        assert c.linear(noise(1, 64), noise(8, 64)) is None
        assert c.latent(noise(1, 2, 32), z, 1.0, ALL, None) is None


# -- an encoder's ---------------------------------------------------------------------------------


def encoders(found: Library) -> Library:
    if not found.has_encoder_attention:
        pytest.skip("a processor other than x86")
    return found


def whole(dtype: torch.dtype, *operands: Tensor) -> Tensor:
    """[B, p, h, d_k] -> [B, p, h, d_k]."""
    moved = (t.to(dtype).transpose(1, 2) for t in operands)
    return F.scaled_dot_product_attention(*moved).transpose(1, 2)


def side_by_side(positions: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """q, k, v [2, p, 3, d_k] in one tensor of which not all is read."""
    wide = noise(2, positions + 3, 3 * 3 * width, dtype=dtype)[:, :positions]
    return wide.unflatten(2, (3, 3, width)).unbind(2)


WIDTHS = st.sampled_from([16, 48, 64, 80, 128])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("wide", FLOAT32), ("narrow", FLOAT32), ("bfloat16", FLOAT32), ("bfloat16", BFLOAT16)],
)
@examples(30)
@given(width=WIDTHS, positions=st.sampled_from([*POSITIONS, 600]), threads=THREADS)
def test_an_encoders_rounds_as_pytorch_does(
    name: str, dtype: torch.dtype, width: int, positions: int, threads: int
) -> None:
    """At most twice the error, as scaled queries are rounded too."""
    c, (q, k, v) = encoders(variant(name)), side_by_side(positions, width, dtype)
    with threads_of(threads):
        found = c.encoder_attention(q, k, v)
    assert found is not None and found.dtype == dtype and found.is_contiguous()
    exact, plain = whole(torch.float64, q, k, v), whole(c.dtype, q, k, v)
    found_error, error = ((t.to(c.dtype) - exact).norm() for t in (found, plain))
    assert found_error <= 2 * error + 1e-7 * exact.norm()


@examples(30)
@given(width=WIDTHS, positions=st.sampled_from([*POSITIONS, 600]), threads=THREADS)
def test_whole_numbers_round_less_than_bfloat16(width: int, positions: int, threads: int) -> None:
    """With AVX2, where int8 lets it round: also with a query, a key and a value of other sizes."""
    c, (q, k, v) = encoders(variant("narrow")), side_by_side(positions, width, FLOAT32)
    for operand, factor in ((q, 3), (k, 2), (v, 20)):
        operand[0, -1] *= factor
    with threads_of(threads):
        found, floats = c.encoder_attention(q, k, v, rounded=True), c.encoder_attention(q, k, v)
    exact, plain = whole(torch.float64, q, k, v), whole(BFLOAT16, q, k, v)
    assert found is not None and floats is not None and not found.equal(floats)
    assert 0 < (found - exact).norm() <= (plain - exact).norm() / 2


@pytest.mark.parametrize("which", [0, 1, 2])
def test_whole_numbers_keep_what_is_not_finite(which: int) -> None:
    c, operands = encoders(variant("narrow")), [noise(1, 70, 2, 16) for _ in range(3)]
    zero = c.encoder_attention(*(torch.zeros_like(t) for t in operands), rounded=True)
    assert zero is not None and not zero.any()
    for value in (float("nan"), float("inf")):
        operands[which][0, 5, 1, 3] = value
        found = c.encoder_attention(*operands, rounded=True)
        assert found is not None and found[:, :, 0].isfinite().all()
        hit = found[0, 5, 1] if which == 0 else found[0, :, 1, 3]
        assert hit.isnan().all()


def test_an_encoders_scores_far_apart_and_what_it_leaves(any_c: Library) -> None:
    """Where e^x underflows, and where a later position takes all."""
    c = encoders(any_c)
    q, k, v = noise(3, 1, 300, 2, 64, dtype=c.dtype).unbind(0)
    k[0, 290] = 40 * q[0, 0]
    found = c.encoder_attention(q, k, v)
    assert found is not None and found.isfinite().all()
    torch.testing.assert_close(found[0, 0], v[0, 290])
    other, wide = q.float() if c.dtype == BFLOAT16 else q.bfloat16(), noise(1, 9, 2, 144)
    assert c.encoder_attention(q, q, q[:, :8]) is None
    assert c.encoder_attention(q, q, other) is None
    for same in (q.double(), wide.to(c.dtype), q.transpose(1, 2)):
        assert c.encoder_attention(same, same, same) is None


@pytest.mark.parametrize("amx", [False, True])
def test_which_of_them_is_taken(any_c: Library, amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """C's, also where int8 lets it round; but not in bfloat16 with AMX, nor in float64."""
    c = encoders(any_c)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    monkeypatch.setattr(blocks, "library", lambda dtype: c if dtype == c.dtype else None)
    taken: list[str] = []
    run, attend = c.encoder_attention, blocks.head_attention
    monkeypatch.setattr(c, "encoder_attention", lambda *a: (taken.append("c"), run(*a))[1])
    monkeypatch.setattr(blocks, "head_attention", lambda *a: (taken.append("torch"), attend(*a))[1])
    q = noise(1, 20, 2, 64)
    for operand, rounded in ((q.to(c.dtype), False), (q, True), (q.double(), False)):
        assert encoder_attention(operand, operand, operand, rounded).shape == q.shape
    assert taken == ["torch" if amx and c.dtype == BFLOAT16 else "c", "c", "torch"]
