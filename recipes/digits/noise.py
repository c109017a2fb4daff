"""What else a microphone picks up: colored noise, hum, tones, rooms and telephone bands.

Samples are float32 [n] at 16 kHz.
"""

import numpy as np
import soxr
from numpy.random import Generator

from recipes.digits.voices import RATE, Samples


def coloured(rng: Generator, n: int, slope: float) -> Samples:
    """Noise [n] whose power falls with frequency to the `slope`: 0 white, 1 pink, 2 brown."""
    if slope == 0:
        return rng.standard_normal(n, dtype=np.float32)
    size = 1 << (n - 1).bit_length()
    shape = np.arange(1, size // 2 + 2, dtype=np.float32) ** (-slope / 2)
    phases = rng.standard_normal((2, size // 2 + 1), dtype=np.float32)
    return _unit(np.fft.irfft((phases[0] + 1j * phases[1]) * shape)[:n].astype(np.float32))


def hiss(rng: Generator, n: int) -> Samples:
    """Noise [n] of one of three colours."""
    return coloured(rng, n, float(rng.choice([0.0, 0.0, 1.0, 2.0])))


def hum(rng: Generator, n: int) -> Samples:
    """Mains hum [n]: 50 or 60 Hz and harmonics."""
    base = rng.choice([50.0, 60.0]) * rng.uniform(0.99, 1.01)
    time = np.arange(n, dtype=np.float32) / RATE
    total = np.zeros(n, np.float32)
    for k in range(1, int(rng.integers(2, 12))):
        level = rng.uniform(0.1, 1) / k
        total += level * np.sin(2 * np.pi * k * base * time + rng.uniform(0, 6.28))
    return _unit(total)


def tones(rng: Generator, n: int) -> Samples:
    """Notes one after another [n], some of them chords, in several timbres: like music."""
    total = np.zeros(n, np.float32)
    at, slow = 0, rng.uniform(0.15, 0.9)
    while at < n:
        length = min(int(rng.uniform(0.5, 1.5) * slow * RATE) + 1, n - at)
        time = np.arange(length, dtype=np.float32) / RATE
        shape = np.exp(-time * rng.uniform(0, 6)) * np.minimum(time * 50, 1)
        for _ in range(int(rng.integers(1, 4))):
            pitch = 440 * 2 ** (rng.integers(-28, 28) / 12)
            for k in range(1, int(rng.integers(2, 6))):
                if k * pitch < RATE / 2:
                    total[at : at + length] += shape * np.sin(2 * np.pi * k * pitch * time) / k
        at += length
    return _unit(total)


def clicks(rng: Generator, n: int) -> Samples:
    """Single clicks [n]."""
    total = np.zeros(n, np.float32)
    for _ in range(int(rng.integers(1, 30))):
        tap = rng.standard_normal(int(rng.integers(5, 300)), dtype=np.float32)
        at = int(rng.integers(0, n))
        total[at : at + len(tap)] += tap[: n - at] * np.linspace(1, 0, len(tap))[: n - at]
    return total / np.float32(3)


def background(rng: Generator, audio: Samples, alone: bool) -> Samples:
    """`audio` with a random background, or that background alone, from silent to loud."""
    if rng.random() < 0.2:
        return audio
    shares = (0.55, 0.1, 0.12, 0.03) if alone else (0.55, 0.1, 0.05, 0.1)
    makers = (hiss, hum, tones, clicks)
    sound = makers[rng.choice(len(makers), p=np.divide(shares, 0.8))](rng, len(audio))
    if alone:
        return np.clip(sound * 10 ** rng.uniform(-4, -0.5), -1, 1).astype(np.float32)
    loud = audio[np.abs(audio) > 0.01]
    level = float(np.sqrt(np.mean(np.square(loud)))) if len(loud) else 0.1
    ratio = rng.uniform(8, 45)  # decibels
    return audio + sound * np.float32(level * 10 ** (-ratio / 20))


def faster(word: Samples, pace: float) -> Samples:
    """A word played `pace` times as fast, with formants and pitch shifted: [n] -> [n / pace]."""
    return word if pace == 1 else np.asarray(soxr.resample(word, RATE * pace, RATE, quality="LQ"))


def worn(rng: Generator, word: Samples, hiss: float) -> Samples:
    """A word as in badly cut recordings: without its very ends, and with `hiss` only under it."""
    if rng.random() < 0.3:
        longest = min(len(word) // 6, RATE * 7 // 100)
        word = word[int(rng.integers(0, longest)) : len(word) - int(rng.integers(0, longest))]
    if hiss:
        power = np.sqrt(np.mean(np.square(word)))
        word = word + coloured(rng, len(word), float(rng.choice([0.0, 1.0]))) * power * hiss
    return word.astype(np.float32)


def tilted(rng: Generator, audio: Samples, muffled: bool) -> Samples:
    """Through a microphone that favours low or high notes; `muffled`: and a 4 kHz telephone."""
    lean = np.float32(rng.uniform(-0.5, 0.5))
    audio = (audio + lean * np.concatenate([audio[:1], audio[:-1]])).astype(np.float32)
    if muffled:
        narrow = soxr.resample(audio, RATE, RATE // 2)
        audio[:] = np.resize(soxr.resample(narrow, RATE // 2, RATE), len(audio))
    return audio


def coloration(rng: Generator, bands: int = 80) -> Samples:
    """A smooth curve [bands] over mel bands, in powers of ten: a microphone's response."""
    positions = (np.arange(bands) + 0.5) / bands
    waves = [rng.normal(0, 0.5 / k**0.5) * np.cos(np.pi * k * positions) for k in range(1, 6)]
    return np.sum(waves, axis=0).astype(np.float32)


def reverberated(rng: Generator, audio: Samples) -> Samples:
    """In a room whose echo fades by 60 dB in 0.1 to 0.4 s."""
    n = int(rng.uniform(0.1, 0.4) * RATE)
    echo = rng.standard_normal(n) * np.exp(-6.9 * np.arange(n) / n) * rng.uniform(0.01, 0.06)
    echo[0] = 1.0
    size = 1 << (len(audio) + n - 1).bit_length()
    product = np.fft.rfft(audio, size) * np.fft.rfft(echo, size)
    return np.fft.irfft(product)[: len(audio)].astype(np.float32)


def _unit(x: Samples) -> Samples:
    return (x / max(float(np.sqrt(np.mean(np.square(x)))), 1e-9)).astype(np.float32)
