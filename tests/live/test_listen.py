"""`model.live` with the bundled model: iterators of all kinds, shorter windows, words, drafts."""

import asyncio
import math
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slimwhisper
from slimwhisper import voice_activity as vad
from slimwhisper.api import SlimWhisper
from slimwhisper.errors import AudioError, DependencyError, OptionError
from slimwhisper.live.speech_buffer import UpdateDecoding
from slimwhisper.live.types import LiveEvent, SpeechStarted, TextUpdate, UtteranceEnded
from slimwhisper.model.encoder import Encoder
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.spoken import EXPECTED, SAMPLES

NAME = "phone-number.wav"
TRUTH = " ".join(s["text"] for s in EXPECTED[NAME]["segments"])
SHORT = {"window": 10.0, "update": 1.5}


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    return slimwhisper.load_audio(SAMPLES / NAME)


def spoken_text(events: Sequence[LiveEvent]) -> str:
    return " ".join(e.text for e in events if isinstance(e, UtteranceEnded))


def texts_of(events: Sequence[LiveEvent]) -> list[Any]:
    """The events, with tokens in place of segments: log-probabilities may differ in the end."""
    return [
        (e.text, [s.tokens for s in e.segments]) if isinstance(e, UtteranceEnded) else e
        for e in events
    ]


@pytest.mark.slow
@pytest.mark.parametrize("after_others", [False, True])
def test_when_words_are_spoken(digits_path: Path, audio: np.ndarray, after_others: bool) -> None:
    """In the whole window, where the offline times are the reference; except that offline the first
    word begins with the window, and that after others `digits` attends to the end too early.
    """
    model = slimwhisper.load_model(digits_path, device="cpu", audio_window="full")
    offline = model.transcribe(audio, word_timestamps=True)
    expected = [w for s in offline["segments"] for w in s["words"]]
    events = list(model.live(iter([audio]), words=True, condition_on_previous_text=after_others))
    assert spoken_text(events) == TRUTH
    committed = [w for e in events if isinstance(e, TextUpdate) for w in e.words]
    ended = [s for e in events if isinstance(e, UtteranceEnded) for s in e.segments]
    for words in (committed, [w for s in ended for w in s.words or ()]):
        assert [w.word.strip() for w in words] == [w["word"].strip() for w in expected]
        for word, reference in zip(words, expected, strict=True):
            assert reference is expected[0] or abs(word.start - reference["start"]) < 0.3
            assert after_others or abs(word.end - reference["end"]) < 0.3
        assert abs(words[0].start - EXPECTED[NAME]["segments"][0]["start"]) < 0.3


