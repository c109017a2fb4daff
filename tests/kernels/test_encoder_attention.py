"""An encoder's attention in C, in float32 and bfloat16, against float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels import heads
from slimwhisper.kernels.blocks import encoder_attention
from slimwhisper.kernels.cpu.library import NATIVE, Library, library

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
POSITIONS = (1, 2, 49, 63, 129, 257, 600)


def noise(*shape: int, dtype: torch.dtype = FLOAT32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def compiled_for(variant: str) -> Library:
    dtype = BFLOAT16 if variant == "bfloat16" else FLOAT32
    compiled = library(dtype)
    if compiled is None or not compiled.has_encoder_attention:
        pytest.skip("no compiled kernels, or a processor other than x86 or without AVX512-BF16")
    return Library(NATIVE, variant != "narrow", dtype)


@pytest.fixture(params=["wide", "narrow", "bfloat16"])
def c(request: pytest.FixtureRequest) -> Library:
    return compiled_for(request.param)


def by_pytorch(dtype: torch.dtype, *operands: Tensor) -> Tensor:
    """[B, p, h, d_k] -> [B, p, h, d_k]."""
    return F.scaled_dot_product_attention(
        *(t.to(dtype).transpose(1, 2) for t in operands)
    ).transpose(1, 2)


@pytest.mark.parametrize(
    ("computed", "dtype"),
    [("wide", FLOAT32), ("narrow", FLOAT32), ("bfloat16", FLOAT32), ("bfloat16", BFLOAT16)],
    ids=["wide", "narrow", "rounded", "bfloat16"],
)
@pytest.mark.parametrize("width", [16, 48, 64, 80, 128])
def test_it_rounds_as_pytorch_does(
    threads: int, width: int, computed: str, dtype: torch.dtype
) -> None:
    """At most twice the error, as scaled queries are rounded too."""
    c = compiled_for(computed)
    for positions in POSITIONS:
        wide = noise(2, positions + 3, 3 * 3 * width, dtype=dtype)[:, :positions]  # side by side
        q, k, v = wide.unflatten(2, (3, 3, width)).unbind(2)
        found = c.encoder_attention(q, k, v)
        assert found is not None and found.dtype == dtype and found.is_contiguous()
        exact, plain = by_pytorch(torch.float64, q, k, v), by_pytorch(c.dtype, q, k, v)
        found_error, error = ((t.to(c.dtype) - exact).norm() for t in (found, plain))
        assert found_error <= 2 * error + 1e-7 * exact.norm()


@pytest.mark.parametrize("width", [16, 48, 64, 80, 128])
def test_whole_numbers_round_less_than_bfloat16(threads: int, width: int) -> None:
    """With AVX2, where int8 lets it round: also with a query, a key and a value of other sizes."""
    c = compiled_for("narrow")
    for positions in POSITIONS:
        q, k, v = noise(2, positions, 3 * 3 * width).unflatten(2, (3, 3, width)).unbind(2)
        for operand, factor in ((q, 3), (k, 2), (v, 20)):
            operand[0, -1] *= factor
        found = c.encoder_attention(q, k, v, rounded=True)
        exact, plain = by_pytorch(torch.float64, q, k, v), by_pytorch(BFLOAT16, q, k, v)
        assert found is not None
        assert 0 < (found - exact).norm() <= (plain - exact).norm() / 2
        in_floats = c.encoder_attention(q, k, v)
        assert in_floats is not None and not found.equal(in_floats)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_whole_numbers_keep_what_is_not_finite(which: int) -> None:
    c, operands = compiled_for("narrow"), [noise(1, 70, 2, 16) for _ in range(3)]
    zero = c.encoder_attention(*(torch.zeros_like(t) for t in operands), rounded=True)
    assert zero is not None and not zero.any()
    for value in (float("nan"), float("inf")):
        operands[which][0, 5, 1, 3] = value
        found = c.encoder_attention(*operands, rounded=True)
        assert found is not None and found[:, :, 0].isfinite().all()
        hit = found[0, 5, 1] if which == 0 else found[0, :, 1, 3]
        assert hit.isnan().all()


def test_scores_far_apart(c: Library) -> None:
    """Where e^x underflows, and where a later position takes all."""
    q, k, v = noise(3, 1, 300, 2, 64, dtype=c.dtype).unbind(0)
    k[0, 290] = 40 * q[0, 0]
    found = c.encoder_attention(q, k, v)
    assert found is not None
    torch.testing.assert_close(found[0, 0], v[0, 290])
    assert found.isfinite().all()


def test_what_it_leaves_to_pytorch(c: Library) -> None:
    q = noise(1, 9, 2, 64, dtype=c.dtype)
    other = q.float() if c.dtype == BFLOAT16 else q.bfloat16()
    assert c.encoder_attention(q, q, q[:, :8]) is None
    assert c.encoder_attention(q, q, other) is None
    assert c.encoder_attention(*(q.double(),) * 3) is None
    assert c.encoder_attention(*(noise(1, 9, 2, 144, dtype=c.dtype),) * 3) is None
    assert c.encoder_attention(*(noise(1, 2, 9, 64, dtype=c.dtype).transpose(1, 2),) * 3) is None


@pytest.mark.parametrize("amx", [False, True])
def test_which_of_them_is_taken(c: Library, amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """C's, also where int8 lets it round; but not in bfloat16 with AMX, nor in float64."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    monkeypatch.setattr(heads, "library", lambda dtype: c if dtype == c.dtype else None)
    taken: list[str] = []
    run, attend = c.encoder_attention, heads.head_attention
    monkeypatch.setattr(c, "encoder_attention", lambda *a: (taken.append("c"), run(*a))[1])
    monkeypatch.setattr(heads, "head_attention", lambda *a: (taken.append("torch"), attend(*a))[1])
    q = noise(1, 20, 2, 64)
    for operand, rounded in ((q.to(c.dtype), False), (q, True), (q.double(), True)):
        assert encoder_attention(operand, operand, operand, rounded).shape == q.shape
    assert taken == ["torch" if amx and c.dtype == BFLOAT16 else "c", "c", "torch"]
