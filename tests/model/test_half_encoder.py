"""The encoder on a GPU in half precision: products that add in place, and apply GELU."""

import pytest
import torch
from torch import Tensor

from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HALVES = [torch.float16, torch.bfloat16]
DIMS = tiny_dims(width=128, heads=2, audio_layers=3)


def encoded(device: torch.device, dtype: torch.dtype, mel: Tensor) -> Tensor:
    """[2, p, d] float64, with biases that matter."""
    state = random_state(DIMS, seed=0)
    for name, tensor in state.items():
        if name.startswith("encoder.") and name.endswith(".bias"):
            state[name] = tensor + 0.3
    encoder = Encoder(state, DIMS, device, dtype)
    products = 3 if device.type == "cpu" else 1
    assert all(len(b.projections) == products for b in encoder.blocks)
    return encoder(mel).cpu().double()


def assert_as_near(device: torch.device, dtype: torch.dtype) -> None:
    """No further from float64 than PyTorch's layers, one after the other."""
    mel = torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(0))
    exact = encoded(CPU, torch.float64, mel)
    plain, found = ((encoded(d, dtype, mel) - exact).norm() for d in (CPU, device))
    assert 0 < found <= 1.1 * plain


def test_as_near_as_layer_by_layer() -> None:
    with pretend_cuda():
        assert_as_near(CUDA, torch.float16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU")
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_on_a_gpu(dtype: torch.dtype) -> None:
    assert_as_near(CUDA, dtype)
