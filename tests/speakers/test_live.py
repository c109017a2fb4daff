"""Who speaks in a live stream: names as segments end, and corrections at the end."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

import slimwhisper
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.live.types import SpeakersCorrected, UtteranceEnded
from slimwhisper.speakers.live import LiveSpeakers
from tests.support.paths import SAMPLES
from tests.support.voices import BandEncoder, made_up_voices, sound

__all__ = ["made_up_voices"]

pytestmark = [
    pytest.mark.usefixtures("made_up_voices"),
    pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def band_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.speakers.live.load_encoder", BandEncoder)


def voice(number: int, seconds: float) -> np.ndarray:
    return sound([(number, 0.0, seconds)], seconds)


@pytest.fixture
def references(tmp_path: Path) -> list[tuple[str, str]]:
    path = tmp_path / "Zoë.wav"
    soundfile.write(path, sound([(4, 0.5, 4.0)], 5.0), 16_000)
    return [("Zoë", str(path))]


def test_each_segment_has_a_speaker(references: list[tuple[str, str]]) -> None:
    speakers = LiveSpeakers(references)
    said = [(0, 3.0), (2, 2.0), (0, 1.0), (4, 3.0), (2, 0.9)]
    names = [speakers.name((i, 0), voice(*each)) for i, each in enumerate(said)]
    assert names == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_00", "Zoë", "SPEAKER_01"]
    assert speakers.name((5, 0), np.zeros(0, np.float32)) is None
    assert speakers.corrected() == []


def test_what_is_too_short_makes_no_speaker() -> None:
    speakers = LiveSpeakers()
    assert speakers.name((0, 0), voice(0, 3.0)) == "SPEAKER_00"
    assert speakers.name((1, 0), voice(2, 0.5)) == "SPEAKER_00"
    assert speakers.name((2, 0), voice(2, 1.0)) == "SPEAKER_01"
    assert speakers.corrected() == [(1, 0, "SPEAKER_01")], "known better at the end"


def test_two_that_turn_out_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their voices come nearer as more is heard."""
    angles = iter(np.radians([0, 46, 30, 28, 120]))

    def embed(*_: object) -> np.ndarray:
        angle = next(angles)
        return np.array([np.cos(angle), np.sin(angle)], np.float32)

    monkeypatch.setattr("slimwhisper.speakers.live.embed_voice", embed)
    speakers = LiveSpeakers()
    names = [speakers.name((i, i % 2), voice(0, 3.0)) for i in range(5)]
    assert names == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_01", "SPEAKER_01", "SPEAKER_02"]
    assert speakers.corrected() == [(i, i % 2, "SPEAKER_00") for i in (1, 2, 3)]


def test_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each utterance by the voice of its own audio, which is kept only where it is asked for."""
    model = slimwhisper.load_model("digits", device="cpu")
    audio = slimwhisper.load_audio(SAMPLES / "phone-number.wav")
    heard: list[int] = []

    class ByTurns(BandEncoder):
        def embed(self, windows: object) -> np.ndarray:
            count = len(list(windows))  # type: ignore[call-overload]
            heard.append(count)
            return np.tile(np.eye(16, dtype=np.float32)[len(heard) % 2], (count, 1))

    monkeypatch.setattr("slimwhisper.speakers.live.load_encoder", ByTurns)
    events = list(model.live(iter([audio]), diarize=True, words=True))
    ended = [e for e in events if isinstance(e, UtteranceEnded)]
    names = [s.speaker for e in ended for s in e.segments]
    assert names == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_00"]
    assert all(w.speaker == s.speaker for e in ended for s in e.segments for w in s.words or ())
    assert heard and max(heard) <= 2
    assert not any(isinstance(e, SpeakersCorrected) for e in events)
    plain = [e for e in model.live(iter([audio]), words=True) if isinstance(e, UtteranceEnded)]
    assert [e.text for e in plain] == [e.text for e in ended]
    assert {s.speaker for e in plain for s in e.segments} == {None}


def test_mistakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = slimwhisper.load_model("digits", device="cpu")
    with pytest.raises(OptionError, match="diarize 'yes' is of type str; give True or False"):
        model.live(diarize="yes")
    with pytest.raises(OptionError, match=r"known_speakers: .*ann\.wav: no such file"):
        model.live(diarize=True, known_speakers={"Ann": tmp_path / "ann.wav"})
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda _: ["resemblyzer"])
    with pytest.raises(DependencyError, match=r"diarize needs resemblyzer: pip install"):
        model.live(diarize=True)
