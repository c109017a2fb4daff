"""Arrays as waveforms, resampled; and samples read in stretches, wherever they are kept."""

import builtins
import gc
import io
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from slimwhisper.audio import load as audio
from slimwhisper.audio import samples as samples_module
from slimwhisper.audio.load import as_waveform, load_audio, load_samples, resample, resampler
from slimwhisper.audio.samples import ArraySamples, Excerpts, StoredSamples
from slimwhisper.errors import AudioError, OptionError
from tests.support.recordings import STEP, convert, needs_ffmpeg, write

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
    """Keep all but the shortest samples in a file, and write it in small amounts."""
    monkeypatch.setattr(samples_module, "SPOOL_SECONDS", 1)
    monkeypatch.setattr(samples_module, "WRITE_SAMPLES", 600)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of temporary files, empty."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def files_open_in(folder):
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
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
    assert stored._file is None and not files_open_in(folder)
    for samples in (shared, stored):
        assert_reads(samples, array)
        samples.close()
        samples.close()


def test_stored_in_a_file(spooling, folder):
    samples = StoredSamples("a", pieces())
    assert_reads(samples, whole())
    assert samples._array.size == 0
    assert len(files_open_in(folder)) == 1
    assert not list(folder.iterdir())  # the file has no name
    assert os.fstat(samples._file.fileno()).st_size == 2 * N
    samples.close()
    samples.close()
    assert not files_open_in(folder)
    with pytest.raises(ValueError):
        samples.read(0, 1)


def test_file_is_closed_when_collected_or_after_an_error(spooling, folder):
    samples = StoredSamples("a", pieces())
    samples.itself = samples
    assert files_open_in(folder)
    del samples
    gc.collect()
    assert not files_open_in(folder)

    def failing():
        yield from pieces()
        raise AudioError("a: truncated")

    with pytest.raises(AudioError, match=r"^a: truncated$"):
        StoredSamples("a", failing())
    assert not files_open_in(folder)


@pytest.mark.parametrize("count", [1, 7])  # at the first write, and at a later one
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk(spooling, folder, monkeypatch, count):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("r+b"))
    with pytest.raises(AudioError) as caught:
        StoredSamples("talk.mp3", pieces(count))
    assert all(part in str(caught.value) for part in ("talk.mp3: ", str(folder), "TMPDIR"))
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


# load_samples


@needs_ffmpeg
@pytest.mark.parametrize("spool", [False, True])
@pytest.mark.parametrize("rate", [16000, 48000])
def test_files_equal_load_audio(tmp_path, request, rate, spool):
    if spool:
        request.getfixturevalue("spooling")
    path = write(tmp_path / "a.wav", rate)
    path = path if rate == 16000 else convert(path, tmp_path / "a.mp3")
    expected = load_audio(path)
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        samples = load_samples(source)
        assert isinstance(samples, StoredSamples) and (samples._file is not None) == spool
        assert len(samples) == len(expected)
        np.testing.assert_array_equal(samples.read(0, len(samples)), expected)
        samples.close()


# Excerpts

REGIONS = [(100, 200), (200, 250), (1_000, 1_001), (40_000, 49_999)]


def test_excerpts_are_the_concatenation():
    array = whole()
    excerpts = Excerpts(ArraySamples(array), REGIONS)
    expected = np.concatenate([array[start:stop] for start, stop in REGIONS])
    assert len(excerpts) == len(expected) == 10_150
    for start in (-3, 0, 1, 99, 100, 101, 149, 150, 151, 152, 10_149, 10_150, 10_151):
        for stop in (-1, 0, 1, 99, 100, 101, 150, 151, 152, 10_149, 10_150, 10_151):
            actual = excerpts.read(start, stop)
            assert actual.dtype == np.float32
            np.testing.assert_array_equal(actual, expected[max(start, 0) : max(stop, 0)])


def test_excerpts_map_back():
    excerpts = Excerpts(ArraySamples(whole()), REGIONS)
    originals = [index for region in REGIONS for index in range(*region)]
    assert [excerpts.original(position) for position in range(len(excerpts))] == originals
    # an end is one past the last sample before it
    ends = [excerpts.original(position, end=True) for position in range(1, len(excerpts) + 1)]
    assert ends == [index + 1 for index in originals]
    assert (excerpts.original(150), excerpts.original(150, end=True)) == (1_000, 250)
    assert excerpts.original(0, end=True) == 100
    assert excerpts.original(10_150) == excerpts.original(10_150, end=True) == 49_999
    assert excerpts.original(10_160) == excerpts.original(10_160, end=True) == 50_009


