"""The spectrogram of a growing buffer: the whole recording's as the reference."""

import numpy as np
import pytest
import torch

from slimwhisper.audio.mel import Spectrogram, first_window
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.live.mel import LiveMel

RNG = np.random.default_rng(0)
NOISE = (0.1 * RNG.standard_normal(9 * 16_000)).astype(np.float32)


def assert_close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-4, rtol=0)


@pytest.mark.parametrize("count", [1, 159, 160, 200, 201, 401, 48_000])
def test_it_is_that_of_the_samples_at_once(count: int) -> None:
    mel = LiveMel(80, 1000)
    at = 0
    while at < count:
        step = int(RNG.integers(0, 7_000))
        mel.append(NOISE[at : min(at + step, count)])
        at += step
        if at % 2:  # looking changes nothing
            mel.window(mel.frames)
    assert mel.frames == count // 160
    assert_close(mel.window(mel.frames), first_window(NOISE[:count], 80, 1000))
    silence = LiveMel(80, 300)
    silence.append(np.zeros(count, np.float32))
    assert_close(silence.window(silence.frames), first_window(np.zeros(count, np.float32), 80, 300))


def test_a_part_of_the_buffer() -> None:
    mel = LiveMel(80, 500)
    mel.append(NOISE)
    window, whole = mel.window(200), Spectrogram(ArraySamples(NOISE), 80).window(0, 200)
    assert_close(window[:, :200], whole[:, :200])
    floor = window[:, :200].max() - 2  # 8 decades, of which 4 are 1
    assert_close(window[:, 200:], floor.expand(80, 300))


def test_after_a_cut_it_goes_on_as_if_there_were_none() -> None:
    mel = LiveMel(80, 500)
    mel.append(NOISE[:70_000])
    mel.window(300)
    mel.cut(211)
    mel.append(NOISE[70_000:90_000])
    mel.cut(100)
    frames = 90_000 // 160 - 311
    assert mel.frames == frames
    # the loudest bin is the same here, so that the floor is
    expected = Spectrogram(ArraySamples(NOISE[:90_000]), 80).window(311, frames + 3)
    assert_close(mel.window(frames)[:, : frames + 3], expected[:, : frames + 3])


def test_it_keeps_frames_not_samples() -> None:
    mel = LiveMel(80, 500)
    for _ in range(50):
        mel.append(NOISE[:16_000])
        mel.cut(mel.complete)
    assert mel._logs.shape[1] == 0 and len(mel._samples) < 400 and not mel._pending
