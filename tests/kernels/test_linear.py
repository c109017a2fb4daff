"""Packed weights: the same products, by oneDNN, with no more rounding than the rule allows."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import slimwhisper.kernels.linear as layers
from slimwhisper.kernels.linear import PACKED_DEPTH, Packed, Plain, linear, pack, packed_width

packs = isinstance(pack(torch.zeros(2, 2)), Packed)
needs_packing = pytest.mark.skipif(not packs, reason="oneDNN's packed products are for x86 CPUs")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@needs_packing
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("depth", [1, 64, PACKED_DEPTH, PACKED_DEPTH + 1, 1280])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 1, 7)], ids=str)
def test_packed_products(
    shape: tuple[int, ...], depth: int, addend: bool, biased: bool, gelu: bool
) -> None:
    x, weight = noise(*shape, depth), noise(40, depth, seed=1)
    bias = noise(40, seed=2) if biased else None
    base = noise(*shape, 40, seed=3) if addend else None
    expected = F.linear(x.double(), weight.double())
    for term in (bias, base):
        expected = expected if term is None else expected + term
    expected = F.gelu(expected) if gelu else expected
    for kind in (pack(weight), weight):
        found = linear(x, kind, bias, gelu, base)
        torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-5)


@needs_packing
def test_columns_of_a_wider_tensor() -> None:
    x, weight = noise(6, 2, 100).transpose(0, 1)[:, :, 20:84], noise(5, 64, seed=1)
    torch.testing.assert_close(linear(x, pack(weight)), F.linear(x, weight))


@needs_packing
@pytest.mark.parametrize("depth", [384, 512, 768, 1024, 1280, 2048, 5120])
def test_parts_keep_rounding_within_the_rule(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most twice the error of `F.linear`, which one part alone would pass for wide layers."""
    x, weight = noise(64, depth), noise(512, depth, seed=1)
    truth = x.double() @ weight.double().T

    def error(y: Tensor) -> float:
        return float((y.double() - truth).pow(2).mean().sqrt())

    plain = error(F.linear(x, weight))
    assert error(linear(x, pack(weight))) <= 2 * plain
    assert isinstance(pack(weight), Packed)
    assert len(pack(weight).parts) == -(-depth // PACKED_DEPTH)


def test_what_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = {"avx512_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: claimed)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert isinstance(pack(torch.zeros(2, 2, dtype=dtype)), Plain)
    claimed["avx512_bf16"] = True
    assert packed_width(torch.zeros(2, 2, dtype=torch.bfloat16)) == (2 if packs else None)
    assert isinstance(pack(torch.zeros(2, 2, device="meta")), Plain)
    monkeypatch.setattr(layers.platform, "machine", lambda: "aarch64")
    assert isinstance(pack(torch.zeros(2, 2)), Plain)
