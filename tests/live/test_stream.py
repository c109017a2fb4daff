"""Streams over words that are tones: what is committed, when, and what is left of it."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from slimwhisper.live.segmenter import SampleQueue
from slimwhisper.live.types import TextUpdate, UtteranceEnded
from tests.support.tones import (
    ONE_SAMPLE,
    PLAIN,
    begin,
    play,
    speech,
    text,
    texts,
    update,
)

pytestmark = pytest.mark.usefixtures("loudness")


def talk(rng: random.Random, phrases: int, longest: int) -> list[list[int]]:
    return [rng.choices(range(10), k=rng.randint(2, longest)) for _ in range(phrases)]


@pytest.mark.parametrize("policy", ["agreement", "alignatt"])
@pytest.mark.parametrize("words", [False, True])
def test_all_that_is_said_is_committed_once(policy: str, words: bool) -> None:
    """Phrases of up to 24 s in windows of 10 s, so buffers are cut between words."""
    phrases = [*talk(random.Random(5), 2, 12), list(range(10)) * 6]
    stream, reader = begin(replace(PLAIN, policy=policy, words=words))
    events = play(stream, reader, [speech(phrases, 0.9), speech([[]], 0.9)])
    assert texts(events) == [text(p) for p in phrases]
    assert stream.ended and stream.merged == 0 and stream.backlog == 0
    ended = [e for e in events if isinstance(e, UtteranceEnded)]
    assert len(ended[0].segments) == 1 and len(ended[-1].segments) > 2
    assert any("<|startofprev|>" in reader.tokenizer.decode(list(w.prompt)) for w in reader.windows)
    timed = [w for e in events if isinstance(e, TextUpdate) for w in e.words]
    assert "".join(w.word for w in timed) == ("".join(f" {text(p)}" for p in phrases) * words)
    decoded = [e.heard for e in events if isinstance(e, TextUpdate) and e.utterance == 2][:-2]
    # never the same audio twice, whose text would agree with itself
    assert len(decoded) > 15 and all(b - a > 0.9 for a, b in pairwise(decoded))
    if words:
        starts = iter(timed)
        at = 0.0
        for phrase in phrases:
            at += 0.9
            for _ in phrase:
                assert abs(next(starts).start - at) < 0.2
                at += 0.4


def test_it_does_not_matter_how_the_audio_is_split() -> None:
    rng = random.Random(1)
    audio = np.concatenate([speech(talk(rng, 2, 20), 0.8), *[ONE_SAMPLE] * 700])
    expected = play(*begin(), [audio])
    assert len(texts(expected)) == 2
    for _ in range(2):
        points = sorted(rng.choices(range(len(audio)), k=60))
        pieces = [audio[a:b] for a, b in pairwise([0, *points, len(audio)])]
        pieces[20:20] = [audio[:0], audio[:0]]
        assert play(*begin(), pieces) == expected
    short = speech([[3, 1, 4]], 0.05)
    assert play(*begin(), np.split(short, len(short))) == play(*begin(), [short])


def test_agreement_is_what_two_updates_begin_with() -> None:
    """By the plain definition, over the whole texts of all updates of an utterance."""
    phrase = [3, 1, 4, 1, 5, 9, 2, 6]
    stream, reader = begin(replace(PLAIN, update=0.7))
    events = play(stream, reader, [speech([phrase], 0.3), speech([[]], 0.4)])
    updates = [e for e in events if isinstance(e, TextUpdate)]
    # the last update was made as speech seemed to be over; its end commits the same, undecoded
    assert len(reader.texts) == len(updates) - 1 >= 4
    assert updates[-1].heard == updates[-2].heard and not updates[-1].tentative
    committed: list[str] = []
    before: list[str] = []
    for event, now in zip(updates[:-1], reader.texts, strict=False):
        same = 0
        while same < min(len(now), len(before)) and now[same] == before[same]:
            same += 1
        committed += now[len(committed) : same]
        assert now[: len(committed)] == committed
        assert event.tentative.split() == now[len(committed) :]
        before = now
        so_far = "".join(e.committed for e in updates[: updates.index(event) + 1])
        assert so_far.split() == committed
    assert texts(events) == [text(phrase)]


def test_the_tentative_text_is_the_next_draft() -> None:
    stream, reader = begin()
    events = play(stream, reader, [speech([list(range(8))], 0.3)])
    updates = [e for e in events if isinstance(e, TextUpdate)]
    for event, window in zip(updates, reader.windows[1:], strict=False):
        assert reader.tokenizer.decode(list(window.draft)).strip() == event.tentative.strip()
        assert window.rules is not None and window.attempt.temperature == 0
    assert any(w.draft for w in reader.windows)


def test_an_update_that_is_late_takes_the_newest_audio() -> None:
    stream, reader = begin()
    audio = speech([list(range(10)) * 2], 0.1)
    stream.append(audio[:16_000])
    buffer, request = stream.request()
    assert stream.due is None
    for start in range(16_000, 16_000 * 6, 1600):
        stream.append(audio[start : start + 1600])
    assert stream.due is None and stream.backlog == pytest.approx(5, abs=0.3)
    assert stream.accept(buffer, reader.answer(request)) is None
    assert stream.due is not None
    update(stream, reader)
    assert stream.merged == 3 and stream.updates == 2 and stream.backlog < 0.2
    assert stream.due is None
    stream.append(audio[16_000 * 6 :])
    assert texts([*stream.events(), *play(stream, reader, [])]) == [text([*range(10)] * 2)]


@pytest.mark.slow
@pytest.mark.parametrize("turns", [True, False])
def test_an_hour_stays_flat(turns: bool) -> None:
    """Faster than real time; what is kept is counted: samples, frames, tokens, passages."""
    rng = random.Random(2)
    stream, reader = begin(replace(PLAIN, turns=turns, update=3.0))
    sizes, expected, committed, seconds = [], "", "", 0.0
    while seconds < 3600:
        phrases = talk(rng, 3, 60)
        expected += "".join(f" {text(p)}" for p in phrases)
        audio = speech([*phrases, []], rng.uniform(0.8, 9))
        seconds += len(audio) / 16_000
        events = play(stream, reader, [audio], finish=False)
        committed += "".join(
            f" {e.committed.strip()}" for e in events if isinstance(e, TextUpdate) and e.committed
        )
        buffers = stream._buffers
        sizes.append(
            sum(p.audio.mel.samples for p in buffers)
            + len(stream.segmenter._padding)
            + len(stream.segmenter.pending)
            + len(stream.segmenter.context.history)
        )
        reader.windows[:-1], reader.texts[:-1] = [], []
        if not turns and rng.random() < 0.2:
            stream.commit()
    assert committed == expected
    assert max(sizes) < 10 * 16_000


def test_samples_that_wait_are_not_copied_for_each_block() -> None:
    """Once for each block, ten minutes took 24 s; a short rest does not keep a long piece."""
    queue, piece = SampleQueue(), np.arange(10, dtype=np.float32)
    queue.append(piece[:1])
    queue.append(piece[1:])
    assert queue.take(4).tolist() == [0, 1, 2, 3] and len(queue) == 6
    assert np.shares_memory(queue._pieces[0], piece)
    assert queue.take(4).tolist() == [4, 5, 6, 7] and len(queue) == 2
    assert not np.shares_memory(queue._pieces[0], piece)
    assert queue.take(2).tolist() == [8, 9] and not len(queue)
