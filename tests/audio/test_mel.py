"""Windows of `Spectrogram` are slices of whisper's spectrogram of the whole recording."""

import threading
from concurrent.futures import Future, wait

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from whisper.audio import log_mel_spectrogram, pad_or_trim

from slimwhisper.audio.mel import KEPT_BLOCKS, Spectrogram, calibration_mel, first_window
from slimwhisper.audio.samples import ArraySamples
from tests.support.fuzz import examples
from tests.support.sounds import noise_bursts
from tests.support.waiting import eventually, forked

LENGTHS = [1, 159, 160, 199, 200, 201, 479_799, 479_800, 479_999, 480_000, 480_001, 95 * 16_000]


def recording(n, seed=0):
    """Float32 [n]: noise bursts, and one click that is loudest, near the end."""
    waveform = noise_bursts(n / 16_000 + 1, seed)[:n]
    waveform[n * 9 // 10] = 0.9
    return waveform


@pytest.fixture(scope="module")
def long():
    """Float32, 300 s: ten blocks, of which some are kept."""
    return recording(300 * 16_000)


def ahead(spectrogram):
    return [b for b in spectrogram._blocks.values() if isinstance(b, Future)]


def whispers(waveform, n_mels=80):
    return log_mel_spectrogram(waveform, n_mels, padding=480_000)


def assert_close(actual, expected):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


class WatchedSamples(ArraySamples):
    """Notes the thread of every read and the longest one's samples; reads wait for `go`."""

    def __init__(self, array):
        super().__init__(array)
        self.threads, self.longest, self.go = [], 0, threading.Event()
        self.go.set()

    def read(self, start, stop):
        self.threads.append(threading.current_thread())
        self.longest = max(self.longest, stop - start)
        assert self.go.wait(20)
        return super().read(start, stop)


@pytest.mark.parametrize(("n", "n_mels"), [*((n, 80) for n in LENGTHS), (201, 128), (480_001, 128)])
def test_every_frame_is_whispers(n, n_mels):
    waveform = recording(n)
    expected = whispers(waveform, n_mels)
    spectrogram = Spectrogram(ArraySamples(waveform), n_mels)
    assert spectrogram.n_mels == n_mels
    assert spectrogram.frames == expected.shape[1] - 3000 == n // 160
    for start in range(0, expected.shape[1], 3000):
        part = expected[:, start : start + 3000]
        actual = spectrogram.window(start, 3000)
        assert_close(actual[:, : part.shape[1]], part)
        assert not actual[:, part.shape[1] :].any()
    assert_close(spectrogram.window(0, 3000), expected[:, :3000])
    assert_close(first_window(waveform, n_mels), expected[:, :3000])


@pytest.fixture(scope="module")
def pieces():
    """A recording of 200 s, its spectrogram, and whisper's."""
    waveform = recording(200 * 16_000 + 77)
    return Spectrogram(ArraySamples(waveform), 80), whispers(waveform)


@examples(60)
@given(st.integers(0, 20_000) | st.sampled_from((2999, 3000, 3001)), st.integers(1, 3000))
def test_windows_in_any_order(pieces, start, most):
    """However the recording is cut, as by whisper.transcribe."""
    spectrogram, expected = pieces
    start = min(start, spectrogram.frames - 1)
    frames = min(most, spectrogram.frames - start)
    actual = spectrogram.window(start, frames)
    assert_close(actual, pad_or_trim(expected[:, start : start + frames], 3000))


@pytest.mark.parametrize("n", [5_000, 0])
def test_silence_has_the_recordings_floor(n):
    """After the end, and where there is nothing else."""
    waveform = recording(n) if n else np.zeros(0, np.float32)
    expected = whispers(waveform if n else np.zeros(40_000, np.float32))
    spectrogram = Spectrogram(ArraySamples(waveform), 80)
    first = spectrogram.window(0, 3000)
    assert_close(first, expected[:, :3000])
    assert (first[:, 40:] == first.min()).all() and first.min() != 0
    assert not spectrogram.window(5_000, 3000).any()


def test_blocks_are_computed_ahead_and_few_are_kept(long):
    """In other threads, once unless they are far apart; and the bits are the same without."""
    samples = WatchedSamples(long)
    spectrogram = Spectrogram(samples, 80)
    first = len(samples.threads)
    assert set(samples.threads) == {threading.current_thread()}
    windows = []
    for start in range(0, spectrogram.frames, 2_300):
        windows.append(spectrogram.window(start, min(3000, spectrogram.frames - start)))
        wait(ahead(spectrogram))
        assert len(spectrogram._blocks) <= KEPT_BLOCKS
    again = samples.threads[first:]
    assert len(again) == 10 and again.count(threading.current_thread()) == 1, "the first block"
    assert samples.longest <= 480_400, "none is read as a whole"
    alone = Spectrogram(ArraySamples(long), 80)
    alone._prepare = lambda start: None
    for start, window in zip(range(0, alone.frames, 2_300), windows, strict=True):
        assert torch.equal(window, alone.window(start, min(3000, alone.frames - start)))
    short = WatchedSamples(long[: 119 * 16_000])
    spectrogram = Spectrogram(short, 80)
    reads = len(short.threads)
    for start in range(0, spectrogram.frames, 700):
        spectrogram.window(start, min(3000, spectrogram.frames - start))
    assert len(short.threads) == reads, "all blocks are kept"


def test_closing_waits_for_other_threads(long):
    """A child of fork has none of them: it computes their blocks, and begins others in its own."""
    samples = WatchedSamples(long)
    spectrogram = Spectrogram(samples, 80)
    samples.go.clear()
    spectrogram._prepare(3000)
    (pending,) = ahead(spectrogram)

    def computes():
        samples.go.set()
        spectrogram.window(3000, 3000)
        return eventually(lambda: all(block.done() for block in ahead(spectrogram)))

    computed = forked(computes)
    threading.Timer(0.05, samples.go.set).start()
    spectrogram.close()
    assert pending.done() and not spectrogram._blocks and computed()


def test_calibration_window():
    mel = calibration_mel(80)
    assert mel.shape == (80, 3000) and mel.dtype == torch.float32
    assert torch.equal(mel, calibration_mel(80))
    assert mel.std() > 0.1
