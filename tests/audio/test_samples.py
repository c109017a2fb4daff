"""Arrays as waveforms, resampled; and samples read in stretches, wherever they are kept."""

import builtins
import gc
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slimwhisper.audio import load as audio
from slimwhisper.audio import samples as samples_module
from slimwhisper.audio.load import as_waveform, load_channels, load_samples, resample, resampler
from slimwhisper.audio.samples import ArraySamples, Excerpts, Samples, StoredSamples
from slimwhisper.errors import AudioError, OptionError, StorageError
from tests.support.fuzz import examples
from tests.support.sounds import STEP, convert, sound, write

N = 50_000
RANGES = [(0, N), (0, 1), (17, 4_000), (N - 1, N), (N - 10, N + 10), (-5, 5), (-9, -1), (9, 9)]
RANGES += [(30, 20), (N, N + 5), (N + 5, N + 9), (-5, N + 5)]


def pieces(count=7):
    """Seeded int16 [50000] in pieces of odd lengths; the extreme values are among them."""
    values = np.random.default_rng(0).integers(-32768, 32768, N).astype(np.int16)
    values[:2] = -32768, 32767
    return np.split(values, [11, 12, 500, 20_000, 20_000, 40_001][: count - 1])


def whole():
    return np.concatenate(pieces()).astype(np.float32) / 32768


@pytest.fixture
def spooling(monkeypatch):
    """Keep all but the shortest samples in a file."""
    monkeypatch.setattr(samples_module, "SPOOL_SECONDS", 1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of temporary files, empty."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def files_open_in(folder):
    targets = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [target for target in targets if target.startswith(str(folder))]


def assert_reads(samples, expected):
    assert len(samples) == len(expected)
    for start, stop in RANGES:
        actual = samples.read(start, stop)
        assert actual.dtype == np.float32
        np.testing.assert_array_equal(actual, expected[max(start, 0) : max(stop, 0)])


def test_kept_in_memory(folder):
    array = whole()
    shared, stored = ArraySamples(array), StoredSamples("a", pieces())
    assert np.shares_memory(shared.read(5, 9), array)
    assert np.shares_memory(load_samples(array).read(0, N), array)
    assert not files_open_in(folder)
    for samples in (shared, stored):
        assert_reads(samples, array)
        samples.close()
        samples.close()


def test_stored_in_a_file(spooling, folder):
    """It is closed, too, when it is collected."""
    samples = StoredSamples("a", pieces())
    assert_reads(samples, whole())
    assert len(files_open_in(folder)) == 1
    assert not list(folder.iterdir())  # the file has no name
    samples.close()
    samples.close()
    assert not files_open_in(folder)
    with pytest.raises(ValueError):
        samples.read(0, 1)
    samples = StoredSamples("a", pieces())
    samples.itself = samples
    assert files_open_in(folder)
    del samples
    gc.collect()
    assert not files_open_in(folder)


@pytest.mark.parametrize("count", [1, 7])  # at the first write, and at a later one
def test_full_disk(spooling, folder, monkeypatch, count):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b"))
    with pytest.raises(StorageError, match=f"^talk.mp3: no space .* {folder} .* TMPDIR"):
        StoredSamples("talk.mp3", pieces(count))
    assert not files_open_in("/dev/full")


def test_threads_read_at_once(spooling):
    samples, expected = StoredSamples("a", pieces()), whole()
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for start in rng.integers(0, N, 300):
            if not np.array_equal(samples.read(start, start + 700), expected[start : start + 700]):
                wrong.append(start)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    assert not wrong
    samples.close()


@examples(150)
@given(st.lists(st.integers(-9, 99), max_size=14).map(sorted), st.integers(-3, 99), st.data())
def test_excerpts(borders, start, data):
    """They are the concatenation of regions, which may touch, be empty or lie outside; what is in
    them maps back in order, and a word into the region of its middle.
    """
    regions = list(zip(borders[::2], borders[1::2], strict=False))
    excerpts = Excerpts(ArraySamples(np.arange(90, dtype=np.float32)), regions)
    originals = [i for a, b in regions for i in range(max(a, 0), min(b, 90))]
    count = len(originals)
    assert len(excerpts) == count
    stop = data.draw(st.integers(-3, 99))
    read = excerpts.read(start, stop)
    assert read.dtype == np.float32 and read.tolist() == originals[max(start, 0) : max(stop, 0)]
    assert [excerpts.original(i) for i in range(count)] == originals
    ends = [excerpts.original(i, end=True) for i in range(1, count + 1)]
    assert ends == [i + 1 for i in originals], "one past the last sample before it"
    if count:
        assert excerpts.original(0, end=True) == originals[0]
        past = excerpts.original(count + 7), excerpts.original(count + 7, end=True)
        assert past == (originals[-1] + 8,) * 2
    for first, last in combinations(range(count + 1), 2):
        begin, end = excerpts.original_span(first, last)
        inside = set(range(begin, end))
        assert originals[(first + last) // 2] in inside and inside <= set(originals)
        assert len(inside) <= last - first
        if originals[last - 1] - originals[first] == last - 1 - first:  # it crosses no silence
            assert (begin, end) == (originals[first], originals[last - 1] + 1)


def sine(rate, dtype=np.float64, frequency=440):
    """A second of it."""
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(rate) / rate)).astype(dtype)


