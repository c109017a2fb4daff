"""Attention kernels against their plain references."""

import pytest
import torch
from torch import Tensor

from slimwhisper.kernels.heads import head_attention, head_attention_reference
from slimwhisper.kernels.latent import latent_attention, latent_attention_reference


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


CASES = [  # batch, queries, positions, width
    (1, 1, 1, 64),
    (1, 6, 1500, 384),
    (3, 8, 17, 512),
    (2, 3, 257, 192),  # heads no power of two
    (5, 40, 33, 128),  # several rows of a slot
    (1, 20, 63, 1280),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_latent_attention(case: tuple[int, int, int, int], masked: bool) -> None:
    batch, count, length, width = case
    queries, latent = normal(batch, count, width), normal(batch, length, width, seed=1)
    bias = None
    if masked:
        lengths = torch.arange(batch) % length + 1
        hidden = torch.arange(length) >= lengths[:, None]
        bias = torch.zeros(batch, 1, length, dtype=torch.float64)
        bias = bias.masked_fill(hidden[:, None], float("-inf"))
    found = latent_attention(queries, latent, 0.125, bias)
    torch.testing.assert_close(found, latent_attention_reference(queries, latent, 0.125, bias))


def test_latent_attention_reads_strided_views() -> None:
    wide = normal(4, 100, 128)
    latent = wide[1:3, :37]
    queries = normal(6, 2, 128, seed=1).transpose(0, 1)
    found = latent_attention(queries, latent, 0.125)
    expected = latent_attention_reference(queries.contiguous(), latent.contiguous(), 0.125)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("gain", "scale"), [(1, 0.125), (100, 1.0)], ids=["usual", "extreme"])
def test_latent_attention_rounds_no_worse_than_pytorch(
    gain: float, scale: float, dtype: torch.dtype
) -> None:
    queries, latent = normal(2, 8, 128, dtype=dtype), normal(2, 300, 128, seed=1, dtype=dtype)
    queries *= gain
    found = latent_attention(queries, latent, scale)
    true = latent_attention_reference(queries.double(), latent.double(), scale)
    scores = queries @ latent.transpose(1, 2) * scale
    naive = scores.float().softmax(dim=-1).to(dtype) @ latent
    assert torch.isfinite(found).all()
    assert (found - true).abs().max() <= 2 * (naive - true).abs().max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 6, 9, 9), (3, 20, 5, 31)], ids=str)
def test_head_attention(shape: tuple[int, int, int, int], causal: bool) -> None:
    batch, heads, count, length = shape
    length = count if causal else length
    queries = normal(batch, heads, count, 64)
    keys, values = (normal(batch, heads, length, 64, seed=s) for s in (1, 2))
    found = head_attention(queries, keys, values, causal=causal)
    expected = head_attention_reference(queries, keys, values, causal=causal)
    torch.testing.assert_close(found, expected)


def test_head_attention_masked() -> None:
    queries, (keys, values) = normal(3, 4, 1, 64), normal(2, 3, 4, 9, 64, seed=1)
    hidden = torch.arange(9) >= torch.tensor([1, 5, 9])[:, None]
    bias = torch.zeros(3, 1, 1, 9, dtype=torch.float64)
    bias = bias.masked_fill(hidden[:, None, None], float("-inf"))
    found = head_attention(queries, keys, values, bias)
    torch.testing.assert_close(found, head_attention_reference(queries, keys, values, bias))
