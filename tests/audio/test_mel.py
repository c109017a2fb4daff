"""Windows of `Spectrogram` are slices of whisper's spectrogram of the whole recording."""

import json
import subprocess
import sys
import threading
from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from whisper.audio import log_mel_spectrogram, pad_or_trim

from slimwhisper.audio import samples as samples_module
from slimwhisper.audio.load import load_audio, load_samples
from slimwhisper.audio.mel import (
    AHEAD_THREADS,
    KEPT_BLOCKS,
    Spectrogram,
    calibration_mel,
    first_window,
)
from slimwhisper.audio.samples import ArraySamples, Excerpts
from tests.support.paths import ROOT
from tests.support.recordings import ffmpeg, needs_ffmpeg, write
from tests.support.sounds import noise_bursts

LENGTHS = [1, 159, 160, 199, 200, 201, 479_799, 479_800, 479_999, 480_000, 480_001, 95 * 16_000]


def recording(n, seed=0):
    """Float32 [n]: noise bursts, and one click that is loudest, near the end."""
    waveform = noise_bursts(n / 16_000 + 1, seed)[:n]
    waveform[n * 9 // 10] = 0.9
    return waveform


def whispers(waveform, n_mels=80):
    return log_mel_spectrogram(waveform, n_mels, padding=480_000)


def assert_close(actual, expected):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


class CountedSamples(ArraySamples):
    """Counts the reads, and how many samples the longest had."""

    reads = longest = 0

    def read(self, start, stop):
        self.reads += 1
        self.longest = max(self.longest, stop - start)
        return super().read(start, stop)


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("n", LENGTHS)
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
    assert_close(spectrogram.first_window(), expected[:, :3000])
    assert_close(first_window(waveform, n_mels), expected[:, :3000])


def test_windows_in_any_order():
    waveform = recording(200 * 16_000 + 77)
    expected = whispers(waveform)
    spectrogram = Spectrogram(ArraySamples(waveform), 80)
    rng = np.random.default_rng(1)
    starts = [*rng.integers(0, spectrogram.frames, 30), 2999, 3000, 3001, 0, spectrogram.frames - 1]
    for start in map(int, starts):
        for frames in (3000, int(rng.integers(1, 3000))):
            frames = min(frames, spectrogram.frames - start)  # as whisper.transcribe asks
            actual = spectrogram.window(start, frames)
            assert_close(actual, pad_or_trim(expected[:, start : start + frames], 3000))
            assert not actual[:, frames:].any()


def test_frames_after_the_end_are_silent():
    waveform = recording(5_000)
    expected = whispers(waveform)
    spectrogram = Spectrogram(ArraySamples(waveform), 80)
    first = spectrogram.first_window()
    assert_close(first, expected[:, :3000])
    floor = first.min()
    assert (first[:, 40:] == floor).all() and floor != 0
    assert_close(spectrogram.window(20, 3000), expected[:, 20:3020])
    assert not spectrogram.window(5_000, 3000).any()


def test_silence():
    waveform = np.zeros(40_000, np.float32)
    assert_close(
        Spectrogram(ArraySamples(waveform), 80).first_window(), whispers(waveform)[:, :3000]
    )
    nothing = Spectrogram(ArraySamples(waveform[:0]), 80)
    assert nothing.frames == 0
    assert_close(nothing.first_window(), whispers(waveform)[:, :3000])


def test_floor_comes_from_the_loudest_place():
    quiet = 1e-3 * noise_bursts(100, seed=2)
    for loud in (0, 800_000, len(quiet) - 1):  # the first, a middle and the last sample
        waveform = quiet.copy()
        waveform[loud] = 1.0
        expected = whispers(waveform)
        assert expected[:, 3000:4000].min() > whispers(quiet)[:, 3000:4000].min() + 0.1
        spectrogram = Spectrogram(ArraySamples(waveform), 80)
        assert_close(spectrogram.window(3000, 3000), expected[:, 3000:6000])


def test_short_recordings_are_computed_once():
    samples = CountedSamples(recording(119 * 16_000))
    spectrogram = Spectrogram(samples, 80)
    assert samples.reads == KEPT_BLOCKS == 4
    for start in range(0, spectrogram.frames, 700):
        spectrogram.window(start, min(3000, spectrogram.frames - start))
    assert samples.reads == 4


def test_long_recordings_keep_the_last_blocks():
    samples = CountedSamples(recording(300 * 16_000))
    spectrogram = Spectrogram(samples, 80)
    assert samples.reads == 11  # the last block hears the end of the last content frames
    for start in range(0, spectrogram.frames, 700):  # forwards: each block once more
        spectrogram.window(start, min(3000, spectrogram.frames - start))
    assert samples.reads == 11 + 10
    assert len(spectrogram._blocks) == KEPT_BLOCKS
    assert samples.longest <= 480_400


class ThreadedSamples(CountedSamples):
    """Notes the thread of every read; reads wait for `go`."""

    def __init__(self, array):
        super().__init__(array)
        self.threads, self.go = [], threading.Event()
        self.go.set()

    def read(self, start, stop):
        self.threads.append(threading.current_thread())
        assert self.go.wait(20)
        return super().read(start, stop)


def forwards(spectrogram, ready=False):
    """Windows as a session asks for them; `ready`: only when what comes next has been computed."""
    windows = []
    for start in range(0, spectrogram.frames, 2_300):
        windows.append(spectrogram.window(start, min(3000, spectrogram.frames - start)))
        if ready:
            wait([b for b in spectrogram._blocks.values() if isinstance(b, Future)])
    return windows


def test_what_comes_next_is_computed_in_other_threads():
    waveform = recording(300 * 16_000)
    samples = ThreadedSamples(waveform)
    spectrogram = Spectrogram(samples, 80)
    assert len(samples.threads) == 11
    actual = forwards(spectrogram, ready=True)
    assert samples.threads[11] is threading.current_thread()  # the first block
    assert len(samples.threads[12:]) == 9
    assert threading.current_thread() not in samples.threads[12:]
    # the same bits as without other threads
    alone = Spectrogram(ArraySamples(waveform), 80)
    alone._prepare = lambda start: None
    assert all(map(torch.equal, actual, forwards(alone)))


def test_what_other_threads_have_not_begun_is_not_waited_for():
    waveform = recording(300 * 16_000)
    busy = [ThreadedSamples(waveform) for _ in range(AHEAD_THREADS)]
    held = [Spectrogram(samples, 80) for samples in busy]
    for samples, spectrogram in zip(busy, held, strict=True):
        spectrogram.first_window()
        wait([b for b in spectrogram._blocks.values() if isinstance(b, Future)])
        samples.go.clear()
        spectrogram.window(3000, 3000)  # its other thread waits
    samples = CountedSamples(waveform)
    actual = forwards(Spectrogram(samples, 80))
    assert samples.reads == 11 + 10 and len(actual) == 14
    for samples, spectrogram in zip(busy, held, strict=True):
        samples.go.set()
        spectrogram.close()


def test_closing_waits_for_other_threads():
    samples = ThreadedSamples(recording(300 * 16_000))
    spectrogram = Spectrogram(samples, 80)
    samples.go.clear()
    spectrogram._prepare(0)
    pending = [b for b in spectrogram._blocks.values() if isinstance(b, Future)]
    assert len(pending) == 1
    threading.Timer(0.05, samples.go.set).start()
    spectrogram.close()
    assert pending[0].done() and not spectrogram._blocks


def test_input_stays_as_it_is():
    waveform = recording(30_000)
    waveform.flags.writeable = False
    before = waveform.copy()
    windows = [Spectrogram(ArraySamples(waveform), 80).first_window() for _ in range(2)]
    np.testing.assert_array_equal(waveform, before)
    windows[0].zero_()  # the caller's own
    assert windows[1].any()


def test_windows_do_not_share_the_blocks():
    spectrogram = Spectrogram(ArraySamples(recording(30_000)), 80)
    expected = spectrogram.first_window().clone()
    spectrogram.first_window().zero_()
    torch.testing.assert_close(spectrogram.first_window(), expected, rtol=0, atol=0)


def test_excerpts():
    waveform = recording(100 * 16_000)
    regions = [(1_000, 300_000), (300_001, 900_000), (1_234_567, 1_400_000)]
    joined = np.concatenate([waveform[start:stop] for start, stop in regions])
    expected = whispers(joined)
    spectrogram = Spectrogram(Excerpts(ArraySamples(waveform), regions), 80)
    for start in (0, 1_700, 3_000, 5_900):
        frames = min(3000, spectrogram.frames - start)
        part = F.pad(expected[:, start : start + frames], (0, 3000 - frames))
        assert_close(spectrogram.window(start, frames), part)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_spooled_file_equals_memory(tmp_path, monkeypatch, suffix):
    path = write(tmp_path / f"a.{suffix}", seconds=70)
    monkeypatch.setattr(samples_module, "SPOOL_SECONDS", 5)
    spectrogram = Spectrogram(load_samples(path), 80)
    assert spectrogram.samples._file is not None
    in_memory = Spectrogram(ArraySamples(load_audio(path)), 80)
    for start in (6000, 0, 4321):
        frames = min(3000, spectrogram.frames - start)
        actual, expected = (each.window(start, frames) for each in (spectrogram, in_memory))
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    spectrogram.close()
    spectrogram.close()
    with pytest.raises(ValueError):
        spectrogram.window(0, 3000)


def test_calibration_window():
    mel = calibration_mel(80)
    assert mel.shape == (80, 3000) and mel.dtype == torch.float32
    assert torch.equal(mel, calibration_mel(80))
    assert mel.std() > 0.1


SCRIPT = """
import json, re, sys, time
from pathlib import Path
from slimwhisper.audio.load import load_samples
from slimwhisper.audio.mel import Spectrogram

begin = time.perf_counter()
samples = load_samples(sys.argv[1])
loaded = time.perf_counter()
spectrogram = Spectrogram(samples, 128)
made = time.perf_counter()
for start in range(0, 30_000, 3_000):
    spectrogram.window(start, 3_000)
status = Path("/proc/self/status").read_text()  # ru_maxrss would begin with the parent's peak
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024 / 1e6
result = {"MB": peak, "load": loaded - begin, "spectrogram": made - loaded}
print(json.dumps({**result, "frames": spectrogram.frames}))
"""


@needs_ffmpeg
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_memory_does_not_grow_with_the_recording(tmp_path, capsys, suffix):
    loop = write(tmp_path / "loop.wav", seconds=60)
    results = []
    for minutes in (2, 30):
        path = tmp_path / f"{minutes}.{suffix}"
        codec = ["-c:a", "flac", "-compression_level", "0"] if suffix == "flac" else []
        ffmpeg("-stream_loop", "-1", "-i", loop, "-t", 60 * minutes, *codec, path)
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, path],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        results.append(json.loads(run.stdout))
        assert results[-1]["frames"] == 6_000 * minutes
    short, long = results
    with capsys.disabled():
        print(
            f"\n{suffix}: 2 minutes peak at {short['MB']:.0f} MB, 30 at {long['MB']:.0f} MB; "
            f"that takes {long['load']:.1f} s to load, {long['spectrogram']:.1f} s to go over"
        )
    # its samples are kept: 54 MB more of int16, of which the imports' peak may hide a part
    assert long["MB"] - short["MB"] < 66
