"""Streams over words that are tones: what is committed, when, what clients may change; and how much
is left of it.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.checkpoint.load import GenerationSettings
from slimwhisper.engine import requests
from slimwhisper.engine.requests import Answer, Attempt, Decoded, Request, Window
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.live import stream as stream_module
from slimwhisper.live.setup import EXTRA_TOKENS
from slimwhisper.live.speech_buffer import SHORT_SILENCE
from slimwhisper.live.stream import MAX_PARALLEL_UPDATES, Stream
from slimwhisper.live.types import LiveEvent, SpeechStopped, TextUpdate, UtteranceEnded
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import FRAME
from tests.support.checkpoints import facts_of
from tests.support.fuzz import examples
from tests.support.tones import (
    DIMS,
    MULTILINGUAL,
    ONE_SAMPLE,
    PLAIN,
    WORDS,
    Reader,
    begin,
    play,
    read,
    speech,
    text,
    texts,
    tone,
    update,
    vocabulary,
)

pytestmark = pytest.mark.usefixtures("loudness")
QUIET = np.zeros(16_000, np.float32)


def talk(rng: random.Random, phrases: int, longest: int) -> list[list[int]]:
    return [rng.choices(range(10), k=rng.randint(2, longest)) for _ in range(phrases)]


def updates_of(events: list[LiveEvent]) -> list[TextUpdate]:
    return [e for e in events if isinstance(e, TextUpdate)]


def ends_of(events: list[LiveEvent]) -> list[UtteranceEnded]:
    return [e for e in events if isinstance(e, UtteranceEnded)]


@pytest.mark.parametrize(("words", "context"), [(True, 448), (False, 448), (True, 48)])
def test_all_that_is_said_is_committed_once(words: bool, context: int) -> None:
    """Phrases of up to 24 s in windows of 10 s, so buffers are cut between words. With what was
    said before, there is always room for the text.
    """
    phrases = [*talk(random.Random(5), 2, 12), list(range(10)) * 6]
    stream, reader = begin(replace(PLAIN, words=words), replace(DIMS, n_text_ctx=context))
    events = play(stream, reader, [speech(phrases, 0.9), speech([[]], 0.9)])
    rules = [w.rules for w in reader.windows if w.rules is not None]
    lengths = [len(w.prompt) + r.sample_len for w, r in zip(reader.windows, rules, strict=True)]
    assert max(lengths) < context
    assert texts(events) == [text(p) for p in phrases]
    assert stream.ended and stream.merged == 0 and stream.backlog == 0
    ended = ends_of(events)
    assert len(ended[0].segments) == 1 and len(ended[-1].segments) > 2
    assert any("<|startofprev|>" in reader.tokenizer.decode(list(w.prompt)) for w in reader.windows)
    timed = [w for e in updates_of(events) for w in e.words]
    assert "".join(w.word for w in timed) == ("".join(f" {text(p)}" for p in phrases) * words)
    decoded = [e.heard for e in updates_of(events) if e.utterance == 2][:-2]
    # never the same audio twice, whose text would agree with itself
    assert len(decoded) > 15 and all(b - a > 0.9 for a, b in pairwise(decoded))
    at, starts = 0.0, iter(timed)
    for phrase in phrases if words else ():
        at += 0.9
        for _ in phrase:
            assert abs(next(starts).start - at) < 0.2
            at += 0.4


AUDIO = np.concatenate([speech(talk(random.Random(1), 2, 9), 0.8), *[ONE_SAMPLE] * 700])


@examples(5)
@given(st.lists(st.integers(0, len(AUDIO)), max_size=60), st.integers(1, 900))
def test_it_does_not_matter_how_the_audio_is_split(points: list[int], size: int) -> None:
    """Anywhere, into nothing, and into many pieces of a few samples."""
    expected = play(*begin(), [AUDIO])
    assert len(texts(expected)) == 2
    small = range(0, 100 * size, size)
    cuts = [0, *sorted([*points, *(at for at in small if at < len(AUDIO))]), len(AUDIO)]
    assert play(*begin(), [AUDIO[a:b] for a, b in pairwise(cuts)]) == expected


def test_what_is_tentative_is_the_next_draft() -> None:
    """And what is committed begins all later texts."""
    phrase = [3, 1, 4, 1, 5, 9, 2, 6]
    stream, reader = begin(replace(PLAIN, update=0.7))
    events = play(stream, reader, [speech([phrase], 0.3), speech([[]], 0.4)])
    updates = updates_of(events)
    # the last update was made as speech seemed to be over; its end commits the same, undecoded
    assert len(reader.texts) == len(updates) - 1 >= 4
    assert updates[-1].heard == updates[-2].heard and not updates[-1].tentative
    committed, before = list[str](), list[str]()
    for event, now, window in zip(updates[:-1], reader.texts, reader.windows, strict=True):
        assert reader.tokenizer.decode(list(window.draft)).split() == before[len(committed) :]
        committed += event.committed.split()
        assert now[: len(committed)] == committed
        assert event.tentative.split() == now[len(committed) :]
        before = now
    assert texts(events) == [text(phrase)]


def test_a_text_that_seems_to_end_too_early() -> None:
    """As after a full stop. A second of speech without text is never taken for the end."""
    stream, reader = begin()
    decoded = reader._decoded

    def ends_early(window: requests.Window, temperature: float) -> requests.Decoded:
        found, rules = decoded(window, temperature), window.rules
        may_end = rules is not None and reader.tokenizer.eot not in rules.suppress_first
        ends = may_end and len(found.tokens) > 2
        return replace(found, tokens=(), logprobs=found.logprobs[:1]) if ends else found

    reader._decoded = ends_early  # type: ignore[method-assign]
    assert texts(play(stream, reader, [speech([[*range(8)]], 0.3)])) == [text(range(8))]


def test_an_update_that_is_late_takes_the_newest_audio() -> None:
    stream, reader = begin()
    audio = speech([list(range(10)) * 2], 0.1)
    stream.append(audio[:16_000])
    buffer, request = stream.next_window()
    assert stream.due is None
    for start in range(16_000, 16_000 * 6, 1600):
        stream.append(audio[start : start + 1600])
    assert stream.due is None and stream.backlog == pytest.approx(5, abs=0.3)
    aligned = stream.accept(buffer, reader.answer(request))
    assert aligned is not None and stream.accept(buffer, reader.answer(aligned)) is None
    assert stream.due is not None
    update(stream, reader)
    assert stream.merged == 3 and stream.updates == 2 and stream.backlog < 0.2
    assert stream.due is None
    stream.append(audio[16_000 * 6 :])
    assert texts([*stream.events(), *play(stream, reader, [])]) == [text([*range(10)] * 2)]


@pytest.mark.slow
@pytest.mark.parametrize("turns", [True, False])
def test_a_quarter_of_an_hour_stays_flat(turns: bool) -> None:
    """What is kept is counted: samples, frames, tokens, passages."""
    rng = random.Random(2)
    stream, reader = begin(replace(PLAIN, turns=turns, update=3.0))
    sizes, expected, committed, seconds = [], "", "", 0.0
    while seconds < 900:
        phrases = talk(rng, 3, 60)
        expected += "".join(f" {text(p)}" for p in phrases)
        audio = speech([*phrases, []], rng.uniform(0.8, 9))
        seconds += len(audio) / 16_000
        events = updates_of(play(stream, reader, [audio], finish=False))
        committed += "".join(f" {e.committed.strip()}" for e in events if e.committed)
        parts = stream.segmenter
        kept = sum(p.audio.mel.samples for p in stream._buffers) + len(parts._padding)
        heard = sum(h.logs.shape[1] for h in parts.history._segments) * 160
        sizes.append(kept + heard + len(parts.pending) + len(parts.history.tokens))
        reader.windows[:-1], reader.texts[:-1] = [], []
        if not turns and rng.random() < 0.2:
            stream.commit()
    rest = updates_of(play(stream, reader, []))
    committed += "".join(f" {e.committed.strip()}" for e in rest if e.committed)
    assert committed == expected
    assert max(sizes) < (20 if turns else 40) * 16_000


def test_samples_that_wait_are_not_copied_for_each_block() -> None:
    """Once for each block, ten minutes took 24 s; a short rest does not keep a long piece."""
    parts = begin(PLAIN)[0].segmenter
    parts.pending = piece = np.arange(10, dtype=np.float32)
    assert parts.take(4).tolist() == [0, 1, 2, 3] and len(parts.pending) == 6
    assert np.shares_memory(parts.pending, piece)
    assert parts.take(4).tolist() == [4, 5, 6, 7] and len(parts.pending) == 2
    assert not np.shares_memory(parts.pending, piece)
    assert parts.take(2).tolist() == [8, 9] and not len(parts.pending)


# -- what a stream is told while it runs ---------------------------------------------------------


def test_without_turns_only_commit_ends_an_utterance() -> None:
    stream, reader = begin()
    events = play(stream, reader, [QUIET], False)
    stream.change(replace(PLAIN, turns=False))  # from now on
    for _ in range(2):  # silence alone is an utterance, as the caller says so; no audio is none
        stream.commit()
    events += play(stream, reader, [speech([[1, 2], [3, 4, 5]], 0.9), QUIET, QUIET], False)
    assert len(ends_of(events)) == 1, "that of silence"
    assert "".join(e.committed for e in updates_of(events)).startswith(text([1, 2, 3]))
    stream.commit()
    events += play(stream, reader, [speech([[6]], 0.1), QUIET], False)
    stream.change(PLAIN)  # the pause that is here ends it
    events += play(stream, reader, [speech([[7]], 0.1)])
    assert texts(events) == ["", text([1, 2, 3, 4, 5]), text([6]), text([7])]
    assert [len(e.segments) for e in ends_of(events)] == [1, 1, 1, 1], "pauses do not cut"


@pytest.mark.parametrize("running", [False, True])
def test_clear_forgets_what_is_not_committed(running: bool) -> None:
    stream, reader = begin()
    audio = speech([list(range(8))], 0.1)
    events = play(stream, reader, [audio], finish=False)
    committed = "".join(e.committed for e in updates_of(events))
    assert committed and committed != text(range(8))
    if running:
        for digit in (8, 9, 9):
            stream.append(tone(digit))
        buffer, request = stream.next_window()
    stream.clear()
    assert stream.backlog == 0
    if running:
        assert stream.accept(buffer, reader.answer(request)) is None
    stream.clear()
    events += stream.events() + play(stream, reader, [speech([[7, 7]], 0.6)])
    assert texts(events) == [committed, text([7, 7])]
    assert stream.ended


def test_commits_and_other_options_from_the_next_utterance_on() -> None:
    stream, reader = begin()
    events = play(stream, reader, [tone(3), tone(1)], finish=False)
    stream.change(replace(PLAIN, words=True))
    with pytest.raises(OptionError, match="window"):
        stream.change(replace(PLAIN, window=5.0))
    for _ in range(2):  # nothing goes on at the second
        stream.commit()
    events += play(stream, reader, [tone(4), tone(1)])
    assert texts(events) == [text([3, 1]), text([4, 1])]
    assert [bool(e.segments[0].words) for e in ends_of(events)] == [False, True]


def test_the_language_of_each_utterance() -> None:
    stream, reader = begin(dims=MULTILINGUAL)
    events = play(stream, reader, [speech([list(range(6)), [1, 2]], 0.8)])
    assert [e.language for e in ends_of(events)] == ["de", "de"]
    detections = [w for w in reader.windows if w.rules is None]
    decoded = [w for w in reader.windows if w.rules is not None]
    assert all(w.mel is not None for w in detections) and 2 <= len(detections) < len(decoded)
    assert all("<|de|>" in reader.tokenizer.decode(list(w.prompt)) for w in decoded)
    german, _ = begin(replace(PLAIN, language="German"), MULTILINGUAL)
    (ended,) = ends_of(play(german, reader, [speech([[1, 2]], 0.8)]))
    assert ended.language == "de" and reader.windows[-1].rules is not None


def test_an_utterance_is_decoded_after_those_before_it_in_its_language() -> None:
    stream, reader = begin(dims=MULTILINGUAL)
    answer = reader.answer

    def french_from_seven(request: requests.Request) -> requests.Answer:
        answered = answer(request)
        if isinstance(answered, requests.Languages) and {"seven", "nine"} & {*heard(request)[:1]}:
            return requests.Languages({code: float(code == "fr") for code in answered.probs})
        return answered

    def heard(request: requests.Request) -> list[str]:
        assert isinstance(request, requests.Window) and request.mel is not None
        return [WORDS[digit] for digit, _ in read(request.mel)]

    reader.answer = french_from_seven  # type: ignore[method-assign]
    phrases = [[1, 2], [3, 4], [7, 8], [9, 7]]
    events = play(stream, reader, [speech([*phrases, []], 0.8)])
    assert [e.language for e in ends_of(events)] == ["de", "de", "fr", "fr"]
    assert [e.text for e in ends_of(events)] == list(map(text, phrases))
    detections = [heard(w) for w in reader.windows if w.rules is None]
    assert {d[0] for d in detections if d} == {"one", "three", "seven", "nine"}  # never with it
    decoded = {" ".join(each) for each in reader.texts}
    assert {"one two three four", "seven eight", "seven eight nine seven"} <= decoded
    assert not any("four seven" in each for each in decoded)


@pytest.mark.parametrize(
    ("audio_window", "longest"), [("near", 2000), ("full", 3000), ("auto", 300)]
)
def test_what_was_said_before_makes_no_window_longer(audio_window: str, longest: int) -> None:
    dims, settings = replace(DIMS, n_audio_ctx=1500), GenerationSettings(audio_window=audio_window)
    stream, reader = Stream(facts_of(dims, settings=settings), PLAIN), Reader(vocabulary(dims))
    phrases = talk(random.Random(6), 16, 4)
    assert texts(play(stream, reader, [speech(phrases, 0.8)])) == list(map(text, phrases))
    assert max(w.mel.shape[1] for w in reader.windows if w.mel is not None) == longest
    words = max(map(len, reader.texts))
    assert words == 4 if audio_window == "auto" else 12 < words < 30  # in 18 s


def test_prompt_and_hot_words() -> None:
    stream, reader = begin(replace(PLAIN, prompt="Numbers.", hotwords="seven"))
    play(stream, reader, [speech([[1, 2], [3, 4]], 0.8)])
    first, last = (reader.tokenizer.decode(list(reader.windows[i].prompt)) for i in (0, -1))
    assert first == "<|startofprev|> seven Numbers.<|startoftranscript|><|notimestamps|>"
    assert last.startswith("<|startofprev|> seven Numbers.<|startoftranscript|>")
    assert last.endswith("<|notimestamps|> one two")  # with its audio
    alone, reader = begin(replace(PLAIN, condition_on_previous_text=False))
    play(alone, reader, [speech([[1, 2], [3, 4]], 0.8)])
    assert {w.sot_index for w in reader.windows} == {0}, "nothing before the utterance"


def test_a_loop_in_which_no_word_has_a_time_fits_into_the_context() -> None:
    stream, reader = begin(dims=replace(DIMS, n_text_ctx=48))
    rng, lengths = random.Random(0), list[int]()

    def loops(request: requests.Request) -> requests.Answer:
        if isinstance(request, requests.Align):
            size = len(request.before) + len(request.text) + 1
            nowhere = torch.zeros(1, size, 500)
            return requests.Alignment(request.text, len(request.before), nowhere, (0.9,) * size)
        assert isinstance(request, requests.Window) and request.rules is not None
        lengths.append(request.rules.sample_len)
        return requests.Decoded(
            tuple(rng.choices(reader.tokens, k=5)), -0.1, 0.0, 0.0, 0, (-0.1,) * 6
        )

    reader.answer = loops  # type: ignore[method-assign]
    (ended,) = ends_of(play(stream, reader, [speech([[*range(10)] * 9], 0.1)]))
    assert len(ended.segments) > 1 and min(lengths) > 0


def test_marks_alone_are_no_text() -> None:
    stream, reader = begin()
    answer, dots = reader.answer, tuple(reader.tokenizer.encode(" ... ?"))

    def marks(request: requests.Request) -> requests.Answer:
        answered = answer(request)
        alone = isinstance(answered, requests.Decoded)
        return replace(answered, tokens=dots, logprobs=(-0.1,) * 9) if alone else answered

    reader.answer = marks  # type: ignore[method-assign]
    events = play(stream, reader, [speech([[1, 2]], 0.8)])
    assert [e.text for e in ends_of(events)] == [""] and len(reader.windows) > 1
    assert not any(e.committed or e.tentative for e in updates_of(events))


def test_unsure_text_is_not_committed_before_the_end() -> None:
    stream, reader = begin()
    reader.logprob = -2.0
    events = play(stream, reader, [speech([[1, 2, 3, 4, 5, 6]], 0.2)])
    committed = [bool(e.committed) for e in updates_of(events)]
    assert committed == [False] * (len(committed) - 1) + [True]
    (ended,) = ends_of(events)
    assert ended.segments[0].temperature == 1.0  # the last of the attempts in the slot
    stream, reader = begin()
    reader.logprob = float("nan")
    with pytest.raises(SlimWhisperError, match="NaN"):
        play(stream, reader, [speech([[1, 2, 3]], 0.1)])


def test_bad_input() -> None:
    stream, reader = begin()
    stream.append(np.zeros(0, np.float32))
    for bad in ([0.0, np.nan], [np.inf], np.zeros((2, 8)), np.zeros(8, np.int16)):
        with pytest.raises(AudioError, match="float32"):
            stream.append(bad)
    with pytest.raises(AudioError, match="32768"):
        stream.append(np.full(8, -2e4))
    assert texts(play(stream, reader, [speech([[1]], 0.1)])) == ["one"]
    with pytest.raises(OptionError, match="finished"):
        stream.append(ONE_SAMPLE)
    stream.finish()
    assert stream.ended and stream.due is None
    for change in ({"turns": 1}, {"window": 31.0}, {"words": "yes"}, {"language": "xx"}):
        with pytest.raises(OptionError, match=next(iter(change))):
            begin(replace(PLAIN, **change))


# When updates are due, by a made clock; which run side by side; how long they take


LONG = "The quick brown fox jumps over a lazy dog while five wizards judge my vow of black quartz."


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stream_module, "time", clock)
    return clock


def play_by_clock(stream: Stream, clock: Clock, audio: np.ndarray) -> Iterator[float]:
    """Frame by frame, each as the clock says; yields the time."""
    for start in range(0, len(audio), FRAME):
        clock.now = (start + FRAME) / SAMPLE_RATE
        stream.append(audio[start : start + FRAME])
        yield clock.now


def test_an_utterance_ends_without_an_update_of_its_own(clock: Clock) -> None:
    """The update that was made as speech seemed to be over is the last, and knew all of it. Both
    the silence and the end are noticed within two frames.
    """
    stream, reader = begin()
    audio = speech([[3, 1, 4], []], 1.5)  # 1.5 s of silence, 1.2 s of speech, 1.5 s of silence
    events: list[LiveEvent] = []
    update_times, end = [], 0.0
    for now in play_by_clock(stream, clock, audio):
        while stream.due is not None:
            update_times.append(now)
            update(stream, reader)
        events += stream.events()
        end = end or any(isinstance(e, UtteranceEnded) for e in events) * now
    (stop,) = (e for e in events if isinstance(e, SpeechStopped))
    (ended,) = (e for e in events if isinstance(e, UtteranceEnded))
    over = 1.5 + 1.2 - 0.06  # the end of the speech
    assert len(update_times) == 2 and over + 0.5 <= stop.end
    late = [update_times[-1] - (over + SHORT_SILENCE / SAMPLE_RATE), end - (over + 0.5)]
    assert 0 <= min(late) and max(late) < 2 * FRAME / SAMPLE_RATE
    assert ended.text == text([3, 1, 4]) == " ".join(reader.texts[-1])
    assert events.index(ended) - events.index(stop) == 2, "its text and its end come at once"


def test_a_short_silence_ends_nothing_and_a_long_one_needs_no_update() -> None:
    """However long it is until it ends the utterance."""
    stream, reader = begin()
    events = play(stream, reader, [speech([[1, 2], [3, 4]], 0.3), speech([[]], 0.9)])
    assert texts(events) == [text([1, 2, 3, 4])] and reader.texts[-1] == texts(events)[0].split()
    stream, reader = begin(replace(PLAIN, silence_duration_ms=10_000))
    play(stream, reader, [speech([[1, 2, 3], []], 0.5)], finish=False)
    count = len(reader.windows)
    events = play(stream, reader, [np.zeros(9 * SAMPLE_RATE, np.float32)], finish=False)
    assert len(reader.windows) <= count + 1
    assert not any(isinstance(e, UtteranceEnded) for e in events)


def test_what_may_wait(clock: Clock) -> None:
    """Updates while somebody speaks; not those in a hush, which may be the last, nor the last."""
    stream, reader = begin()
    reader.logprob = -2.0  # no text is sure, so the end needs an update
    deadlines = []
    for now in play_by_clock(stream, clock, speech([[1, 2, 3, 4, 5, 6], []], 1.5)):
        if stream.due is not None:
            deadlines.append((now, stream.due))
            update(stream, reader)
    (first, second), (again, third), (silent, end), (closed, at) = deadlines
    assert second == pytest.approx(first + 2 * PLAIN.update - PLAIN.first)
    assert third == pytest.approx(again + PLAIN.update)
    assert end == silent and at == closed > silent


def test_what_is_over_is_decoded_side_by_side(clock: Clock) -> None:
    """In whichever order the answers come, the events are in order."""
    phrases = [[n + 2, n + 1, n] for n in range(MAX_PARALLEL_UPDATES + 2)]
    stream, reader = begin()
    stream.append(speech([*phrases, []], 0.8))
    clock.now = 5.0
    events, most = list[LiveEvent](), 0
    while stream.due is not None:
        started = []
        while stream.due is not None:
            assert stream.due == 0.0, "since the utterance ended"
            buffer, window = stream.next_window()
            started.append((buffer, reader.answer(window)))
        most = max(most, len(started))
        for buffer, answer in reversed(started):
            assert stream.accept(buffer, answer) is None
        events += stream.events()
    assert texts(events) == [text(p) for p in phrases]
    assert most == MAX_PARALLEL_UPDATES and stream.updates == len(phrases) == len(reader.windows)
    assert stream.backlog == 0


def test_a_language_is_found_before_others_depend_on_it() -> None:
    """Passages of one utterance come one after the other, unless the language is given."""
    for language, parallel in ((None, 1), ("en", 3)):
        stream, _ = begin(replace(PLAIN, turns=False, language=language), MULTILINGUAL)
        stream.append(speech([[1, 2], [3, 4], [5, 6], []], 9.0))  # silence fills their windows
        started = 0
        while stream.due is not None:
            stream.next_window()
            started += 1
        assert started == parallel


class Looping(Reader):
    """Repeats itself in its second window, until it is cut off."""

    def answer(self, request: Request) -> Answer:
        answer = super().answer(request)
        if isinstance(request, Window) and isinstance(answer, Decoded) and len(self.windows) == 2:
            assert request.rules is not None
            loop = (*answer.tokens, *self.tokens * 50)[: request.rules.sample_len]
            return replace(answer, tokens=loop, logprobs=(-0.1,) * len(loop))
        return answer


def test_a_loop_ends_soon_and_is_not_committed() -> None:
    stream, reader = begin()
    looping, phrase = Looping(reader.vocabulary), [3, 1, 4, 1, 5, 9, 2, 6]
    events = play(stream, looping, [speech([phrase, []], 0.8)])
    assert texts(events) == [text(phrase)]
    second = [e for e in events if isinstance(e, TextUpdate)][1]
    assert EXTRA_TOKENS < len(second.tentative.split()) <= 3 * EXTRA_TOKENS
    lengths = [w.rules.sample_len for w in looping.windows if w.rules is not None]
    assert not second.committed and max(lengths) < 6 * EXTRA_TOKENS < 224


def test_a_text_that_is_longer_than_usual_is_decoded_to_its_end() -> None:
    """The last one: it goes on from where it was cut off, with the room that a window has."""
    stream, reader = begin(replace(PLAIN, first=5.0, update=5.0))
    stream.append(speech([[1, 2]], 0.8))
    stream.finish()
    buffer, window = stream.next_window()
    assert window.rules is not None and window.rules.sample_len < 2 * EXTRA_TOKENS
    reader.answer(window)
    tokens = tuple(reader.tokenizer.encode(f" {LONG}"))
    part = tokens[: window.rules.sample_len]
    logprobs = (-0.1,) * len(tokens)
    cut = Decoded(part, -0.1, 0.0, 0.0, 0, logprobs[: len(part)])
    more = stream.accept(buffer, cut)
    assert isinstance(more, Window) and more.mel is None and more.draft == part
    assert more.rules is not None and more.rules.sample_len == 224
    assert more.attempt == Attempt(0.0, more.attempt.seed)
    assert stream.accept(buffer, replace(cut, tokens=tokens, logprobs=(-0.1, *logprobs))) is None
    (ended,) = (e for e in stream.events() if isinstance(e, UtteranceEnded))
    assert ended.text == LONG


def test_a_copy_of_the_prompt_is_decoded_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is heard first, the model says again how the prompt ends."""
    stream, reader = begin()
    said = reader._decoded

    def copied(window: Window, temperature: float) -> Decoded:
        words = () if window.draft else tuple(t for t in window.prompt if t in reader.tokens)[-2:]
        answer = said(window, temperature)
        return replace(answer, tokens=words, logprobs=(-0.1,) * 3) if words else answer

    monkeypatch.setattr(reader, "_decoded", copied)
    phrases = [[1, 2, 3], [4, 5], [4, 5], [6, 7, 8]]
    assert texts(play(stream, reader, [speech([*phrases, []], 0.8)])) == list(map(text, phrases))
