"""Sounds made up for tests."""

import io

import numpy as np
import soundfile


def wav(
    samples: np.ndarray, rate: int = 16_000, format: str = "WAV", kind: str = "PCM_16"
) -> bytes:
    """A file of samples [n] or [n, channels]."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=kind)
    return file.getvalue()


def noise_bursts(seconds: float, seed: int) -> np.ndarray:
    """Float32 [n] at 16 kHz: seeded noise that swells and stops, so that windows differ."""
    rng = np.random.default_rng(seed)
    n = int(seconds * 16_000)
    envelope = np.repeat(rng.uniform(0, 0.3, n // 4_000 + 1), 4_000)[:n]
    return (rng.standard_normal(n) * envelope).astype(np.float32)


def claps(seconds: float) -> np.ndarray:
    """Float32 [n] at 16 kHz: four claps a second; `digits` writes words for them."""
    rng, fade = np.random.default_rng(0), np.exp(-np.arange(4_000) / 250)
    found = [rng.standard_normal(4_000) * fade for _ in range(round(4 * seconds))]
    return (0.2 * np.concatenate(found)).astype(np.float32)
