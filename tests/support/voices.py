"""Made-up voices, and networks that distinguish them: no package and no weights needed."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.speakers import embedding
from slimwhisper.types import SAMPLE_RATE

BANDS = 16
VoiceTurns = Sequence[tuple[int, float, float]]  # voice, start, end in seconds


def sound(turns: VoiceTurns, seconds: float) -> NDArray[np.float32]:
    """Bursts of noise [n], 16 kHz: each voice in a band of its own, and in silence between."""
    rng = np.random.default_rng(0)
    audio = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    for voice, start, end in turns:
        first, last = round(start * SAMPLE_RATE), round(end * SAMPLE_RATE)
        spectrum = np.fft.rfft(rng.standard_normal(last - first))
        width = len(spectrum) // BANDS
        spectrum[: (2 * voice + 1) * width] *= 0.02
        spectrum[(2 * voice + 3) * width :] *= 0.02
        audio[first:last] += 0.1 * np.fft.irfft(spectrum, last - first).astype(np.float32)
    return audio


class BandSegmentation:
    """Who is loud in each frame, by bands, as the network's probabilities."""

    def __call__(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        assert audio.shape == (embedding.WINDOW,) and audio.dtype == np.float32
        fields = np.lib.stride_tricks.sliding_window_view(audio, embedding.FIELD)
        power = np.abs(np.fft.rfft(fields[:: embedding.FRAME][: embedding.FRAMES])) ** 2
        bands = power[:, : power.shape[1] // BANDS * BANDS].reshape(len(power), BANDS, -1).sum(-1)
        loud = np.where(bands.max(1) > 0.1, (bands.argmax(1) - 1) // 2, -1)
        voices = list(dict.fromkeys(loud[loud >= 0].tolist()))[: embedding.LOCAL]
        return (loud[:, None] == [*voices, *[-2] * (embedding.LOCAL - len(voices))]).astype("f4")


class BandVoices:
    """The share of each voice's bands in a spectrogram, as a unit vector."""

    SIZE = 8

    def __call__(self, features: torch.Tensor) -> NDArray[np.float32]:
        mean = features.exp().mean(dim=0).numpy()
        hertz = 700 * np.expm1(np.linspace(31.7, 2840, len(mean)) / 1127)
        voices = ((hertz - 500) / 1000).astype(int).clip(0, self.SIZE - 1)
        power = np.bincount(voices, mean, self.SIZE)
        return embedding.unit(power.astype(np.float32))


def loud_regions(samples: Samples, **_: object) -> list[tuple[int, int]]:
    """Where it is not silent, in place of the voice activity's network, which noise is not for."""
    loud = np.flatnonzero(np.abs(samples.read(0, len(samples))) > 1e-3)
    return [(int(loud[0]), int(loud[-1]))] if len(loud) else []


@pytest.fixture
def made_up_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back end `embedding` with these voices, as if all it needs were installed."""
    pytest.importorskip("scipy", reason="the extra `diarize`, or `dev`, has scipy")
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda backend: [])
    monkeypatch.setattr("slimwhisper.speakers.known.speech_regions", loud_regions)
    monkeypatch.setattr("slimwhisper.speakers.embedding.load_segmentation", BandSegmentation)
    monkeypatch.setattr("slimwhisper.speakers.embedding.load_voices", BandVoices)
