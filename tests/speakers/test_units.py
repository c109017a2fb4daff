"""Units of speech: what stands out of the noise, between pauses."""

from itertools import pairwise

import numpy as np
import pytest

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.speakers.units import MAX_UNIT, find_units

RATE = 16_000
WORDS = ((0.5, 0.9), (1.05, 1.5), (2.0, 2.5), (2.58, 2.7))  # the last is short, and near


def spoken(words: tuple[tuple[float, float], ...], seconds: float, noise: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    audio = noise * rng.standard_normal(round(seconds * RATE))
    for start, end in words:
        n = round((end - start) * RATE)
        audio[round(start * RATE) :][:n] += 0.1 * np.hanning(n) ** 0.2 * rng.standard_normal(n)
    return audio.astype(np.float32)


@pytest.mark.parametrize("noise", [0.0, 1e-5, 1e-3, 1e-2])
def test_words_between_pauses(noise: float) -> None:
    """Whatever the noise; the ends of a stretch may be soft sounds, which belong to it."""
    samples = ArraySamples(spoken(WORDS, 4.0, noise))
    units = find_units(samples, [(9_000, 23_500), (32_500, 42_000)])
    expected = [0.5, 0.9, 1.05, 1.5, 2.0, 2.7]
    assert np.ravel(units) / RATE == pytest.approx(expected, abs=0.045)


def test_long_speech_is_cut_where_it_is_quiet() -> None:
    audio = spoken(((0.2, 4.2),), 4.5, 1e-4)
    audio[int(1.6 * RATE) : int(1.64 * RATE)] *= 0.3  # softer for 40 ms, too short for a pause
    units = find_units(ArraySamples(audio), [(3_200, 67_200)])
    assert [stop for _, stop in units[:-1]] == [start for start, _ in units[1:]]
    assert all(stop - start <= 1.3 * MAX_UNIT * 160 for start, stop in units)
    assert any(abs(stop / RATE - 1.62) < 0.03 for _, stop in units)


def test_silence_and_short_ends() -> None:
    """A stretch always has a unit; no two units overlap."""
    assert find_units(ArraySamples(np.zeros(RATE, np.float32)), [(0, RATE)]) == [(0, RATE)]
    assert find_units(ArraySamples(np.zeros(0, np.float32)), []) == []
    click = ArraySamples(spoken(((0.5, 0.6),), 1.0, 1e-4))
    ((start, stop),) = find_units(click, [(7_000, 10_000)])
    assert (start / RATE, stop / RATE) == pytest.approx((0.5, 0.6), abs=0.03)
    audio = spoken(((0.0, 1.0),), 1.0, 1e-4)
    units = find_units(ArraySamples(audio), [(0, 8_000), (8_000, 16_000)])
    assert all(a[1] <= b[0] for a, b in pairwise(units))
    assert units[0][0] == 0 and units[-1][1] <= 16_000
