"""Recordings for tests: a sweep with noise, in any format that soundfile or ffmpeg writes."""

import shutil
import subprocess

import numpy as np
import pytest
import soundfile

SECONDS = 2.0
STEP = 1 / 32768

needs_ffmpeg = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg program")


def ffmpeg(*args):
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


def convert(path, target, *options):
    ffmpeg("-i", path, *options, target)
    return target
