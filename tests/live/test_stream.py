"""Streams over words that are tones: what is committed, when, and what is left of it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.live import activity
from slimwhisper.live.stream import Stream
from slimwhisper.live.types import (
    Ended,
    Failed,
    LiveEvent,
    LiveOptions,
    SpeechStarted,
    SpeechStopped,
    Text,
)
from tests.support.tones import (
    DIMS,
    MULTILINGUAL,
    Loudness,
    Reader,
    play,
    say,
    text,
    tone,
    update,
    vocabulary,
)

PLAIN = LiveOptions()
ONE_SAMPLE = np.zeros(1, np.float32)


@pytest.fixture(autouse=True)
def loudness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SpeechStream", Loudness)


def begin(options: LiveOptions = PLAIN) -> tuple[Stream, Reader]:
    return Stream(DIMS, vocabulary(), options), Reader(vocabulary())


def texts(events: Sequence[LiveEvent]) -> list[str]:
    """Of the utterances. Checks the events of each, and that they tell the same story."""
    found: list[str] = []
    for number in range(
        1 + max((e.utterance for e in events if not isinstance(e, Failed)), default=-1)
    ):
        own = [e for e in events if not isinstance(e, Failed) and e.utterance == number]
        first, *told, last = own
        (stop,) = (e for e in told if isinstance(e, SpeechStopped))
        assert isinstance(first, SpeechStarted) and first.start <= stop.end
        assert isinstance(last, Ended) and last.segments and last.language == "en"
        committed = ""
        for event in told:
            if isinstance(event, Text):
                assert not (committed + event.committed + event.tentative).startswith(" ")
                committed += event.committed
        assert last.text == committed == "".join(s.text for s in last.segments).strip()
        assert all(a.end <= b.start + 0.1 for a, b in pairwise(last.segments))
        assert all(s.start <= s.end for s in last.segments)
        found.append(last.text)
    for kind in (SpeechStarted, SpeechStopped, Ended):  # utterances begin and end in order
        assert [e.utterance for e in events if isinstance(e, kind)] == list(range(len(found)))
    return found


def talk(rng: random.Random, phrases: int, longest: int) -> list[list[int]]:
    return [rng.choices(range(10), k=rng.randint(2, longest)) for _ in range(phrases)]


@pytest.mark.parametrize("policy", ["agreement", "alignatt"])
@pytest.mark.parametrize("words", [False, True])
def test_all_that_is_said_is_committed_once(policy: str, words: bool) -> None:
    """Phrases of up to 24 s in windows of 10 s, so buffers are cut between words."""
    phrases = [*talk(random.Random(5), 2, 12), list(range(10)) * 6]
    stream, reader = begin(replace(PLAIN, policy=policy, words=words))
    events = play(stream, reader, [say(phrases, 0.9), say([[]], 0.9)])
    assert texts(events) == [text(p) for p in phrases]
    assert stream.ended and stream.merged == 0 and stream.backlog == 0
    ended = [e for e in events if isinstance(e, Ended)]
    assert len(ended[0].segments) == 1 and len(ended[-1].segments) > 2
    assert any("<|startofprev|>" in reader.tokenizer.decode(list(w.prompt)) for w in reader.windows)
    told = [w for e in events if isinstance(e, Text) for w in e.words]
    assert "".join(w.word for w in told) == ("".join(f" {text(p)}" for p in phrases) * words)
    if words:
        starts = iter(told)
        at = 0.0
        for phrase in phrases:
            at += 0.9
            for _ in phrase:
                assert abs(next(starts).start - at) < 0.2
                at += 0.4


def test_it_does_not_matter_how_the_audio_is_split() -> None:
    rng = random.Random(1)
    audio = np.concatenate([say(talk(rng, 2, 20), 0.8), *[ONE_SAMPLE] * 700])
    expected = play(*begin(), [audio])
    assert len(texts(expected)) == 2
    for _ in range(3):
        points = sorted(rng.choices(range(len(audio)), k=60))
        pieces = [audio[a:b] for a, b in pairwise([0, *points, len(audio)])]
        pieces[20:20] = [audio[:0], audio[:0]]
        assert play(*begin(), pieces) == expected


def test_one_sample_at_a_time() -> None:
    audio = say([[3, 1, 4]], 0.05)
    assert play(*begin(), [audio[i : i + 1] for i in range(len(audio))]) == play(*begin(), [audio])


def test_agreement_is_what_two_updates_begin_with() -> None:
    """By the plain definition, over the whole texts of all updates of an utterance."""
    phrase = [3, 1, 4, 1, 5, 9, 2, 6]
    stream, reader = begin(replace(PLAIN, update=0.7))
    events = play(stream, reader, [say([phrase], 0.3), say([[]], 0.4)])
    told = [e for e in events if isinstance(e, Text)]
    assert len(reader.texts) == len(told) >= 4  # the last one knew all: no more was decoded
    committed: list[str] = []
    before: list[str] = []
    for event, now in zip(told[:-1], reader.texts, strict=False):
        same = 0
        while same < min(len(now), len(before)) and now[same] == before[same]:
            same += 1
        committed += now[len(committed) : same]
        assert now[: len(committed)] == committed
        assert event.tentative.split() == now[len(committed) :]
        before = now
        so_far = "".join(e.committed for e in told[: told.index(event) + 1])
        assert so_far.split() == committed
    assert texts(events) == [text(phrase)]


def test_the_tentative_text_is_the_next_draft() -> None:
    stream, reader = begin()
    events = play(stream, reader, [say([list(range(8))], 0.3)])
    told = [e for e in events if isinstance(e, Text)]
    for event, window in zip(told, reader.windows[1:], strict=False):
        assert reader.tokenizer.decode(list(window.draft)).strip() == event.tentative.strip()
        assert window.rules is not None and window.attempt.temperature == 0
    assert any(w.draft for w in reader.windows)
    committing = sum(bool(e.committed) for e in told)
    assert len(found := stream.latencies()) == committing and min(found) >= 0
    assert stream.latencies() == []


def test_silence_costs_nothing() -> None:
    stream, reader = begin()
    events = play(stream, reader, [np.zeros(20 * 16_000, np.float32)])
    assert events == [] and reader.windows == [] and stream.ended


def test_the_last_update_is_not_repeated() -> None:
    """An update that knew all of the speech is the last one; else the end makes one more."""
    counts = []
    for extra in (0.0, 0.35):
        stream, reader = begin(replace(PLAIN, update=0.3, first=0.1))
        audio = say([[1, 2]], 0.1)
        play(stream, reader, [audio, np.zeros(round((0.7 + extra) * 16_000), np.float32)])
        counts.append(len(reader.windows))
    assert counts[0] == counts[1]


def test_an_update_that_is_late_takes_the_newest_audio() -> None:
    stream, reader = begin()
    audio = say([list(range(10)) * 2], 0.1)
    stream.append(audio[:16_000])
    request = stream.request()
    assert request is not None and stream.due is None
    for start in range(16_000, 16_000 * 6, 1600):
        stream.append(audio[start : start + 1600])
    assert stream.due is None and stream.backlog == pytest.approx(5, abs=0.3)
    assert stream.accept(reader.answer(request)) is None
    assert stream.due is not None
    update(stream, reader)
    assert stream.merged == 3 and stream.updates == 2 and stream.backlog < 0.2
    assert stream.due is None
    stream.append(audio[16_000 * 6 :])
    assert texts([*stream.events(), *play(stream, reader, [])]) == [text([*range(10)] * 2)]


def test_all_at_once() -> None:
    """A stream that is far behind: several utterances wait, one longer than a window."""
    stream, reader = begin()
    phrases = [[1, 2, 3], list(range(10)) * 5, [4, 5]]
    stream.append(say(phrases, 0.8))
    assert stream.backlog > 20
    assert texts(play(stream, reader, [])) == [text(p) for p in phrases]
    assert stream.updates < 12


def test_an_utterance_ends_when_asked() -> None:
    stream, reader = begin()
    audio = tone(3), tone(1), tone(4), tone(1)
    events = play(stream, reader, audio[:2], finish=False)
    stream.commit()
    stream.commit()  # nothing goes on
    events += play(stream, reader, audio[2:])
    assert texts(events) == [text([3, 1]), text([4, 1])]


def test_without_turns_only_commit_ends_an_utterance() -> None:
    stream, reader = begin(replace(PLAIN, turns=False))
    events = play(
        stream, reader, [say([[1, 2], [3, 4, 5]], 0.9), np.zeros(32_000, np.float32)], False
    )
    assert [type(e) for e in events if not isinstance(e, Text)] == [SpeechStarted]
    assert "".join(e.committed for e in events if isinstance(e, Text)) == text([1, 2, 3, 4, 5])
    count = len(reader.windows)
    stream.commit()  # all is committed: nothing to decode
    events += play(stream, reader, [np.zeros(16_000, np.float32)], False)
    assert len(reader.windows) == count
    stream.commit()  # silence alone is an utterance, as the caller says so
    stream.commit()  # no audio is none
    events += play(stream, reader, [say([[7]], 0.1)])
    assert texts(events) == [text([1, 2, 3, 4, 5]), "", text([7])]
    ended = [e for e in events if isinstance(e, Ended)]
    assert [len(e.segments) for e in ended] == [2, 1, 1]


@pytest.mark.parametrize("running", [False, True])
def test_clear_forgets_what_is_not_committed(running: bool) -> None:
    stream, reader = begin()
    audio = say([list(range(8))], 0.1)
    events = play(stream, reader, [audio], finish=False)
    told = "".join(e.committed for e in events if isinstance(e, Text))
    assert told and told != text(range(8))
    request = None
    if running:
        stream.append(tone(8))
        stream.append(tone(9))
        stream.append(tone(9))
        request = stream.request()
        assert request is not None
    stream.clear()
    assert stream.backlog == 0
    if request is not None:
        assert stream.accept(reader.answer(request)) is None
    stream.clear()
    events += stream.events() + play(stream, reader, [say([[7, 7]], 0.6)])
    assert texts(events) == [told, text([7, 7])]
    assert stream.ended


def test_what_was_ended_before_is_not_cleared() -> None:
    stream, reader = begin()
    stream.append(say([[1, 2], [3, 4]], 0.9))
    stream.clear()
    assert texts(play(stream, reader, [])) == [text([1, 2]), ""]


def test_other_options_from_the_next_utterance_on() -> None:
    stream, reader = begin()
    events = play(stream, reader, [say([[1, 2]], 0.1)], finish=False)
    stream.change(replace(PLAIN, words=True))
    with pytest.raises(OptionError, match="window"):
        stream.change(replace(PLAIN, window=5.0))
    events += play(stream, reader, [say([[], [3, 4]], 0.8)])
    assert texts(events) == [text([1, 2]), text([3, 4])]
    words = [bool(e.segments[0].words) for e in events if isinstance(e, Ended)]
    assert words == [False, True]


def test_the_language_of_each_utterance() -> None:
    known = vocabulary(MULTILINGUAL)
    stream, reader = Stream(MULTILINGUAL, known, PLAIN), Reader(known)
    events = play(stream, reader, [say([list(range(6)), [1, 2]], 0.8)])
    assert [e.language for e in events if isinstance(e, Ended)] == ["de", "de"]
    asked = [w for w in reader.windows if w.rules is None]
    decoded = [w for w in reader.windows if w.rules is not None]
    assert all(w.mel is not None for w in asked) and 2 <= len(asked) < len(decoded)
    assert all("<|de|>" in reader.tokenizer.decode(list(w.prompt)) for w in decoded)
    given = Stream(MULTILINGUAL, known, replace(PLAIN, language="German"))
    (ended,) = (e for e in play(given, reader, [say([[1, 2]], 0.8)]) if isinstance(e, Ended))
    assert ended.language == "de" and reader.windows[-1].rules is not None


def test_prompt_and_hot_words() -> None:
    stream, reader = begin(replace(PLAIN, prompt="Numbers.", hotwords="seven"))
    play(stream, reader, [say([[1, 2], [3, 4]], 0.8)])
    first, last = (reader.tokenizer.decode(list(reader.windows[i].prompt)) for i in (0, -1))
    assert first == "<|startofprev|> seven Numbers.<|startoftranscript|><|notimestamps|>"
    assert last.startswith("<|startofprev|> seven Numbers. one two<|startoftranscript|>")


def test_unsure_text_is_not_committed_before_the_end() -> None:
    stream, reader = begin()
    reader.logprob = -2.0
    events = play(stream, reader, [say([[1, 2, 3, 4, 5, 6]], 0.2)])
    told = [e for e in events if isinstance(e, Text)]
    assert [bool(e.committed) for e in told] == [False] * (len(told) - 1) + [True]
    (ended,) = (e for e in events if isinstance(e, Ended))
    assert ended.segments[0].temperature == 1.0  # the last of the attempts in the slot


def test_bad_input() -> None:
    stream, reader = begin()
    stream.append(np.zeros(0, np.float32))
    for bad in (
        np.array([0.0, np.nan]),
        np.array([np.inf]),
        np.zeros((2, 8)),
        np.zeros(8, np.int16),
    ):
        with pytest.raises(AudioError, match=r"give float32"):
            stream.append(bad)
    assert texts(play(stream, reader, [say([[1]], 0.1)])) == ["one"]
    with pytest.raises(OptionError, match="finished"):
        stream.append(ONE_SAMPLE)
    stream.finish()
    assert stream.ended and stream.due is None


def test_a_model_that_gives_nan() -> None:
    stream, reader = begin()
    reader.logprob = float("nan")
    with pytest.raises(SlimWhisperError, match="NaN"):
        play(stream, reader, [say([[1, 2, 3]], 0.1)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "greedy"}, "policy 'greedy' is not one of agreement, alignatt"),
        ({"update": 0}, "update 0 is not"),
        ({"first": float("nan")}, "first nan is not"),
        ({"vad_threshold": 1}, "vad_threshold 1 is not between 0 and 1"),
        ({"silence_duration_ms": 0.5}, "silence_duration_ms 0.5 is not a whole number"),
        ({"prefix_padding_ms": -1}, "prefix_padding_ms -1 is not a whole number"),
        ({"window": 1.0}, "window 1.0 is not"),
        ({"words": "yes"}, "words 'yes' is neither"),
        ({"language": "xx"}, "language 'xx'"),
        ({"task": "translate"}, "English-only"),
    ],
)
def test_options_that_cannot_work(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        begin(replace(PLAIN, **change))


@pytest.mark.slow
@pytest.mark.parametrize("turns", [True, False])
def test_an_hour_stays_flat(turns: bool) -> None:
    """Faster than real time; what is kept is counted: samples, frames, tokens, passages."""
    rng = random.Random(2)
    stream, reader = begin(replace(PLAIN, turns=turns, update=3.0))
    kept, said, told, seconds = [], "", "", 0.0
    while seconds < 3600:
        phrases = talk(rng, 3, 60)
        said += "".join(f" {text(p)}" for p in phrases)
        audio = say([*phrases, []], rng.uniform(0.8, 9))
        seconds += len(audio) / 16_000
        events = play(stream, reader, [audio], finish=False)
        told += "".join(
            f" {e.committed.strip()}" for e in events if isinstance(e, Text) and e.committed
        )
        passages = stream._passages
        kept.append(
            sum(p.mel.samples for p in passages)
            + len(stream._recent)
            + len(stream._pending)
            + len(stream._history)
        )
        stream.latencies()
        reader.windows[:-1], reader.texts[:-1] = [], []
        if not turns and rng.random() < 0.2:
            stream.commit()
    assert told == said
    assert max(kept) < 10 * 16_000
