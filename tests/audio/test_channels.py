"""The channels of files and arrays: what each of them is by itself."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray

from slimwhisper.audio.load import load_channels, load_samples
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import AudioError
from tests.support.sounds import convert, sound, write


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
    for given in (audio, audio.T, torch.from_numpy(audio.T.copy()), torch.from_numpy(audio)):
        left, right = load_channels(given).values()
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
