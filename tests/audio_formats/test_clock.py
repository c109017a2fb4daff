"""Times are the file's clock: where sound starts late, or has gaps, there is silence."""

import struct
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import Excerpts, StoredSamples, silence
from tests.support.paths import PHONE
from tests.support.sounds import ffmpeg, outputs, write

FILM = ("-f", "lavfi", "-i", "color=c=black:s=32x32:r=5:d=12")
OPTIONS = tomllib.loads(Path(__file__).with_name("options.toml").read_text())


def late(folder: Path, sound: Path, *suffixes: str) -> list[Path]:
    """Films of 12 s whose sound begins at 4 s."""
    maps = ("-map", "0:v", "-map", "1:a")
    films = {f"late.{suffix}": (*maps, *OPTIONS["late"][suffix].split()) for suffix in suffixes}
    ffmpeg(*FILM, "-itsoffset", "4", "-i", sound, *outputs(folder, films))
    return [folder / name for name in films]


def with_gap(
    folder: Path, seconds: float, *suffixes: str, at: float = 1, sound: Path | None = None
) -> list[Path]:
    """Recordings, of 2 s or given, whose clock jumps."""
    jump = ("-af", f"asetpts='PTS+if(gt(T,{at}),{seconds}/TB,0)'")
    files = {f"gap.{suffix}": (*jump, "-c:a", OPTIONS["gap"][suffix]) for suffix in suffixes}
    ffmpeg("-i", sound or write(folder / "a.wav", 48_000), *outputs(folder, files))
    return [folder / name for name in files]


def spoken(samples: NDArray[np.float32]) -> list[tuple[float, float]]:
    """Start and end, in seconds, of what is louder than silence."""
    loud = np.flatnonzero(np.abs(samples) > 0.05)
    cuts = np.flatnonzero(np.diff(loud) > 8_000)
    starts, ends = loud[np.r_[0, cuts + 1]], loud[np.r_[cuts, len(loud) - 1]]
    return [(a / 16_000, b / 16_000) for a, b in zip(starts, ends, strict=True)]


def test_sound_that_starts_late(tmp_path: Path) -> None:
    for film in late(tmp_path, write(tmp_path / "a.wav"), *OPTIONS["late"]):
        start, end = spoken(load_audio(film))[-1]  # a codec's delay may come first
        assert start == pytest.approx(4, abs=0.12) and end == pytest.approx(6, abs=0.15), film


def test_a_gap_is_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in with_gap(tmp_path, 6, *OPTIONS["gap"]):
        *_, (_, end), (start, last) = spoken(load_audio(path))
        assert last == pytest.approx(8, abs=0.1), path
        if path.suffix != ".ogg":  # its clock is that of pages, so the gap may be earlier
            assert (end, start) == pytest.approx((1, 7), abs=0.1), path
    assert not caplog.records, "it is no damage"


def test_an_avi_states_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    ffmpeg(*FILM, "-i", write(tmp_path / "a.wav"), "-c:v", "mpeg4", "-c:a", "pcm_s16le", path)
    data = bytearray(path.read_bytes())
    at = data.index(b"auds") + 28  # dwStart, in samples
    data[at : at + 4] = (4 * 16_000).to_bytes(4, "little")
    assert spoken(load_audio(bytes(data)))[0][0] == pytest.approx(4, abs=0.12)


def test_delays_and_jitter_add_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: options.split() for name, options in OPTIONS["delayed"].items()}
    ffmpeg("-i", write(tmp_path / "a.wav", 48_000), *outputs(tmp_path, files))
    found = [load_audio(tmp_path / name) for name in files]
    monkeypatch.setattr("slimwhisper.audio_formats.ffmpeg.JITTER", float("inf"))
    for name, samples in zip(files, found, strict=True):
        np.testing.assert_array_equal(samples, load_audio(tmp_path / name), name)


@pytest.mark.parametrize("suffix", ["webm", "ts"])
def test_a_clock_that_jumps_by_hours(tmp_path: Path, caplog: Any, suffix: str) -> None:
    samples = load_audio(*with_gap(tmp_path, 36_000, suffix))
    assert len(samples) < 3 * 16_000
    (line,) = [record.getMessage() for record in caplog.records]
    assert "its clock jumps from 0:01 to 10:00:01" in line


def test_clocks_that_start_again(tmp_path: Path) -> None:
    """As in recordings of television that were put together."""
    (path,) = with_gap(tmp_path, 0, "ts")
    data = path.read_bytes()
    assert len(load_audio(data + data)) == pytest.approx(2 * len(load_audio(data)), abs=1)


def test_a_jump_past_the_stated_end_is_not_filled(tmp_path: Path, caplog: Any) -> None:
    (path,) = with_gap(tmp_path, 600, "webm")
    data = path.read_bytes()
    at = data.index(b"\x44\x89\x88") + 3  # the file's duration, in ms
    path.write_bytes(data[:at] + struct.pack(">d", 2000.0) + data[at + 8 :])
    assert len(load_audio(path, allow_truncated=True)) < 3 * 16_000
    assert "its clock jumps" in caplog.text


# Texts


@pytest.mark.parametrize(
    ("options", "loaders"), [({"speech_only": True}, 1), ({"vad_filter": True}, 0)]
)
def test_the_first_text_of_a_film(
    tmp_path: Path, digits: SlimWhisper, options: dict[str, bool], loaders: int
) -> None:
    """Of the sound alone, but later; a model finds no text that begins after a window's first
    second.
    """
    (film,) = late(tmp_path, PHONE, "mkv")
    (_, plain), (_, text) = (
        next(digits.transcribe_many([path], loaders=loaders, **options)) for path in (PHONE, film)
    )
    assert [s.text for s in text.segments] == [s.text for s in plain.segments]
    for one, other in zip(text.segments, plain.segments, strict=True):
        assert one.start == pytest.approx(other.start + 4, abs=0.15)


@pytest.mark.parametrize("seconds", [3, 12, 100])
def test_texts_after_a_gap(tmp_path: Path, digits: SlimWhisper, seconds: float) -> None:
    (path,) = with_gap(tmp_path, seconds, "webm", at=2.6, sound=PHONE)  # a text begins at 3 s
    plain, late = digits.transcribe(PHONE)["segments"], digits.transcribe(path)["segments"]
    assert [s["text"] for s in late] == [s["text"] for s in plain]
    assert late[1]["start"] == pytest.approx(plain[1]["start"] + seconds, abs=0.3)


def test_an_excerpt_keeps_its_silences() -> None:
    pieces = [silence(16_000), np.ones(16_000, np.int16), silence(8_000), silence(8_000)]
    samples = StoredSamples("a", pieces)
    assert samples.silences == [(0, 16_000), (32_000, 48_000)]
    parts = Excerpts(samples, [(8_000, 20_000), (40_000, 44_000)])
    assert parts.silences == [(0, 8_000), (12_000, 16_000)]