def test_dtypes_agree():
    expected = sine(16000)
    scaled = {np.int16: 2**15, np.int32: 2**31, np.float16: 1, np.float32: 1, np.float64: 1}
    for dtype, scale in scaled.items():
        given = (expected * scale).astype(dtype)
        given.flags.writeable = False  # an input is not changed
        actual = as_waveform(given)
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, atol=4e-4 if dtype == np.float16 else STEP)
    unsigned = (expected * 128 + 128).astype(np.uint8)
    np.testing.assert_allclose(as_waveform(unsigned), expected, atol=1 / 128)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        tensor = torch.tensor(expected, dtype=dtype, requires_grad=True)
        np.testing.assert_array_equal(as_waveform(tensor), tensor.detach().float().numpy())
    assert as_waveform(np.array([-32768, 32767], np.int16)).tolist() == [-1.0, 32767 / 32768]
    np.testing.assert_allclose(as_waveform(expected.astype(">f4")), expected, atol=1e-7)


def test_shapes():
    left, right = sine(16000, np.float32), sine(16000, np.float32, 880)
    both = np.stack([left, right])
    for given_, expected in ((both, (left + right) / 2), (left[None], left)):
        for array in (given_, given_.T):
            np.testing.assert_allclose(as_waveform(array), expected, atol=1e-7)
    assert [as_waveform(np.zeros(s)).shape for s in ((2, 5), (5, 2), (8, 8))] == [(5,), (5,), (8,)]


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([0.0, np.nan]), "NaN"),
        (np.array([0.0, -np.inf], np.float32), "infinite"),
        (np.zeros((2, 0)), "empty"),
        (np.zeros(9, np.int64), "int64"),
        (np.zeros(9, np.complex64), "complex64"),
        (np.array([1e300]), r"1e\+300"),
        (np.arange(-20000.0, 20000.0), "20000"),
        *((np.zeros(shape), r"\[") for shape in ((3, 2, 100), (), (80, 3000))),
    ],
)
def test_arrays_that_are_not_audio(array, message):
    with pytest.raises(AudioError, match=message) as caught:
        as_waveform(array)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rate", [0, -16000, 44100.5, "16k", None])
def test_sample_rate_must_be_positive_and_whole_and_is_not_for_files(rate, tmp_path):
    with pytest.raises(OptionError, match="sample_rate"):
        as_waveform(np.zeros(9), sample_rate=rate)
    with pytest.raises(OptionError, match="sample_rate"):
        as_waveform(write(tmp_path / "a.wav"), sample_rate=8000)


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_soxr_is_used_where_torchaudio_does_not_import(monkeypatch, error):
    real_import = builtins.__import__

    def fail(name, *args, **options):
        if name.startswith("torchaudio"):
            raise error("libc10_cuda.so:\nno such file")
        return real_import(name, *args, **options)

    samples = sine(48000, np.float32)
    samples.flags.writeable = False
    usual = resample(samples, 48000)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", fail)
        audio._torchaudio_resample.cache_clear()
        by_soxr = resample(samples, 48000)
        name, why = resampler()
    audio._torchaudio_resample.cache_clear()
    assert name == "soxr" and f"{error.__name__}: libc10_cuda.so: no such file" in why
    np.testing.assert_allclose(by_soxr[100:-100], usual[100:-100], atol=1e-3)


