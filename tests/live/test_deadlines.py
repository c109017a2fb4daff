"""When a stream's updates are due, by a made clock; which run side by side; how long they take."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from slimwhisper.engine.requests import Answer, Attempt, Decoded, Request, Window
from slimwhisper.live import stream as stream_module
from slimwhisper.live.setup import EXTRA_TOKENS
from slimwhisper.live.speech_buffer import SHORT_SILENCE
from slimwhisper.live.stream import MAX_PARALLEL_UPDATES, Stream
from slimwhisper.live.types import LiveEvent, SpeechStopped, TextUpdate, UtteranceEnded
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import FRAME
from tests.support.tones import (
    MULTILINGUAL,
    PLAIN,
    Reader,
    begin,
    play,
    speech,
    text,
    texts,
    update,
)

LONG = "The quick brown fox jumps over a lazy dog while five wizards judge my vow of black quartz."


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, loudness: None) -> Clock:
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
