"""Files give the samples of `whisper.load_audio`, from every kind of source and on every path."""

import io
import re
import shutil
import tomllib
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from whisper.audio import load_audio as whisper_load_audio

from slimwhisper.audio import samples
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import ReadOptions
from slimwhisper.audio_formats.ffmpeg import ALLOWED, decode
from slimwhisper.errors import AudioError, StorageError
from tests.support.fuzz import examples
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


# Bad, damaged and truncated files are one-line errors; whole ones that look cut are not


PICTURE = ("-f", "lavfi", "-i", "testsrc=size=32x32:rate=5:duration=6", "-c:v", "mpeg4")


def assert_error(pattern, source, **options):
    with pytest.raises(AudioError, match=pattern) as caught:
        load_audio(source, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, Exception)
    return str(caught.value)


# Bad files


def test_paths_that_cannot_be_read(tmp_path, monkeypatch):
    assert_error(r"gone\.wav: no such file", tmp_path / "gone.wav")
    assert_error("folder", tmp_path)
    assert_error("no such file", "")
    assert_error("no such file", "nul\0.wav")
    assert_error(r"'new\\nline.wav': no such file", "new\nline.wav")
    (tmp_path / "empty.mp3").touch()
    assert_error(r"empty\.mp3: .*empty", tmp_path / "empty.mp3")
    assert_error("audio data: .*empty", b"")
    for rate in (16000, 8000):
        soundfile.write(tmp_path / "a.wav", np.zeros(0), rate)
        assert_error(r"a\.wav: .*no samples", tmp_path / "a.wav")
    assert_error("audio data: .*binary", io.StringIO("abc"))
    closed = io.BytesIO(b"abc")
    closed.close()
    assert_error("audio data: .*opened", closed)

    denied = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(Path, "open", denied)  # the tests may run as root
    with pytest.raises(StorageError, match=r"a\.wav: .*Permission denied"):  # a later try may work
        load_audio("a.wav")