# The channels of files and arrays: what each of them is by itself


def everything(samples: Samples) -> NDArray[np.float32]:
    return samples.read(0, len(samples))


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 2), (16_000, 3), (44_100, 8)])
def test_a_channel_is_as_alone(tmp_path: Path, rate: int, channels: int) -> None:
    path = write(tmp_path / "all.wav", rate, channels)
    audio, _ = soundfile.read(path, dtype="int16")
    found = load_channels(path)
    expected = ["left", "right"] if channels == 2 else [f"channel {i + 1}" for i in range(channels)]
    assert list(found) == expected
    for number, channel in enumerate(found.values()):
        soundfile.write(tmp_path / "one.wav", audio[:, number], rate)
        alone = load_samples(tmp_path / "one.wav")
        np.testing.assert_array_equal(everything(channel), everything(alone))
        np.testing.assert_array_equal(channel.read(-3, 70), alone.read(-3, 70))
        np.testing.assert_array_equal(channel.read(1_000, 10**9), alone.read(1_000, 10**9))
        assert channel.read(10**8, 10**9).shape == (0,)


def test_many_channels_are_averaged(tmp_path: Path) -> None:
    found = everything(load_samples(write(tmp_path / "a.wav", 16_000, 9)))
    np.testing.assert_allclose(found, sound(16_000, 9).mean(axis=1), atol=1e-3)


def test_compressed_files_have_channels(tmp_path: Path) -> None:
    wav = write(tmp_path / "a.wav", 16_000, 2)
    path = convert(wav, tmp_path / "a.m4a")
    for channel, original in zip(*(load_channels(p).values() for p in (path, wav)), strict=True):
        ours, theirs = everything(channel)[:30_000], everything(original)[:30_000]
        best = max(np.corrcoef(ours[d : 29_000 + d], theirs[:29_000])[0, 1] for d in range(900))
        assert best > 0.9


def test_arrays() -> None:
    audio = sound(16_000, 2).astype(np.float32)  # [n, 2]
    for each in (audio, audio.T, torch.from_numpy(audio.T.copy()), torch.from_numpy(audio)):
        left, right = load_channels(each).values()
        np.testing.assert_array_equal(everything(left), audio[:, 0])
        np.testing.assert_array_equal(everything(right), audio[:, 1])
    assert [len(c) for c in load_channels(audio, sample_rate=32_000).values()] == [16_000, 16_000]


def test_errors_name_the_recording(tmp_path: Path) -> None:
    mono, nine = write(tmp_path / "mono.wav"), write(tmp_path / "nine.wav", 16_000, 9)
    stereo, twice = write(tmp_path / "stereo.wav", 16_000, 2), tmp_path / "twice.wav"
    soundfile.write(twice, np.repeat(sound(16_000), 2, axis=1), 16_000)
    for path, names, message in (
        (mono, (), "has one channel, so there are none to split; leave them mixed"),
        (nine, (), "has 9 channels; channels splits up to 8"),
        (stereo, ("a", "b", "c"), "has 2 channels, but channel_names has 3; give one name"),
        (twice, (), "its 2 channels are the same"),
    ):
        with pytest.raises(AudioError) as raised:
            load_channels(path, names)
        assert str(raised.value).startswith(f"{path}: {message}")
        assert "\n" not in str(raised.value)
    with pytest.raises(AudioError, match="audio array: has one channel"):
        load_channels(np.ones(16_000, np.float32))
    with pytest.raises(AudioError, match="is empty"):
        load_channels(np.ones((2, 0), np.float32))
    # silence: the same, but nothing is there twice
    assert list(load_channels(np.zeros((2, 16_000), np.float32))) == ["left", "right"]
