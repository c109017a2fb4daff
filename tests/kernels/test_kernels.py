"""PyTorch's attention against its definition."""

import pytest
import torch
from torch import Tensor

from slimwhisper.kernels.attention import ALL, Latent, Reads, head_attention
from slimwhisper.kernels.dispatch import Kernels
from tests.support.attention import heads_reference, latent_reference


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def reads_of(lengths: list[int], positions: int) -> Reads:
    """The first positions of each window."""
    ends, bias = torch.tensor(lengths), torch.zeros(len(lengths), 1, positions).double()
    bias.masked_fill_(torch.arange(positions) >= ends[:, None, None], float("-inf"))
    return Reads(lengths=ends, bias=lambda: bias)


def by_torch(queries: Tensor, latent: Tensor, scale: float = 0.125, reads: Reads = ALL) -> Tensor:
    kernels = Kernels(torch.device("cpu"), queries.dtype, "torch")
    return kernels.latent(queries, Latent(latent), scale, reads)


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
    """Of strided views."""
    batch, count, length, width = case
    queries = normal(count, batch, width).transpose(0, 1)
    latent = normal(batch + 1, length + 5, 2 * width, seed=1)[1:, :length, :width]
    reads = reads_of([b % length + 1 for b in range(batch)], length) if masked else ALL
    expected = latent_reference(queries, Latent(latent), 0.125, reads)
    torch.testing.assert_close(by_torch(queries, latent, reads=reads), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("gain", "scale"), [(1, 0.125), (100, 1.0)], ids=["usual", "extreme"])
def test_latent_attention_rounds_no_worse_than_pytorch(
    gain: float, scale: float, dtype: torch.dtype
) -> None:
    queries, latent = normal(2, 8, 128, dtype=dtype), normal(2, 300, 128, seed=1, dtype=dtype)
    queries *= gain
    found = by_torch(queries, latent, scale)
    true = latent_reference(queries.double(), Latent(latent.double()), scale)
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
    found = head_attention(queries, keys, values, is_causal=causal)
    reads = Reads(lengths=torch.arange(1, count + 1).repeat(batch)) if causal else ALL
    expected = heads_reference(queries.transpose(1, 2).flatten(0, 1), keys, values, reads)
    torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), expected)


def test_head_attention_masked() -> None:
    queries, (keys, values) = normal(3, 4, 64), normal(2, 3, 4, 9, 64, seed=1)
    kernels, reads = Kernels(torch.device("cpu"), torch.float64, "torch"), reads_of([1, 5, 9], 9)
    found = kernels.heads(queries, keys, values, reads)
    torch.testing.assert_close(found, heads_reference(queries, keys, values, reads))
