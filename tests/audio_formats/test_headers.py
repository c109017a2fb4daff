"""Headers that state another size of the samples than there is."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from slimwhisper.audio.load import load_audio
from slimwhisper.errors import AudioError
from tests.support.paths import SAMPLES
from tests.support.sounds import convert, ffmpeg, sound

# by format: the last bytes before the size of the samples, its bytes, and what it counts besides
FORMATS = {
    "wav": (b"data", "<I", 0),
    "aiff": (b"SSND", ">I", 8),
    "caf": (b"data", ">Q", 4),
    "w64": (bytes.fromhex("64617461f3acd3118cd100c04f8edb8a"), "<Q", 24),
    "au": (b".snd\0\0\0\x18", ">I", 0),
    "rf64": (b"ds64\x1c\0\0\0" + b"size of", "<Q", 0),
}


def recording(folder: Path, suffix: str, rate: int) -> bytes:
    path = folder / f"a.{suffix}"
    options = {"format": "RF64"} if suffix == "rf64" else {}
    soundfile.write(path, sound(rate, 1, 6.0), rate, subtype="PCM_16", **options)
    return path.read_bytes()


def with_size(data: bytes, suffix: str, change: Callable[[int], int]) -> bytes:
    """The file with another size of its samples in the header."""
    name, code, more = FORMATS[suffix]
    at = data.index(name[:8]) + (16 if suffix == "rf64" else len(name))
    (size,) = struct.unpack_from(code, data, at)
    stated = change(size - more) + more
    return data[:at] + struct.pack(code, stated) + data[at + struct.calcsize(code) :]


@pytest.mark.parametrize("rate", [16_000, 22_050])
@pytest.mark.parametrize("suffix", FORMATS)
def test_all_that_is_there_is_read_but_of_files_that_were_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, rate: int
) -> None:
    """Of a header that states half, or what is left of a size that is too large for it."""
    data, path = recording(tmp_path, suffix, rate), tmp_path / f"b.{suffix}"
    expected = load_audio(data)
    for change in (lambda size: size // 4 * 2, lambda size: 1_000):
        caplog.clear()
        path.write_bytes(with_size(data, suffix, change))
        np.testing.assert_array_equal(load_audio(path), expected)
        (line,) = caplog.messages
        assert line.startswith(f"{path}: its header states ") and "\n" not in line
    for size in (90_000, 90_001):  # of a file that was cut, within a sample or not
        with pytest.raises(AudioError, match=r"truncated: [12]\.\d of 6\.0 s"):
            load_audio(data[:size])
        part = load_audio(data[:size], allow_truncated=True)[:30_000]
        np.testing.assert_array_equal(part, expected[:30_000])


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_size_that_is_not_known(tmp_path: Path, caplog: Any, suffix: str) -> None:
    """As recorders that write to a pipe leave it."""
    data = recording(tmp_path, suffix, 22_050)
    _, code, more = FORMATS[suffix]
    largest = (1 << 8 * struct.calcsize(code)) - 1
    others = {"wav": (0x7FFFFFFF, 0x80000000, 0x7FFFF000), "aiff": (0x7EFFFFFC,)}
    for stated in (0, largest, *others.get(suffix, ())):
        changed = with_size(data, suffix, lambda _: stated - more)  # noqa: B023
        np.testing.assert_array_equal(load_audio(changed), load_audio(data))
    assert not caplog.records


def test_chunks_after_the_samples_are_not_read(tmp_path: Path, caplog: Any) -> None:
    data = recording(tmp_path, "wav", 16_000)
    tail = (
        b"LIST" + struct.pack("<I", 9_000) + b"INFO" + bytes(8_996) + b"id3 \x08\0\0\0" + bytes(8)
    )
    np.testing.assert_array_equal(load_audio(data + tail), load_audio(data))
    assert not caplog.records
    np.testing.assert_array_equal(load_audio(data + tail + data)[96_000:], load_audio(data))


@pytest.mark.parametrize("suffixes", [("wav", "wav"), ("wav", "aiff"), ("w64", "rf64")])
def test_recordings_that_follow_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffixes: tuple[str, str]
) -> None:
    """As `cat` leaves them."""
    parts = [recording(tmp_path, s, r) for s, r in zip(suffixes, (16_000, 22_050), strict=True)]
    both = np.concatenate([load_audio(part) for part in parts])
    np.testing.assert_array_equal(load_audio(b"".join(parts)), both)
    assert [r.getMessage() for r in caplog.records] == [
        "audio data: another recording follows in the same file; it is read, too"
    ]


# Headers that no recording of people has


@pytest.mark.parametrize(
    ("channels", "rate"), [(0, 16_000), (65_535, 16_000), (1, 1), (1, 500), (1, 600_000)]
)
def test_a_header_that_makes_no_sense(tmp_path: Path, channels: int, rate: int) -> None:
    frame = 2 * channels
    head = struct.pack("<HHIIHH", 1, channels, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, 16)
    data = bytes(300_000)
    chunks = b"WAVEfmt \x10\0\0\0" + head + b"data" + struct.pack("<I", len(data)) + data
    count = channels if channels == 1 else "an impossible number of"
    with pytest.raises(AudioError, match=f"its header states {count} channels at {rate} Hz"):
        load_audio(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_that_are_not_numbers(tmp_path: Path, value: float, subtype: str) -> None:
    samples = sound(16_000)
    samples[9_000] = value
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype=subtype)
    with pytest.raises(AudioError, match="holds samples that are NaN or infinite"):
        load_audio(tmp_path / "a.wav")


def test_what_an_opus_file_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = convert(SAMPLES / "phone-number.wav", tmp_path / "a.webm", "-c:a", "libopus")
    data = bytearray(path.read_bytes())
    at = data.index(b"OpusHead") + 10
    assert load_audio(path).size and not caplog.records
    data[at : at + 2] = b"\xff\xff"
    load_audio(bytes(data))
    assert caplog.messages == ["audio data: its header leaves out its first 1.4 s"]


def test_many_edits_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.m4a"
    ffmpeg("-i", SAMPLES / "phone-number.wav", "-c:a", "aac", path)
    data = path.read_bytes()
    moov, trak, edts = (data.index(name) - 4 for name in (b"moov", b"trak", b"edts"))
    entries = struct.pack(">IiI", 1, 0, 0x10000) * 20_000
    elst = b"elst" + struct.pack(">II", 0, 20_000) + entries
    new = struct.pack(">I", len(elst) + 12) + b"edts" + struct.pack(">I", len(elst) + 4) + elst
    (old,) = struct.unpack_from(">I", data, edts)
    longer = data[:edts] + new + data[edts + old :]
    for box in (moov, trak):
        (size,) = struct.unpack_from(">I", data, box)
        size = struct.pack(">I", size + len(new) - old)
        longer = longer[:box] + size + longer[box + 4 :]
    with pytest.raises(AudioError, match="more than 10,000 edits; convert it"):
        load_audio(longer)