def test_urls_are_file_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.wav")
    for name in ("http://127.0.0.1:9/a.wav", "pipe:0", "concat:a.wav|a.wav", "file:a.wav", "-"):
        assert_error("no such file", name)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:2,\n{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile {}\n",
        "Not a sound in here.\n" * 99 + "{}",
    ],
)
def test_text_and_playlists_open_nothing(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    target = write(tmp_path / "a.wav", 8000)
    for entry in ("a.wav", f"file://{target}"):
        for name in ("list.m3u8", "list.mp3", "list.wav"):
            (tmp_path / name).write_text(text.format(entry))
            assert_error(f"{name}: not audio", name)


def test_no_sound_that_is_read(tmp_path):
    """FFmpeg could read the rare ones: `slimwhisper.audio_formats.names` says why it may not."""
    ffmpeg(*PICTURE, tmp_path / "silent.mp4", "-frames:v", "1", tmp_path / "picture.png")
    assert_error("silent.mp4: .*no audio", tmp_path / "silent.mp4")
    assert_error("picture.png: not audio", tmp_path / "picture.png")
    coded = {"a.mkv": ("-c:a", "aac"), "a.nut": ("-c:a", "pcm_s16le")}
    coded["a.ts"] = ("-ar", "48000", "-ac", "2", "-c:a", "s302m", "-strict", "-2")
    ffmpeg("-i", write(tmp_path / "a.wav"), *outputs(tmp_path, coded))
    path = tmp_path / "a.mkv"
    path.write_bytes(path.read_bytes().replace(b"A_AAC", b"A_XYZ"))
    assert_error(r"a\.mkv: .*decoder", path)
    assert_error(r"a\.ts: .*'s302m'", tmp_path / "a.ts")
    assert_error(r"a\.nut: not audio", tmp_path / "a.nut")


def test_a_films_pictures_are_not_decoded(tmp_path):
    """Sound comes out, and no decoder of pictures is opened to look at them."""
    film = tmp_path / "film.avi"
    ffmpeg(
        *("-f", "lavfi", "-i", "testsrc=size=32x32:rate=5:duration=2"),
        *("-f", "lavfi", "-i", "sine=duration=2", "-c:v", "magicyuv", "-c:a", "mp3", film),
    )
    for allowed, opened in ((ALLOWED, False), ({}, True)):
        with av.open(str(film), options={**allowed, "protocol_whitelist": "file"}) as container:
            (video,) = container.streams.video
            assert bool(video.codec_context.pix_fmt) == opened
    assert len(load_audio(film)) == pytest.approx(32000, abs=2000)


# Damaged files

CODECS = {"caf": ("-c:a", "pcm_s16be"), "mkv": ("-c:a", "aac"), "ts": ("-c:a", "aac")}
LOSSY = ("mp3", "m4a", "ogg", "opus", "mkv")
WRITTEN = ("wav", "flac", "aiff", "mp3", "m4a", "ogg", "opus", "webm", "wma", "w64", *CODECS)


@pytest.fixture(scope="module")
def sound_files(tmp_path_factory):
    """A recording of 1 s in many formats."""
    folder = tmp_path_factory.mktemp("sound")
    wav = write(folder / "source.wav", 44100, seconds=1)
    ffmpeg("-i", wav, *outputs(folder, {f"a.{s}": CODECS.get(s, ()) for s in WRITTEN}))
    return {suffix: (folder / f"a.{suffix}").read_bytes() for suffix in WRITTEN}


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """A folder with 6 s in some formats; an m4a begins with what it holds."""
    folder, options = tmp_path_factory.mktemp("lossy"), ("-movflags", "+faststart")
    wav = write(folder / "a.wav", 44100, seconds=6)
    ffmpeg("-i", wav, *outputs(folder, {f"a.{s}": options for s in (*LOSSY, "flac")}))
    return folder


@examples(150)
@given(
    st.sampled_from(WRITTEN),
    st.floats(0, 1) | st.floats(0, 0.05),
    st.binary(min_size=1, max_size=40) | st.integers(1, 255) | st.none(),
)
def test_any_damage_is_read_or_one_line(sound_files, kind, at, damage):
    """Bytes that are others, inverted, or the end of a file; its header is at its beginning."""
    data = bytearray(sound_files[kind])
    start = int(at * (len(data) - 1))
    if damage is None:
        del data[start:]
    elif isinstance(damage, int):
        data[start] ^= damage
    else:
        data[start : start + len(damage)] = damage
    try:
        samples = load_audio(bytes(data))
    except AudioError as error:
        assert str(error).startswith("audio data: ") and len(str(error)) < 700
        assert str(error).isprintable()
    else:
        assert samples.dtype == np.float32 and samples.size and np.abs(samples).max() <= 1


NOISE = [(0.3, 0.4, suffix) for suffix in ("m4a", "ogg", "opus", "flac")]
NOISE += [(0.3, 0.7, "mp3"), (0.2, 0.9, "m4a"), (0.2, 0.9, "ogg")]


@pytest.mark.parametrize(("start", "stop", "suffix"), NOISE)
def test_noise_within_a_file(tmp_path, lossy, caplog, start, stop, suffix):
    """A little costs a warning; mostly noise is refused, and each packet counts once."""
    path = tmp_path / f"a.{suffix}"
    data = bytearray((lossy / path.name).read_bytes())
    middle = slice(round(len(data) * start), round(len(data) * stop))
    data[middle] = np.random.default_rng(1).bytes(len(data[middle]))
    path.write_bytes(data)
    if stop - start < 0.6:
        assert 3 * 16000 < load_audio(path).size <= 6.2 * 16000
        (lost,) = re.findall(rf"{path}: damaged: some (.*) of [56]\.\d s cannot", caplog.text)
        assert 0.5 <= float(lost) <= 3.0
        return
    message = assert_error(rf"a\.{suffix}: (damaged|not audio)", path, allow_truncated=True)
    for broken, packets in re.findall(r"(\d+) of (\d+) packets", message):
        assert int(broken) <= int(packets)


# Truncated files

TRUNCATED = r"truncated: \d\.\d (of 6\.0 )?s .*allow_truncated"


@pytest.mark.parametrize("suffix", [*LOSSY, "flac"])
def test_truncated(tmp_path, lossy, suffix):
    path = Path(shutil.copy(lossy / f"a.{suffix}", tmp_path))
    whole = load_audio(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.55)])
    message = assert_error(TRUNCATED, path)
    readable = load_audio(path, allow_truncated=True)
    assert 0.2 * whole.size < readable.size < 0.8 * whole.size
    assert f"{readable.size / 16000:.1f}" in message and path.name in message
    steady = readable.size - 2000  # a codec may end differently
    np.testing.assert_allclose(readable[:steady], whole[:steady], atol=STEP)


def test_intact_files_are_not_truncated(tmp_path, caplog):
    source = write(tmp_path / "source.flac", 48000)
    options = tomllib.loads(Path(__file__).with_name("options.toml").read_text())["intact"]
    files = {name: given.split() for name, given in options.items()}
    ffmpeg("-i", source, *PICTURE[:4], *outputs(tmp_path, files))
    for name in files:
        assert abs(load_audio(tmp_path / name).size / 16000 - SECONDS) < 0.15, name
    mp3, ogg = ((tmp_path / name).read_bytes() for name in ("a.mp3", "a.ogg"))
    for data in (mp3 + b"APETAGEX" + bytes(len(mp3) // 4), ogg + ogg):  # a cover, and a chain
        assert load_audio(data).size
    assert not caplog.records, "nor damaged"


def test_a_stream_that_states_no_length_is_not_truncated(tmp_path):
    for kind in ("flac", "matroska", "wav"):
        data = ffmpeg("-i", write(tmp_path / "a.wav", 48000), "-f", kind, "pipe:1")
        assert abs(load_audio(data).size / 16000 - SECONDS) < 0.05
