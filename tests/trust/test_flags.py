"""Which flags a window's segments get; phrases, pace, loops and scripts, and what is nearly so."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.recordings.passes import in_seconds
from slimwhisper.trust import REASONS
from slimwhisper.trust import flags as rules
from slimwhisper.trust.flags import WindowEvidence, flagged, has_sound, with_gaps, with_loops
from slimwhisper.types import Segment, Transcript, Word
from tests.support.fuzz import examples
from tests.support.scripted import segment as plain
from tests.support.sessions import Heard
from tests.support.spoken import spoken_words

SPEECH = WindowEvidence(lambda start, end: 0.6 * (end - start), "en")
EVIDENCE = {
    "speech": SPEECH,
    "silence": replace(SPEECH, sound=lambda start, end: 0.0),
    "nobody": replace(SPEECH, voiced=lambda start, end: end < 10),
    "somebody": replace(SPEECH, voiced=lambda start, end: start < 14),
    "Chinese": replace(SPEECH, language="zh"),
    "any language": replace(SPEECH, language=None),
    "changed": replace(SPEECH, changed=True),
}
TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))


def said(text: str, seconds: float = 3.0, **fields: float) -> Segment:
    return replace(plain(0, 0, 10.0, 10.0 + seconds, text, []), **fields)


def flags(segment: Segment, evidence: WindowEvidence = SPEECH) -> tuple[str, ...]:
    (result,) = flagged([segment], evidence, [])
    assert replace(result, flags=()) == segment
    return result.flags


@pytest.mark.parametrize(("text", "fields", "evidence", "expected"), TEXTS["flags"])
def test_flags_of_a_segment(
    text: str, fields: dict[str, float], evidence: str, expected: list[str]
) -> None:
    assert flags(said(text, **fields), EVIDENCE[evidence]) == tuple(expected)


def test_repeats_with_the_segments_before_and_after() -> None:
    same = [said(" What a day.")] * 6
    assert [s.flags for s in flagged(same[:1], SPEECH, same[:3])] == [("repeats",)]
    assert [s.flags for s in flagged(same[:1], SPEECH, same[:2])] == [()]
    other = said(" Where were you?", flags=("improbable",))
    result = with_loops([other, *same, other])
    assert [s.flags for s in result] == [("improbable",), *[("repeats",)] * 6, ("improbable",)]
    assert with_loops([]) == []


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


def test_improbable_words() -> None:
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
        sound = rules.window_sound(lambda mel=mel: mel.window(0, 400)[:, :400], 60.0)
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


# Phrases, pace, loops and scripts


def test_every_phrase_of_the_tables_is_found() -> None:
    table = tomllib.loads(rules.TABLE.read_text(encoding="utf-8"))
    for language, phrases in table["credits"].items():
        for phrase in phrases:
            assert rules.is_credit(f" {phrase}."), (language, phrase)
    for language, phrases in table["common"].items():
        assert len(set(phrases)) == len(phrases), language
        for phrase in phrases:
            for text in (f" {phrase}!", f"{phrase}. {phrase}."):
                assert rules.is_common(text), text


@pytest.mark.parametrize(("text", "credit"), TEXTS["credits"])
def test_credits_with_names_and_near_misses(text: str, credit: bool) -> None:
    assert rules.is_credit(text) == credit and not rules.is_common(text)


@pytest.mark.parametrize(("text", "letters", "pace"), TEXTS["paces"])
def test_the_least_time_of_a_text(text: str, letters: int, pace: int) -> None:
    assert rules.least_seconds(text) == pytest.approx(letters / pace)


@pytest.mark.parametrize(("text", "loop"), TEXTS["loops"])
def test_what_is_a_loop(text: str, loop: bool) -> None:
    assert rules.looping([text]) == [loop]


@pytest.mark.parametrize(("text", "language", "foreign"), TEXTS["scripts"])
def test_scripts(text: str, language: str, foreign: bool) -> None:
    assert rules.is_foreign(text, language) == foreign


def slow_loops(tokens: list[str]) -> set[int]:
    """The indices inside any loop, by trying every start, turn and number of turns."""
    inside: set[int] = set()
    for start in range(len(tokens)):
        for period in range(1, len(tokens)):
            turn, times = tokens[start : start + period], 1
            while tokens[start + times * period : start + (times + 1) * period] == turn:
                times += 1
            if (times >= 4 and times * period >= 8) or (times >= 3 and period >= 6):
                inside.update(range(start, start + times * period))
    return inside


TURN = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8)


@examples(100)
@given(st.lists(st.sampled_from("abc"), max_size=25), TURN, st.integers(1, 6), st.integers(0, 25))
def test_loops_are_those_of_a_slow_search(
    words: list[str], turn: list[str], times: int, at: int
) -> None:
    words[at:at] = turn * times
    slow, result = slow_loops(words), list(rules.loops(words))
    covered = {i for start, stop in result for i in range(start, stop)}
    assert slow <= covered
    for start, stop in result:  # a stretch may end within a turn: nothing more is covered
        assert any(
            words[start : stop - period] == words[start + period : stop]
            for period in range(1, 1 + (stop - start) // 3)
        )


def test_segments_that_repeat_one_another() -> None:
    said = "Where were you?"
    assert rules.looping([said, *["Thank you."] * 4, said]) == [False, *[True] * 4, False]
    assert rules.looping(["Yes.", "No.", "Yes.", "No.", "Yes.", "No.", "Maybe."]) == [False] * 7
    assert rules.looping(["", "", said]) == [False] * 3


def test_tokens() -> None:
    assert rules.tokens_of("I'm HERE — „so“ 3.5!") == ("im", "here", "so", "3", "5")
    assert rules.tokens_of("東京2020 ok") == ("東", "京", "2020", "ok")
    assert rules.tokens_of("ﬁne Ｏ") == ("fine", "o")