def test_a_word_maps_back_into_the_region_of_its_middle():
    excerpts = Excerpts(ArraySamples(whole()), [(100, 200), (300, 350), *REGIONS[2:]])
    assert excerpts.original_span(10, 60) == (110, 160)
    assert excerpts.original_span(90, 140) == (300, 340)  # it began in the silence before
    assert excerpts.original_span(60, 130) == (160, 200)
    assert excerpts.original_span(120, 400) == (40_000, 40_249)
    assert excerpts.original_span(10_100, 10_160) == (49_949, 50_009)


def test_a_word_that_crosses_no_silence_keeps_its_span():
    """Regions that touch, as speech that was cut for its length does, have none between them."""
    rng = np.random.default_rng(4)
    borders = np.cumsum(rng.integers(1, 60, 80)) + 5
    regions = [(int(a), int(b)) for a, b in pairwise(borders)]
    regions = [region for i, region in enumerate(regions) if i % 4 != 3]  # of four, one is left out
    excerpts = Excerpts(ArraySamples(np.zeros(borders[-1], np.float32)), regions)
    originals = [index for region in regions for index in range(*region)]
    inside = 0
    for start in range(len(excerpts)):
        for stop in range(start + 1, min(start + 100, len(excerpts))):
            if originals[stop - 1] - originals[start] == stop - 1 - start:
                span = excerpts.original(start), excerpts.original(stop, end=True)
                assert excerpts.original_span(start, stop) == span
                inside += 1
    assert inside > 10_000


def test_regions_are_clipped():
    excerpts = Excerpts(ArraySamples(whole()), [(-5, 3), (7, 7), (N - 2, N + 9), (N, N + 1)])
    assert len(excerpts) == 5
    assert [excerpts.original(position) for position in range(5)] == [0, 1, 2, N - 2, N - 1]
    for nothing in (Excerpts(ArraySamples(whole()), []), StoredSamples("a", [])):
        assert len(nothing) == 0 and nothing.read(0, 9).shape == (0,)


def sine(rate, dtype=np.float64, frequency=440, seconds=1.0):
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)).astype(
        dtype
    )


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
def test_resampling_keeps_frequency_and_amplitude(rate):
    waveform = as_waveform(sine(rate), sample_rate=rate)
    assert waveform.dtype == np.float32 and abs(waveform.size - 16000) <= 1
    middle = waveform[4000:12000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(middle.size)))
    assert abs(spectrum.argmax() * 16000 / middle.size - 440) <= 2
    assert abs(np.abs(middle).max() - 0.5) < 0.005


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
    assert as_waveform(np.array([-32768, 32767], np.int16)).tolist() == [-1.0, 32767 / 32768]
    np.testing.assert_allclose(as_waveform(expected.astype(">f4")), expected, atol=1e-7)


def test_shapes():
    left, right = sine(16000, np.float32), sine(16000, np.float32, 880)
    mixed = (left + right) / 2
    both = np.stack([left, right])
    np.testing.assert_allclose(as_waveform(both), mixed, atol=1e-7)
    np.testing.assert_allclose(as_waveform(both.T), mixed, atol=1e-7)
    np.testing.assert_array_equal(as_waveform(left[None]), left)
    np.testing.assert_array_equal(as_waveform(left[:, None]), left)
    assert as_waveform(np.zeros((2, 5))).shape == (5,)
    assert as_waveform(np.zeros((5, 2))).shape == (5,)
    assert as_waveform(np.zeros((8, 8))).shape == (8,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors(dtype):
    tensor = torch.tensor(sine(16000), dtype=dtype, requires_grad=True)
    waveform = as_waveform(tensor)
    assert isinstance(waveform, np.ndarray) and waveform.dtype == np.float32
    np.testing.assert_array_equal(waveform, tensor.detach().float().numpy())


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([0.0, np.nan]), "NaN"),
        (np.array([0.0, -np.inf], np.float32), "infinite"),
        (np.zeros(0), "empty"),
        (np.zeros((2, 0)), "empty"),
        (np.zeros(9, np.int64), "int64"),
        (np.zeros(9, np.complex64), "complex64"),
        (np.array([1e300]), r"1e\+300"),
        (np.arange(-20000.0, 20000.0), "20000"),
        *((np.zeros(shape), r"\[") for shape in ((3, 2, 100), (), (80, 3000), (3000, 80))),
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


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
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
