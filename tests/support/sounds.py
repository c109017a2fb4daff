"""Sounds made up for tests, and recordings in any format that soundfile or ffmpeg writes."""

import io
import shutil
import subprocess

import numpy as np
import pytest
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


SECONDS = 2.0
STEP = 1 / 32768


def ffmpeg(*args):
    if not shutil.which("ffmpeg"):
        pytest.skip("no ffmpeg program")
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", *map(str, args)]
    return subprocess.run(command, check=True, capture_output=True).stdout


def sound(rate, channels=1, seconds=SECONDS):
    """A sweep with noise, float64 [n, channels]."""
    t = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(7).standard_normal((len(t), channels))
    sweep = np.sin(2 * np.pi * (200 + 300 * t[:, None]) * t[:, None] + np.arange(channels))
    return 0.4 * sweep + 0.05 * noise


def write(path, rate=16000, channels=1, seconds=SECONDS, **options):
    soundfile.write(path, sound(rate, channels, seconds), rate, **options)
    return path


def outputs(folder, targets):
    """For several files by one `ffmpeg`, as it takes long to start: their names and options."""
    return [part for name, options in targets.items() for part in (*options, folder / name)]


def convert(path, target, *options):
    ffmpeg("-i", path, *options, target)
    return target
