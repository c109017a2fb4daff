"""The encoder: its convolutions' numbers, that silence is convolved once, and products of a GPU in
half precision, which add in place, and apply GELU.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import processor_has
from slimwhisper.kernels.linear import Packed
from slimwhisper.model import encoder as encoder_module
from slimwhisper.model.encoder import LEAST_FRAMES, Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIMS = tiny_dims(width=128, heads=2)
KINDS = [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]


@pytest.mark.parametrize(("dtype", "int8"), KINDS)
def test_convolutions(dtype: torch.dtype, int8: bool) -> None:
    """As products in bfloat16 with packed weights, they are no further off than PyTorch's own in
    bfloat16; in float32 they are PyTorch's.
    """
    narrow = int8 or dtype == torch.bfloat16
    if narrow and not processor_has("avx512_bf16"):
        pytest.skip("a processor without AVX512-BF16")
    state, x = random_state(DIMS, seed=0), torch.randn(2, 400, 80)
    encoder = Encoder(state, DIMS, CPU, dtype, int8)
    found = encoder.conv2(encoder.conv1(x.to(dtype)))

    def by_pytorch(dtype: torch.dtype) -> torch.Tensor:
        y = x.to(dtype).transpose(1, 2)
        for stride, name in enumerate(("encoder.conv1", "encoder.conv2"), 1):
            weight, bias = (state[f"{name}.{part}"].to(dtype) for part in ("weight", "bias"))
            y = F.gelu(F.conv1d(y, weight, bias, stride, padding=1))
        return y.transpose(1, 2).double()

    exact = by_pytorch(torch.float64)
    assert found.shape == (2, 200, DIMS.n_audio_state)
    assert found.dtype == (torch.bfloat16 if narrow else torch.float32)
    error, plain = ((y - exact).norm() for y in (found, by_pytorch(found.dtype)))
    assert 0 < error <= 1.1 * plain
    for convolution in (encoder.conv1, encoder.conv2):
        assert isinstance(convolution.weight, Packed) == narrow


@pytest.mark.parametrize(("dtype", "int8"), KINDS)
@pytest.mark.parametrize("length", [3000, 1000])
def test_silence_is_convolved_once(
    dtype: torch.dtype, int8: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it begins, in the longest of the windows, the result is that of all frames."""
    if dtype == torch.bfloat16 and not processor_has("avx512_bf16"):
        pytest.skip("a processor without AVX512-BF16")
    torch.manual_seed(0)
    encoder, seen = Encoder(random_state(DIMS, seed=0), DIMS, CPU, dtype, int8), []
    until = encoder_module._until_silence
    monkeypatch.setattr(
        encoder_module, "_until_silence", lambda x: seen.append(until(x)) or seen[-1]
    )
    heard = [0, 1, 377, 378, 379, 700, *range(length - 9, length + 1)]
    for at, frames in enumerate(heard):
        x = torch.full((2, length, 80), -0.4, dtype=dtype)
        x[0, :frames] = torch.randn(frames, 80)
        x[1, : frames // 2] = 1.0
        torch.testing.assert_close(encoder._convolve(x), encoder.conv2(encoder.conv1(x)))
        least = min(max(frames + 6, LEAST_FRAMES), length)
        assert least <= seen[at] <= min(least + 1, length) and seen[at] % 2 == 0
    whole = torch.zeros(1, LEAST_FRAMES, 80, dtype=dtype)
    assert encoder._convolve(whole).shape[1] == LEAST_FRAMES // 2


def test_elsewhere_the_host_does_not_ask() -> None:
    """On a GPU it would wait for the frames."""
    frames = torch.zeros(1, 3000, 80, device="meta")
    assert encoder_module._until_silence(frames) == 3000


# -- in half precision -----------------------------------------------------------------------------


HALVES = [torch.float16, torch.bfloat16]
DEEP = tiny_dims(width=128, heads=2, audio_layers=3)


def encoded(device: torch.device, dtype: torch.dtype, mel: Tensor) -> Tensor:
    """[2, p, d] float64, with biases that matter."""
    state = random_state(DEEP, seed=0)
    for name, tensor in state.items():
        if name.startswith("encoder.") and name.endswith(".bias"):
            state[name] = tensor + 0.3
    encoder = Encoder(state, DEEP, device, dtype)
    products = 3 if device.type == "cpu" else 1
    assert all(len(b.projections) == products for b in encoder.blocks)
    return encoder(mel).cpu().double()


def assert_as_near(device: torch.device, dtype: torch.dtype) -> None:
    """No further from float64 than PyTorch's layers, one after the other."""
    mel = torch.randn(2, 80, 1000, generator=torch.Generator().manual_seed(0))
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
