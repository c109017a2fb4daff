"""Made-up voices, and an encoder that distinguishes them: no package and no weights needed."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

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


class BandEncoder:
    """The share of each band in a window's power, as a unit vector [BANDS]."""

    def embed(self, windows: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
        vectors = []
        for window in windows:
            assert 0 < len(window) <= 25_600 and window.dtype == np.float32
            power = np.abs(np.fft.rfft(window, 25_600))[1 : 12_800 // BANDS * BANDS + 1] ** 2
            bands = power.reshape(BANDS, -1).sum(axis=1)
            vectors.append(bands / max(np.linalg.norm(bands), 1e-12))
        return np.array(vectors, np.float32).reshape(-1, BANDS)


def loud_regions(samples: object, *, min_silence_ms: int, pad_ms: int) -> list[tuple[int, int]]:
    """Where it is not silent, in place of the voice activity's network, which noise is not for."""
    audio = samples.read(0, len(samples))  # type: ignore[attr-defined, arg-type]
    frames = np.abs(audio[: len(audio) // 160 * 160]).reshape(-1, 160).max(axis=1) > 1e-3
    edges = np.flatnonzero(np.diff(frames, prepend=False, append=False)) * 160
    regions: list[tuple[int, int]] = []
    for start, stop in edges.reshape(-1, 2).tolist():
        if regions and start - regions[-1][1] < min_silence_ms * 16:
            regions[-1] = (regions[-1][0], stop)
        else:
            regions.append((start, stop))
    return regions


@pytest.fixture
def made_up_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back end `embedding` with these voices, as if all it needs were installed."""
    pytest.importorskip("sklearn", reason="the extra `diarize`, or `dev`, has scikit-learn")
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda backend: [])
    monkeypatch.setattr("slimwhisper.speakers.embedding.speech_regions", loud_regions)
    for module in ("embedding", "known"):
        monkeypatch.setattr(f"slimwhisper.speakers.{module}.load_encoder", BandEncoder)
