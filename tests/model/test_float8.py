"""The encoder's products in float8, as on a GPU that has them, which PyTorch emulates on a CPU."""

import torch
import torch.nn.functional as F

from slimwhisper.kernels.attention import round_rows
from slimwhisper.kernels.linear import Float8, Plain, prepare
from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda

DIMS = tiny_dims(width=128, heads=2)


def test_a_product_is_that_of_rounded_numbers() -> None:
    """Against float64, but for the last rounding, to bfloat16. A row keeps its precision."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(48, 32), torch.randn(48).bfloat16(), torch.randn(3, 5, 32)
    weight[7], x = 1e4 * weight[7], x * 10 ** torch.arange(-7.0, 8).view(3, 5, 1)
    matrix = prepare(weight, fp8=round_rows)
    assert isinstance(matrix, Float8)
    rounded, hidden = (
        values.double() * factors
        for values, factors in (round_rows(weight), round_rows(F.gelu(x, approximate="tanh")))
    )
    assert ((rounded - weight).norm(dim=1) < 0.04 * weight.norm(dim=1)).all()
    values, factors = round_rows(x)
    exact = (values.double() * factors) @ rounded.T + bias
    for found, expected in (
        (matrix.multiply(x, bias, None, False), exact),
        (matrix.multiply(x, bias, exact.bfloat16(), True), F.gelu(2 * exact)),
        (matrix.product(x, bias, gelu=True), hidden @ rounded.T + bias),
    ):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.05)
    assert matrix.multiply(torch.full((1, 32), torch.nan), bias, None, False).isnan().all()


def test_the_encoder_is_near() -> None:
    """On a pretended GPU. Convolutions and attention are not rounded; three maps are one product."""
    state, mel = random_state(DIMS, seed=0), torch.randn(2, 80, 3000)
    exact = Encoder(state, DIMS, torch.device("cpu"), torch.float64)(mel)
    with pretend_cuda() as gpu:
        encoder = Encoder(state, DIMS, torch.device("cuda"), torch.float16, "fp8")
        with gpu.counting() as counts:
            found = encoder(mel).cpu()
    assert counts.kernels["_scaled_mm"] == 4 * DIMS.n_audio_layer
    assert isinstance(encoder.conv1.weight, Plain)
    assert found.dtype == torch.float16
    assert 0.01 < (found.double() - exact).norm() / exact.norm() < 0.06
