"""Files give the samples of `whisper.load_audio`, from every kind of source and on every path."""

import re
from functools import cache

import av
import numpy as np
import pytest
import soundfile
from whisper.audio import load_audio as whisper_load_audio

from slimwhisper.audio import samples
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import ReadOptions
from slimwhisper.audio_formats.ffmpeg import decode
from tests.support.sounds import SECONDS, STEP, convert, ffmpeg, outputs, sound, write


@cache
def tolerance():
    """One 16-bit step; 4 where the program resamples 16-bit sources in float, as FFmpeg 7 does."""
    major = re.match(rb"ffmpeg version n?(\d+)\.", ffmpeg("-version"))
    return (1 if major and int(major[1]) < 7 else 4) * STEP


# From 9.0 on FFmpeg leaves out the padding of an AAC file's last frame; the program may be older.
CUTS_PADDING = av.library_versions["libavformat"][0] >= 63


def assert_same(path, **options):
    allowed, expected = tolerance(), whisper_load_audio(str(path))
    actual = load_audio(path, **options)
    if CUTS_PADDING and path.suffix in (".m4a", ".mp4"):
        assert 0 <= len(expected) - len(actual) <= 16000 * 1024 / 8000
        actual = actual[:-64]  # the resampler's filter reaches past the end
        expected = expected[: len(actual)]
    assert actual.dtype == np.float32 and actual.shape == expected.shape
    assert np.abs(expected).max() > 0.1
    assert np.abs(actual - expected).max() <= allowed


# Against the ffmpeg program


@pytest.mark.parametrize(
    ("rate", "channels", "suffix", "subtype"),
    [
        *((r, c, "wav", "PCM_16") for r, c in ((8000, 2), (16000, 1), (16000, 2), (48000, 1))),
        (44100, 2, "flac", "PCM_16"),
        *((22050, 2, "wav", subtype) for subtype in ("PCM_U8", "PCM_24", "FLOAT", "ULAW")),
    ],
)
def test_lossless_as_ffmpeg(tmp_path, rate, channels, suffix, subtype):
    assert_same(write(tmp_path / f"a.{suffix}", rate, channels, subtype=subtype))


def test_lossy_as_ffmpeg(tmp_path):
    picture = ("-f", "lavfi", "-i", "testsrc=size=32x32:rate=5:duration=3")
    files = {f"a.{suffix}": ("-vn",) for suffix in ("mp3", "opus", "m4a", "aac")}
    files |= {"a.ogg": ("-vn", "-c:a", "libvorbis"), "a.mkv": ("-vn", "-c:a", "aac")}
    files["a.mp4"] = ("-c:v", "mpeg4")
    wav = write(tmp_path / "a.wav", 44100, 2)
    ffmpeg("-i", wav, *picture, *outputs(tmp_path, files))
    for name in files:
        assert_same(tmp_path / name)


def test_edit_list_trims_as_ffmpeg(tmp_path):
    whole = convert(write(tmp_path / "a.wav", 44100), tmp_path / "a.m4a")
    cut = tmp_path / "cut.m4a"
    ffmpeg("-ss", "0.7", "-i", whole, "-c", "copy", cut)
    assert_same(cut)
    assert load_audio(cut).size < load_audio(whole).size - 8000


def test_stream_of_choice_as_ffmpeg(tmp_path):
    quiet = tmp_path / "quiet.wav"
    soundfile.write(quiet, 0.01 * sound(16000), 16000)
    both = tmp_path / "both.mkv"
    maps = ["-map", "0", "-map", "1", "-c", "copy", "-disposition:a:1", "default"]
    ffmpeg("-i", quiet, "-i", write(tmp_path / "a.wav"), *maps, "-disposition:a:0", "0", both)
    assert_same(both)


def test_parameters_change_midstream(tmp_path):
    parts = []
    for rate, channels in ((44100, 2), (22050, 1)):
        wav = write(tmp_path / f"{rate}.wav", rate, channels)
        ffmpeg("-i", wav, "-write_xing", "0", "-id3v2_version", "0", tmp_path / f"{rate}.mp3")
        parts.append((tmp_path / f"{rate}.mp3").read_bytes())
    joined = tmp_path / "joined.mp3"
    joined.write_bytes(b"".join(parts))
    expected = whisper_load_audio(str(joined))
    actual = load_audio(joined)
    assert actual.size > 1.9 * SECONDS * 16000
    assert abs(actual.size - expected.size) <= 100  # the program drops the first filter's tail
    assert np.abs(actual[:30000] - expected[:30000]).max() <= tolerance()


# Sources


@pytest.mark.parametrize("rate", [16000, 8000])
def test_odd_names(tmp_path, monkeypatch, rate):
    monkeypatch.chdir(tmp_path)
    for name in ("quo'te\"", "new\nline", "日本é", "-i", "%d", "%03d*", "file:a", "http:", "a?[b]"):
        write(tmp_path / f"{name}.wav", rate, seconds=0.5)
        assert load_audio(f"{name}.wav").size == 8000


def test_mp3_behind_a_large_cover_picture(tmp_path):
    path = tmp_path / "a.mp3"
    ffmpeg("-i", write(tmp_path / "a.wav", 44100), "-id3v2_version", "0", path)
    expected = load_audio(path)
    size = 3_000_000
    tag = b"ID3\x04\0\0" + bytes((size >> shift) & 127 for shift in (21, 14, 7, 0)) + bytes(size)
    path.write_bytes(tag + path.read_bytes())
    for source in (path, path.read_bytes()):
        np.testing.assert_array_equal(load_audio(source), expected)


def test_tags_that_are_not_utf8(tmp_path):
    path = tmp_path / "a.mkv"
    ffmpeg("-i", write(tmp_path / "a.wav"), "-c:a", "flac", "-metadata", "title=QQQQ", path)
    data = path.read_bytes().replace(b"QQQQ", b"\xff\xfe\xe9\xe8")
    assert load_audio(data).size == SECONDS * 16000


# The fast path


def test_fast_path_runs_in_blocks_and_equals_pyav(tmp_path, monkeypatch):
    path = write(tmp_path / "a.wav")
    with path.open("rb") as file:
        through_pyav = np.concatenate(list(decode("a.wav", file, ReadOptions()))) * np.float32(STEP)
    monkeypatch.setattr("slimwhisper.audio_formats.ffmpeg.decode", None)  # calling it would raise
    fast = load_audio(path)
    assert fast.dtype == np.float32 and fast.size == SECONDS * 16000
    np.testing.assert_array_equal(fast, through_pyav)
    monkeypatch.setattr(samples, "BLOCK", 999)
    with path.open("rb") as file:
        sizes = [len(piece) for piece in samples.pieces_of("a.wav", file, ReadOptions())]
    assert sizes == [999] * 32 + [32]
    np.testing.assert_array_equal(load_audio(path), fast)
