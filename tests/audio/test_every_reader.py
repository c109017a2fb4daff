"""Every way to read a recording gives the same samples, and says the same about its file."""

import io
import os
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from slimwhisper.audio import samples as samples_module
from slimwhisper.audio.formats import ReadOptions
from slimwhisper.audio.load import as_waveform, load_audio, load_channels, load_samples
from slimwhisper.audio.readers import Readers
from slimwhisper.audio.samples import Samples
from slimwhisper.audio.streams import pipe_pieces
from slimwhisper.faster_whisper import decode_audio
from tests.support.recordings import convert, ffmpeg, needs_ffmpeg, write

Waveform = NDArray[np.float32]


def whole(samples: Samples) -> Waveform:
    return samples.read(0, len(samples))


def by_object(path: Path) -> Waveform:
    with path.open("rb") as file:
        found = load_audio(file)
        assert not file.closed
    return found


def by_readers(path: Path) -> Waveform:
    with closing(Readers(1)) as readers:
        return whole(readers.read(path))


def by_pipe(path: Path) -> Waveform:
    out, into = os.pipe()

    def send() -> None:
        with os.fdopen(into, "wb") as file:
            file.write(path.read_bytes())

    threading.Thread(target=send).start()
    with os.fdopen(out, "rb"):
        return np.concatenate(list(pipe_pieces(out, f"{path}")))


READ: dict[str, Callable[[Path], Waveform]] = {
    "text": lambda path: load_audio(str(path)),
    "bytes": lambda path: load_audio(path.read_bytes()),
    "object": by_object,
    "waveform": lambda path: as_waveform(io.BytesIO(path.read_bytes())),
    "samples": lambda path: whole(load_samples(path)),
    "readers": by_readers,
    "pipe": by_pipe,
    "faster-whisper": lambda path: decode_audio(str(path)),
}
# what soundfile writes: suffix, rate, channels, kinds of samples
PCM = {
    "plain": ("wav", 16_000, 1, {}),
    **{
        f"wav of {kind}": ("wav", 44_100, 2, {"subtype": kind})
        for kind in "PCM_16 PCM_U8 PCM_24 FLOAT DOUBLE ULAW".split()
    },
    "wavex": ("wav", 22_050, 1, {"format": "WAVEX", "subtype": "PCM_24"}),
    "rf64": ("rf64", 22_050, 1, {"format": "RF64", "subtype": "PCM_16"}),
    **{suffix: (suffix, 22_050, 1, {}) for suffix in ("flac", "aiff", "au", "w64")},
}


def made(folder: Path, name: str) -> Path:
    """A recording of 0.5 s or, with a film's late sound, of 6 s."""
    if name in PCM:
        suffix, rate, channels, options = PCM[name]
        return write(folder / f"a.{suffix}", rate, channels, 0.5, **options)
    path = write(folder / "a.wav", seconds=0.5)
    if name == "half":  # is stated in its header
        data = bytearray(path.read_bytes())
        data[40:44] = struct.pack("<I", len(data[44:]) // 2)
        path.write_bytes(data)
    if name == "mp3":
        return convert(path, folder / "a.mp3")
    if name == "late":
        film = ("-f", "lavfi", "-i", "color=c=black:s=32x32:r=5:d=6", "-itsoffset", "4", "-i", path)
        ffmpeg(*film, "-map", "0", "-map", "1", "-c:a", "flac", folder / "late.mkv")
        return folder / "late.mkv"
    return path


@needs_ffmpeg
@pytest.mark.parametrize("name", [*PCM, "half", "mp3", "late"])
def test_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    path = made(tmp_path, name)
    expected = load_audio(path)
    assert len(expected) == 8_000 or name in ("mp3", "late")
    for way, read in READ.items():
        if way == "readers" and name not in ("plain", "half", "late"):
            continue  # a process of its own takes a second
        if way == "pipe" and name == "mp3":
            continue  # its padding at the end is not known
        caplog.clear()
        np.testing.assert_array_equal(read(path), expected, err_msg=way)
        assert bool(caplog.messages) == (name == "half"), way
    monkeypatch.setattr(samples_module, "SPOOL_SECONDS", 0.1)  # else in memory
    np.testing.assert_array_equal(whole(load_samples(path)), expected)


@pytest.mark.parametrize("rate", [16_000, 22_050])
def test_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    path = write(tmp_path / "a.wav", rate, 2)
    expected = load_channels(path, ("a", "b"))
    with closing(Readers(1)) as readers, path.open("rb") as file:
        found = [load_channels(source, ("a", "b")) for source in (path.read_bytes(), file)]
        found.append(load_channels(path, ("a", "b"), readers=readers))
        monkeypatch.setattr(samples_module, "SPOOL_SECONDS", 0.5)
        found.append(load_channels(path, ("a", "b"), readers=readers))
        assert len(readers.read(path, how=ReadOptions(split=True))) == 64_000
    left, right = decode_audio(str(path), split_stereo=True)
    for name, faster in (("a", left), ("b", right)):
        np.testing.assert_array_equal(faster, whole(expected[name]))
        for channels in found:
            np.testing.assert_array_equal(whole(channels[name]), whole(expected[name]))
