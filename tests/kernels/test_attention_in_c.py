"""Attention in C against float64: slots, lengths, pages, biases, and any number of threads."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels import blocks
from slimwhisper.kernels.attention import ALL, Latent
from slimwhisper.kernels.blocks import encoder_attention
from slimwhisper.kernels.cpu.library import Library
from tests.kernels.conftest import variant
from tests.support.attention import SEEDS, make_call
from tests.support.compiled import THREADS, assert_near, noise, threads_of
from tests.support.fuzz import examples

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
