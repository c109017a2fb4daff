"""Which flags a window's segments get."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.recordings.passes import in_seconds
from slimwhisper.trust import REASONS
from slimwhisper.trust.flags import (
    WindowEvidence,
    flagged,
    has_sound,
    window_sound,
    with_gaps,
    with_loops,
)
from slimwhisper.types import Segment, Transcript, Word
from tests.support.scripted import segment as plain
from tests.support.sessions import Heard
from tests.support.spoken import spoken_words

SPEECH = WindowEvidence(lambda start, end: 0.6 * (end - start), "en")
SILENCE = replace(SPEECH, sound=lambda start, end: 0.0)


def said(text: str, seconds: float = 3.0, **fields: float) -> Segment:
    return replace(plain(0, 0, 10.0, 10.0 + seconds, text, []), **fields)


def flags(segment: Segment, evidence: WindowEvidence = SPEECH) -> tuple[str, ...]:
    (result,) = flagged([segment], evidence, [])
    assert replace(result, flags=()) == segment
    return result.flags


def test_plain_speech_has_none() -> None:
    assert flags(said(" We took the early train because of the snow.")) == flags(said("", 0)) == ()


def test_repeats() -> None:
    assert flags(said(" What a day." * 8, 6.0)) == ("repeats",)
    assert flags(said(" What a day.", compression_ratio=2.5)) == ("repeats",)
    assert flags(said(" What a day.", compression_ratio=2.3)) == ()


def test_repeats_with_the_segments_before_and_after() -> None:
    same = [said(" What a day.")] * 6
    assert [s.flags for s in flagged(same[:1], SPEECH, same[:3])] == [("repeats",)]
    assert [s.flags for s in flagged(same[:1], SPEECH, same[:2])] == [()]
    other = said(" Where were you?", flags=("improbable",))
    result = with_loops([other, *same, other])
    assert [s.flags for s in result] == [("improbable",), *[("repeats",)] * 6, ("improbable",)]
    assert with_loops([]) == []


def test_invented() -> None:
    assert flags(said(" Thank you.", 1.0)) == ()
    assert flags(said(" Thank you.", 1.0), SILENCE) == ("invented",)
    assert flags(said(" Thank you.", 1.0, no_speech_prob=0.55)) == ("invented",)
    assert flags(said(" Thank you.", 3.9)) == ()
    assert "invented" in flags(said(" Thank you.", 25.0))
    assert flags(said(" Thank you, Ann.", 1.0), SILENCE) == ()
    assert flags(said(" Untertitel im Auftrag des ZDF, 2021")) == ("invented",)
    for text in (" ... ", " .", " ♪", " - !"):
        assert flags(said(text)) == ("invented",)


def test_uncertain_text_where_nobody_speaks() -> None:
    quiet = replace(SPEECH, voiced=lambda start, end: end < 10)
    assert flags(said(" We took the train.", no_speech_prob=0.6), quiet) == ("invented",)
    assert flags(said(" We took the train.", avg_logprob=-0.9), quiet) == ("invented", "improbable")
    assert flags(said(" We took the train."), quiet) == ()  # it may be sung
    spoken = replace(SPEECH, voiced=lambda start, end: start < 14)
    assert flags(said(" We took the train.", no_speech_prob=0.6), spoken) == ()


def test_speech_without_text() -> None:
    """It flags the text before it, or the first one."""
    segments = [replace(said(" Hello."), start=t, end=t + 3.0) for t in (10.0, 20.0, 30.0)]
    for spoken, flagged_ones in (
        ((0, 60), [0, 1, 2]),
        ((33, 60), [2]),
        ((12, 33), [0, 1]),
        ((12, 24), [0]),
        ((10, 14.9), []),
    ):
        voice = Heard(60, spoken)
        marked = with_gaps(segments, in_seconds(voice.seconds), 60.0)
        assert [i for i, s in enumerate(marked) if s.flags == ("text_missing",)] == flagged_ones
    assert with_gaps([], in_seconds(Heard(60, (0, 60)).seconds), 60.0) == []


def test_pace() -> None:
    text = " It was the best of times, it was the worst of times."  # 39 letters
    assert flags(said(text, 0.9)) == () and flags(said(text, 0.7)) == ("too_fast",)
    chinese = replace(SPEECH, language="zh")
    assert flags(said(" 我们昨天晚上坐火车去了北京", 0.5), chinese) == ("too_fast",)
    assert flags(said(" Hello there.", 10.0)) == ("too_few_words",)
    assert flags(said(" Hello there.", 10.0), SILENCE) == ()
    assert flags(said(" Hello there.", 6.0)) == ()  # less than four seconds of sound


def test_language_changed() -> None:
    assert flags(said(" Продолжение завтра вечером")) == ("language_changed",)
    assert flags(said(" Продолжение завтра вечером"), replace(SPEECH, language=None)) == ()
    assert flags(said(" Good morning."), replace(SPEECH, changed=True)) == ("language_changed",)


def test_improbable() -> None:
    assert flags(said(" Good morning.", avg_logprob=-0.81)) == ("improbable",)
    assert flags(said(" Good morning.", avg_logprob=-0.79)) == ()
    for probabilities, guessed in (([0.6, 0.7], True), ([0.4, 0.9, 0.9], False), ([], False)):
        words = [Word("a", 0.0, 1.0, p) for p in probabilities]
        assert bool(flags(replace(said(" Good morning."), words=words))) == guessed


def test_flags_are_in_the_order_of_their_reasons() -> None:
    result = flags(said(" Thank you." * 20, 1.0, avg_logprob=-2.0, no_speech_prob=0.9))
    assert result == ("repeats", "invented", "too_fast", "improbable")
    assert sorted(result, key=list(REASONS).index) == list(result)


@pytest.mark.parametrize("gain", [1.0, 0.03])
def test_speech_sounds_and_silence_and_noise_do_not(gain: float) -> None:
    rng = np.random.default_rng(0)
    word, seconds = spoken_words()[0][1], 4
    hiss = (0.002 * rng.standard_normal(seconds * 16_000)).astype(np.float32)
    audio = hiss.copy()
    audio[16_000 : 16_000 + len(word)] += word
    for samples, expected in ((audio, len(word) / 16_000), (hiss, 0.0), (0 * hiss, 0.0)):
        mel = Spectrogram(ArraySamples(gain * samples), 80)
        sound = window_sound(lambda mel=mel: mel.window(0, 400)[:, :400], 60.0)  # type: ignore[misc]
        assert sound(60.0, 64.0) == pytest.approx(expected, abs=0.45)
        assert sound(62.0, 64.0) == sound(63.0, 900.0) == len(has_sound(torch.zeros(80, 0))) == 0


def test_where_flags_stand() -> None:
    """Beside the segments, whose keys are those of `whisper`'s: stable-ts refuses others."""
    doubtful = replace(said(" You."), id=1, flags=("improbable",))
    found = Transcript(" Hm. You.", [said(" Hm."), doubtful], "en")
    keys = "id seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob"
    result = dict(found)
    assert [list(s) for s in result["segments"]] == [keys.split()] * 2
    assert result["flags"] == {1: ["improbable"]}
    assert [s.get("flags") for s in found.segment_rows()] == [None, ["improbable"]]
    assert list(replace(found, segments=found.segments[:1])) == [*("text", "segments", "language")]
