"""Headers that state another size of the samples than there is: all that is there is read."""

import os
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.readers import Readers
from slimwhisper.audio.streams import pipe_pieces
from slimwhisper.errors import AudioError
from slimwhisper.faster_whisper import decode_audio
from tests.support.paths import SAMPLES
from tests.support.recordings import convert, ffmpeg, needs_ffmpeg, sound, write

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
@pytest.mark.parametrize(
    "change",
    [lambda size: size // 4 * 2, lambda size: 3 * size, lambda size: 1_000],
    ids=["half", "thrice", "wrapped"],
)
@pytest.mark.parametrize("suffix", FORMATS)
def test_all_that_is_there_is_read(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    change: Callable[[int], int],
    rate: int,
) -> None:
    data = recording(tmp_path, suffix, rate)
    expected = load_audio(data)
    path = tmp_path / f"b.{suffix}"
    path.write_bytes(with_size(data, suffix, change))
    np.testing.assert_array_equal(load_audio(path), expected)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{path}: its header states ") and "\n" not in line


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("unknown", [0, -1])
def test_a_size_that_is_not_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, unknown: int
) -> None:
    """As recorders that write to a pipe leave it."""
    data = recording(tmp_path, suffix, 22_050)
    expected = load_audio(data)
    _, code, more = FORMATS[suffix]
    largest = (1 << 8 * struct.calcsize(code)) - 1
    size = (lambda _: -more) if unknown == 0 else (lambda _: largest - more)
    np.testing.assert_array_equal(load_audio(with_size(data, suffix, size)), expected)
    assert not caplog.records


def test_chunks_after_the_samples_are_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


@pytest.mark.parametrize("suffix", ["wav", "aiff", "caf"])
def test_a_file_that_ends_within_a_sample_is_truncated(tmp_path: Path, suffix: str) -> None:
    data = recording(tmp_path, suffix, 22_050)
    data = data[: data.index(FORMATS[suffix][0]) + 60_001]
    with pytest.raises(AudioError, match=r"truncated: 1\.\d of 6\.0 s"):
        load_audio(data)
    assert len(load_audio(data, allow_truncated=True)) > 16_000


def test_every_reader_reads_all(tmp_path: Path) -> None:
    """And the warning comes from the reader's process, once."""
    data = recording(tmp_path, "wav", 16_000)
    path = tmp_path / "half.wav"
    path.write_bytes(with_size(data, "wav", lambda size: size // 2))
    expected, warnings = load_audio(data), list[str]()
    with closing(Readers(1)) as readers:
        samples = readers.read(path, "half.wav", on_warning=warnings.append)
    np.testing.assert_array_equal(samples.read(0, len(samples)), expected)
    assert warnings == [
        "half.wav: its header states 96,000 bytes of samples, but there are 192,000; these are read"
    ]
    np.testing.assert_array_equal(decode_audio(str(path)), expected)
    assert len(decode_audio(str(path), sampling_rate=8_000)) == pytest.approx(48_000, abs=10)


@pytest.mark.parametrize("change", [lambda size: size // 2, lambda size: 2 * size])
def test_a_pipe_is_read_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[int], int]
) -> None:
    data = recording(tmp_path, "wav", 16_000)
    out, into = os.pipe()

    def send() -> None:
        with os.fdopen(into, "wb") as file:
            file.write(with_size(data, "wav", change))

    threading.Thread(target=send).start()
    with os.fdopen(out, "rb"):
        samples = np.concatenate(list(pipe_pieces(out, "pipe")))
    np.testing.assert_array_equal(samples, load_audio(data))
    assert "header" in caplog.text


# Headers that no recording of people has


@pytest.mark.parametrize(
    ("channels", "rate"), [(0, 16_000), (65_535, 16_000), (1, 1), (1, 500), (1, 600_000)]
)
def test_a_header_that_makes_no_sense(tmp_path: Path, channels: int, rate: int) -> None:
    frame = 2 * channels
    head = struct.pack("<HHIIHH", 1, channels, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, 16)
    data = bytes(300_000)
    chunks = b"WAVEfmt \x10\0\0\0" + head + b"data" + struct.pack("<I", len(data)) + data
    with pytest.raises(AudioError) as raised:
        load_audio(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)
    count = channels if channels == 1 else "an impossible number of"
    assert f"its header states {count} channels at {rate} Hz" in str(raised.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_that_are_not_numbers(tmp_path: Path, value: float, subtype: str) -> None:
    samples = sound(16_000)
    samples[9_000] = value
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype=subtype)
    with pytest.raises(AudioError, match="holds samples that are NaN or infinite"):
        load_audio(tmp_path / "a.wav")


@needs_ffmpeg
def test_what_an_opus_file_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = convert(SAMPLES / "phone-number.wav", tmp_path / "a.webm", "-c:a", "libopus")
    data = bytearray(path.read_bytes())
    at = data.index(b"OpusHead") + 10
    assert load_audio(path).size and not caplog.records
    data[at : at + 2] = b"\xff\xff"
    load_audio(bytes(data))
    assert caplog.messages == ["audio data: its header leaves out its first 1.4 s"]


@needs_ffmpeg
def test_mostly_noise_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = convert(write(tmp_path / "a.wav"), tmp_path / "a.mp3").read_bytes()
    noise = np.random.default_rng(0).bytes(200_000)
    assert load_audio(data[:8_000] + noise).size > 8_000
    assert caplog.messages == ["audio data: damaged: most of it is not audio that can be decoded"]


@needs_ffmpeg
def test_a_packet_that_does_not_decode_counts_once(tmp_path: Path) -> None:
    path = convert(write(tmp_path / "a.wav", 44_100), tmp_path / "a.flac")
    data = bytearray(path.read_bytes())
    data[9_000:] = np.random.default_rng(0).bytes(len(data) - 9_000)
    with pytest.raises(AudioError) as raised:
        load_audio(bytes(data))
    if "packets" in str(raised.value):
        broken, packets = (int(w) for w in str(raised.value).split() if w.isdigit())
        assert broken <= packets


@needs_ffmpeg
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
