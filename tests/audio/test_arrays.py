"""Arrays and tensors as waveforms, and the two resamplers."""

import builtins

import numpy as np
import pytest
import torch

from slimwhisper.audio import load as audio
from slimwhisper.audio.load import as_waveform, resample, resampler
from slimwhisper.errors import AudioError, OptionError
from tests.support.recordings import STEP, write


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