def test_drafts_save_steps_and_change_nothing(
    digits: SlimWhisper, audio: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tentative, as the draft of the next update."""
    decoder, window, steps = type(digits.network.decoder), UpdateDecoding._window, list[int]()
    step = decoder.step
    monkeypatch.setattr(decoder, "step", lambda self, *a: (steps.append(1), step(self, *a))[1])
    drafted = texts_of(list(digits.live([audio[:44_000]], **SHORT)))
    made = len(steps)
    monkeypatch.setattr(UpdateDecoding, "_window", lambda *a: replace(window(*a), draft=()))
    assert texts_of(list(digits.live([audio[:44_000]], **SHORT))) == drafted
    assert made < len(steps) - made


def test_updates_as_long_as_their_audio(
    digits_path: Path, audio: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = slimwhisper.load_model(digits_path, device="cpu", audio_window="auto")
    seconds, encode = list[float](), model.network.encoder
    watched = lambda mel: (seconds.append(mel.shape[2] / 100), encode(mel))[1]  # noqa: E731
    monkeypatch.setattr(model.network, "encoder", watched)
    events = list(model.live(np.split(audio[:48_000], 6), update=0.5))
    assert len(seconds) >= sum(isinstance(e, TextUpdate) for e in events) > 2
    assert all(s == math.ceil(s) for s in seconds) and sorted(set(seconds)) == [1, 2, 3]


def test_an_iterator_is_read_as_the_events_are(digits: SlimWhisper, audio: np.ndarray) -> None:
    starts = []

    def pieces() -> Iterator[np.ndarray]:
        for start in range(0, len(audio), 3_200):
            starts.append(start)
            yield audio[start : start + 3_200]

    events = digits.live(pieces(), **SHORT)
    assert not starts
    first = next(events)
    assert isinstance(first, SpeechStarted) and 0 < len(starts) < 10
    assert spoken_text([first, *events]) == TRUTH


def test_an_asynchronous_source(digits: SlimWhisper, audio: np.ndarray) -> None:
    """To its end, to the consumer's, and to its own error: nothing is left running."""
    closed = []

    async def microphone(times: int, last: Exception | None = None) -> AsyncIterator[np.ndarray]:
        try:
            for start in [*range(0, len(audio), 8_000)] * times:
                yield audio[start : start + 8_000]
                await asyncio.sleep(0)
            if last is not None:
                raise last
            yield np.full(100, np.nan, np.float32) if times == 0 else audio[:0]
        finally:
            closed.append(times)

    async def listen(source: AsyncIterator[np.ndarray], most: int = 1000) -> list[LiveEvent]:
        found = []
        events = digits.live(source, **SHORT)
        async for event in events:
            found.append(event)
            if len(found) == most:
                await events.aclose()
        return found

    assert spoken_text(asyncio.run(listen(microphone(1)))) == TRUTH
    assert isinstance(asyncio.run(listen(microphone(1000), most=1))[0], SpeechStarted)
    with pytest.raises(OSError, match="unplugged"):
        asyncio.run(listen(microphone(0, OSError("unplugged"))))
    with pytest.raises(AudioError, match="infinite"):
        asyncio.run(listen(microphone(0)))
    assert closed == [1, 1000, 0, 0]
    assert not [t for t in threading.enumerate() if t.name == "slimwhisper-live"]
    assert spoken_text(list(digits.live([audio[:44_000]], **SHORT))) == "five five five"  # sound


def test_a_stream_that_others_feed(digits: SlimWhisper, audio: np.ndarray) -> None:
    live = digits.live(turns=False, **SHORT)
    live.append(audio[40_000:80_000])
    live.clear()

    def feed() -> None:
        for piece in np.array_split(audio, 30):
            live.append(piece)
        live.commit()
        live.finish()

    feeder = threading.Thread(target=feed)
    feeder.start()
    events = list(live)
    feeder.join()
    assert spoken_text(events).strip() == TRUTH and live.backlog == 0
    with pytest.raises(OptionError, match="finished"):
        live.append(audio)
    with pytest.raises(OptionError, match="once"):
        next(iter(live))
    live = digits.live()
    live.append(audio)
    assert live._commands.qsize() > 5, "others get their turns between the seconds of a long piece"
    live.close()
    assert list(live) == []


def test_what_is_refused(digits: SlimWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in (b"ab", np.zeros(4, np.int16), np.zeros((1, 4), np.float32)):
        with pytest.raises(AudioError, match="float32"):
            list(digits.live([bad]))
    assert list(digits.live([])) == []
    with pytest.raises(OptionError, match="did you mean 'update'"):
        digits.live([], updates=1)
    vad._shared_network.cache_clear()
    monkeypatch.setitem(sys.modules, "silero_vad", None)
    with pytest.raises(DependencyError, match="pip install silero-vad"):
        digits.live([])


def test_a_shorter_window(digits: SlimWhisper) -> None:
    """It shares the weights, and is what a model of this length computes."""
    short = digits.shortened(10)
    assert short is digits.shortened(10.0) and digits.shortened(30) is digits
    shortened, whole = short.network.encoder, digits.network.encoder
    assert shortened.positions.data_ptr() == whole.positions.data_ptr()
    assert shortened.blocks is whole.blocks and short.network.decoder is digits.network.decoder
    dims, cpu, name = tiny_dims(), torch.device("cpu"), "encoder.positional_embedding"
    state, less = random_state(dims, seed=0), replace(dims, n_audio_ctx=500)
    fresh = Encoder({**state, name: state[name][:500].clone()}, less, cpu, torch.float32)
    shorter = Encoder(state, dims, cpu, torch.float32).shortened(less)
    mel = torch.randn(1, dims.n_mels, 1000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shorter(mel), fresh(mel))


@pytest.mark.parametrize("fed", [False, True])
def test_beside_other_calls(digits: SlimWhisper, audio: np.ndarray, fed: bool) -> None:
    """Whoever makes the steps, no event is lost, and the stream ends."""
    audio = audio[:80_000]
    alone = list(digits.live([audio], language="en"))
    live = digits.live(language="en")
    live.append(audio)
    live.finish()
    events = []
    for event in live if fed else digits.live([audio], language="en"):
        events.append(event)
        if len(events) % 3 == 1:
            digits.transcribe(audio[:16_000], language="en", temperature=0)
    assert spoken_text(events) == spoken_text(alone)
    if not fed:  # else updates are merged while a call runs
        assert [type(event) for event in events] == [type(event) for event in alone]


def test_recordings_beside_a_stream_are_read_as_slots_come_free(
    digits: SlimWhisper, audio: np.ndarray
) -> None:
    stream = digits.live([audio, audio], language="en")
    next(stream)
    taken = count()
    sources = (audio[:16_000] for _ in zip(range(40), taken, strict=False))
    results = digits.transcribe_many(sources, batch_size=4, temperature=0, language="en")
    next(results)
    assert next(taken) < 20
    results.close()  # type: ignore[attr-defined]
    stream.close()  # type: ignore[attr-defined]
    assert not digits.transcriber.used
