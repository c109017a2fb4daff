"""Resemblyzer's speaker encoder: 1.6 s of audio -> an embedding of the voice, 256 numbers.

A GE2E network (Wan et al., arXiv 1710.10467): three LSTM layers over a mel spectrogram of 40
bands. The weights are those in the package resemblyzer. Its modules are not imported: they need
packages for reading and trimming audio that often fail to install.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import util
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimwhisper.audio.threads import use_one_thread
from slimwhisper.errors import DependencyError
from slimwhisper.text import error_line, install_command
from slimwhisper.types import SAMPLE_RATE

WINDOW = 25_600  # samples: 1.6 s
SIZE = 256  # of an embedding
_BANDS, _FFT, _HOP, _FRAMES = 40, 400, 160, 160
_BATCH = 64  # windows

_loading = threading.Lock()


class VoiceEncoder(nn.Module):
    """The network. It is never changed after loading, so threads may share it."""

    bands: Tensor  # [201, 40]
    taper: Tensor  # [400]

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_BANDS, SIZE, num_layers=3, batch_first=True)
        self.linear = nn.Linear(SIZE, SIZE)
        self.register_buffer("bands", _mel_bands(), persistent=False)
        self.register_buffer("taper", torch.hann_window(_FFT), persistent=False)

    def forward(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """audio [B, n] float32, 16 kHz; lengths [B] int64, in samples, at most WINDOW, after which
        there are zeros -> unit vectors [B, 256] float32.
        """
        # librosa's melspectrogram, as in training: power, Slaney's bands, zeros at both ends
        spectrum = torch.stft(
            audio, _FFT, _HOP, window=self.taper, pad_mode="constant", return_complex=True
        )
        mel = spectrum.abs().square().transpose(1, 2) @ self.bands  # [B, frames, 40]
        outputs, _ = self.lstm(mel[:, :_FRAMES])
        last = (lengths // _HOP).clamp(max=_FRAMES - 1)  # each one's last frame
        hidden = outputs[torch.arange(len(last)), last]
        return nn.functional.normalize(self.linear(hidden).relu(), dim=1)

    def embed(self, windows: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Windows of up to WINDOW samples, float32 -> unit vectors [number, 256], in batches."""
        # while a model decodes, one thread is faster than several that compete with its threads
        with ThreadPoolExecutor(1, initializer=use_one_thread) as pool:
            return pool.submit(self._embed_all, windows).result()

    @torch.inference_mode()
    def _embed_all(self, windows: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
        parts, remaining = [np.zeros((0, SIZE), np.float32)], iter(windows)
        while batch := list(islice(remaining, _BATCH)):
            audio = nn.utils.rnn.pad_sequence([torch.from_numpy(w) for w in batch], True)
            parts.append(self(audio, torch.tensor([len(w) for w in batch])).numpy())
        return np.concatenate(parts)


def load_encoder() -> VoiceEncoder:
    """The encoder with resemblyzer's weights, on the CPU, loaded once.

    Raises DependencyError if the package, or its file of weights, is missing.
    """
    with _loading:
        return _load()


@cache
def _load() -> VoiceEncoder:
    spec = util.find_spec("resemblyzer")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise DependencyError(
            f"the speaker encoder needs resemblyzer: {install_command('diarize')}"
        )
    file = Path(folders[0]) / "pretrained.pt"
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)["model_state"]
        encoder = VoiceEncoder()
        encoder.load_state_dict({k: v for k, v in state.items() if not k.startswith("similarity")})
    except Exception as error:
        raise DependencyError(
            f"{file}: not resemblyzer's weights ({error_line(error)}); "
            "pip install --force-reinstall resemblyzer"
        ) from None
    return encoder.eval().requires_grad_(False)


def _mel_bands(count: int = _BANDS) -> Tensor:
    """Slaney's mel filters, each of area 1 over frequency: [201, count] float32."""
    # linear up to 1000 Hz, then a factor of 6.4 in 27 steps
    corner, step = 15.0, np.log(6.4) / 27  # mels, of 200/3 Hz below
    top = corner + np.log(SAMPLE_RATE / 2 / 1000) / step
    mels = np.linspace(0, top, count + 2)
    edges = np.where(mels < corner, mels * 200 / 3, 1000 * np.exp(step * (mels - corner)))
    bins = np.linspace(0, SAMPLE_RATE / 2, _FFT // 2 + 1)
    rise = (bins[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    fall = (edges[2:] - bins[:, None]) / np.diff(edges)[1:]
    filters = np.maximum(0, np.minimum(rise, fall)) * 2 / (edges[2:] - edges[:-2])
    return torch.from_numpy(filters.astype(np.float32))
