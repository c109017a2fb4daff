"""The encoder on a GPU: products in half precision that add in place, and apply GELU, and products
in float8, which PyTorch emulates on a CPU.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.attention import round_rows
from slimwhisper.kernels.linear import Float8, prepare
from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HALVES = [torch.float16, torch.bfloat16]
DIMS = tiny_dims(width=128, heads=2, audio_layers=3)


def encoded(device: torch.device, dtype: torch.dtype, mel: Tensor, rounded: str = "") -> Tensor:
    """[2, p, d] float64, with biases that matter."""
    state = random_state(DIMS, seed=0)
    for name, tensor in state.items():
        if name.startswith("encoder.") and name.endswith(".bias"):
            state[name] = tensor + 0.3
    encoder = Encoder(state, DIMS, device, dtype, rounded)
    products = 3 if device.type == "cpu" and not rounded else 1
    assert all(len(b.projections) == products for b in encoder.blocks[1:])
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
    if torch.cuda.get_device_capability() >= (8, 9):
        assert_float8_is_near(dtype)


def test_a_product_of_float8_is_that_of_rounded_numbers() -> None:
    """Against float64, but for the last rounding, to bfloat16. A row keeps its precision."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(48, 32), torch.randn(48).bfloat16(), torch.randn(3, 5, 32)
    weight[7], x = 1e4 * weight[7], x * 10 ** torch.arange(-7.0, 8).view(3, 5, 1)
    matrix, curved = prepare(weight, fp8=round_rows), F.gelu(x, approximate="tanh")
    assert isinstance(matrix, Float8)
    rounded, near, hidden = (q.double() * f for q, f in map(round_rows, (weight, x, curved)))
    assert ((rounded - weight).norm(dim=1) < 0.04 * weight.norm(dim=1)).all()
    for gelu, exact in ((False, near @ rounded.T + bias), (True, hidden @ rounded.T + bias)):
        found = matrix.product(x, bias, gelu=gelu)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.05)
    assert matrix.multiply(torch.full((1, 32), torch.nan), bias, None, False).isnan().all()


def assert_float8_is_near(dtype: torch.dtype) -> None:
    """To float64, and nearer to what PyTorch emulates on a CPU."""
    mel = torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(0))
    exact, emulated = encoded(CPU, torch.float64, mel), encoded(CPU, dtype, mel, "fp8")
    found = encoded(CUDA, dtype, mel, "fp8")
    assert 0.01 < (found - exact).norm() / exact.norm() < 0.06
    assert (found - emulated).norm() / exact.norm() < 0.03


def test_float8_is_near() -> None:
    with pretend_cuda() as gpu:
        assert_float8_is_near(torch.float16)
        assert gpu.counts.kernels["_scaled_mm"] == 4 * (DIMS.n_audio_layer - 1)


@pytest.mark.parametrize("name", ["_addmm_activation", "_scaled_mm"])
def test_products_that_are_private_to_pytorch(name: str) -> None:
    gone = f"torch {torch.__version__} has no {name}: kernels/linear.py must do without"
    assert hasattr(torch.ops.aten, name), gone
