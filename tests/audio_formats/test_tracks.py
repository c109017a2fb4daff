"""Several audio tracks: one is read, which a warning names, or the one that was asked for."""

from contextlib import closing
from pathlib import Path

import pytest

from slimwhisper import SlimWhisper, load_audio
from slimwhisper.audio.load import load_channels, load_samples
from slimwhisper.audio.samples import ReadOptions
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.errors import AudioError
from tests.support.paths import PHONE
from tests.support.sounds import ffmpeg, write

LISTED = "2 audio tracks: 1 jpn (default), 2 eng"
SECONDS = {1: 2.0, 2: 9.04}  # of each track


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Japanese, which is the default, and English, as players list them."""
    path = tmp_path_factory.mktemp("film") / "film.mkv"
    tags = ("-metadata:s:a:0", "language=jpn", "-metadata:s:a:1", "language=eng")
    inputs = ("-i", write(path.with_name("a.wav"), 16_000, 2), "-i", PHONE)
    maps = ("-map", "0", "-map", "1", "-c:a", "flac", "-disposition:a:0", "default")
    ffmpeg(*inputs, *maps, *tags, path)
    return path


@pytest.mark.parametrize(
    ("chosen", "number"),
    [(None, 1), (1, 1), (" 01", 1), (2, 2), ("2", 2)]
    + [(name, 2) for name in ("eng", "EN", "English", "en-US")]
    + [(name, 1) for name in ("jpn", "jp")],
)
def test_the_track_of_choice(
    film: Path, caplog: pytest.LogCaptureFixture, chosen: str | int | None, number: int
) -> None:
    samples = load_audio(film, audio_track=chosen)
    assert len(samples) / 16_000 == pytest.approx(SECONDS[number], abs=0.1)
    taken = LISTED.replace("(default", "(taken, default")
    line = f"{film}: {taken}; audio_track chooses another"
    assert caplog.messages == ([line] if chosen is None else [])


@pytest.mark.parametrize("chosen", [0, 3, "de", "en1"])
def test_a_track_that_is_not_there(film: Path, chosen: str | int) -> None:
    with pytest.raises(AudioError) as raised:
        load_audio(film, audio_track=chosen)
    assert str(raised.value) == f"{film}: has no audio track '{chosen}', only {LISTED}"


def test_a_recording_with_one_track(caplog: pytest.LogCaptureFixture) -> None:
    assert len(load_audio(PHONE, audio_track=1)) == len(load_audio(PHONE))
    assert len(load_audio(PHONE, audio_track="en")) == len(load_audio(PHONE)), "it may be"
    with pytest.raises(AudioError, match=r"has no audio track '2', only 1 audio track: 1$"):
        load_audio(PHONE, audio_track="2")
    assert not caplog.messages


def test_other_readers(film: Path) -> None:
    with closing(Readers(1)) as readers:
        by_reader = [readers.read(film, "a", ReadOptions(audio_track=n)) for n in (None, "en")]
    for default, english in (by_reader, [load_samples(film, audio_track=n) for n in (None, "en")]):
        assert len(english) > 9 * 16_000 > len(default)


def test_channels_of_a_track(film: Path) -> None:
    assert list(load_channels(film)) == ["left", "right"]
    with pytest.raises(AudioError, match="has one channel"):
        load_channels(film, audio_track=2)


def test_in_the_library(film: Path, digits: SlimWhisper) -> None:
    assert digits.transcribe(film, audio_track=2)["text"].startswith(" five five five")
    ((_, result),) = digits.transcribe_many([film], audio_track="eng", channels=None)
    assert result["text"].startswith(" five five five")
