"""What a stream is told while it runs: commit, clear, other options; and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.live.stream import Stream
from slimwhisper.live.types import SpeechStarted, TextUpdate, UtteranceEnded
from tests.support.tones import (
    MULTILINGUAL,
    ONE_SAMPLE,
    PLAIN,
    Reader,
    begin,
    play,
    speech,
    text,
    texts,
    tone,
    vocabulary,
)

pytestmark = pytest.mark.usefixtures("loudness")


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
        stream, reader, [speech([[1, 2], [3, 4, 5]], 0.9), np.zeros(32_000, np.float32)], False
    )
    assert [type(e) for e in events if not isinstance(e, TextUpdate)] == [SpeechStarted]
    assert "".join(e.committed for e in events if isinstance(e, TextUpdate)) == text(
        [1, 2, 3, 4, 5]
    )
    count = len(reader.windows)
    stream.commit()  # all is committed: nothing to decode
    events += play(stream, reader, [np.zeros(16_000, np.float32)], False)
    assert len(reader.windows) == count
    stream.commit()  # silence alone is an utterance, as the caller says so
    stream.commit()  # no audio is none
    events += play(stream, reader, [speech([[7]], 0.1)])
    assert texts(events) == [text([1, 2, 3, 4, 5]), "", text([7])]
    ended = [e for e in events if isinstance(e, UtteranceEnded)]
    assert [len(e.segments) for e in ended] == [2, 1, 1]


@pytest.mark.parametrize("running", [False, True])
def test_clear_forgets_what_is_not_committed(running: bool) -> None:
    stream, reader = begin()
    audio = speech([list(range(8))], 0.1)
    events = play(stream, reader, [audio], finish=False)
    committed = "".join(e.committed for e in events if isinstance(e, TextUpdate))
    assert committed and committed != text(range(8))
    if running:
        stream.append(tone(8))
        stream.append(tone(9))
        stream.append(tone(9))
        buffer, request = stream.request()
    stream.clear()
    assert stream.backlog == 0
    if running:
        assert stream.accept(buffer, reader.answer(request)) is None
    stream.clear()
    events += stream.events() + play(stream, reader, [speech([[7, 7]], 0.6)])
    assert texts(events) == [committed, text([7, 7])]
    assert stream.ended


def test_other_options_from_the_next_utterance_on() -> None:
    stream, reader = begin()
    events = play(stream, reader, [speech([[1, 2]], 0.1)], finish=False)
    stream.change(replace(PLAIN, words=True))
    with pytest.raises(OptionError, match="window"):
        stream.change(replace(PLAIN, window=5.0))
    events += play(stream, reader, [speech([[], [3, 4]], 0.8)])
    assert texts(events) == [text([1, 2]), text([3, 4])]
    words = [bool(e.segments[0].words) for e in events if isinstance(e, UtteranceEnded)]
    assert words == [False, True]


def test_the_language_of_each_utterance() -> None:
    multilingual = vocabulary(MULTILINGUAL)
    stream, reader = Stream(MULTILINGUAL, multilingual, PLAIN), Reader(multilingual)
    events = play(stream, reader, [speech([list(range(6)), [1, 2]], 0.8)])
    assert [e.language for e in events if isinstance(e, UtteranceEnded)] == ["de", "de"]
    detections = [w for w in reader.windows if w.rules is None]
    decoded = [w for w in reader.windows if w.rules is not None]
    assert all(w.mel is not None for w in detections) and 2 <= len(detections) < len(decoded)
    assert all("<|de|>" in reader.tokenizer.decode(list(w.prompt)) for w in decoded)
    german = Stream(MULTILINGUAL, multilingual, replace(PLAIN, language="German"))
    (ended,) = (
        e for e in play(german, reader, [speech([[1, 2]], 0.8)]) if isinstance(e, UtteranceEnded)
    )
    assert ended.language == "de" and reader.windows[-1].rules is not None


def test_prompt_and_hot_words() -> None:
    stream, reader = begin(replace(PLAIN, prompt="Numbers.", hotwords="seven"))
    play(stream, reader, [speech([[1, 2], [3, 4]], 0.8)])
    first, last = (reader.tokenizer.decode(list(reader.windows[i].prompt)) for i in (0, -1))
    assert first == "<|startofprev|> seven Numbers.<|startoftranscript|><|notimestamps|>"
    assert last.startswith("<|startofprev|> seven Numbers. one two<|startoftranscript|>")


def test_unsure_text_is_not_committed_before_the_end() -> None:
    stream, reader = begin()
    reader.logprob = -2.0
    events = play(stream, reader, [speech([[1, 2, 3, 4, 5, 6]], 0.2)])
    updates = [e for e in events if isinstance(e, TextUpdate)]
    assert [bool(e.committed) for e in updates] == [False] * (len(updates) - 1) + [True]
    (ended,) = (e for e in events if isinstance(e, UtteranceEnded))
    assert ended.segments[0].temperature == 1.0  # the last of the attempts in the slot


def test_bad_input() -> None:
    stream, reader = begin()
    stream.append(np.zeros(0, np.float32))
    for bad in ([0.0, np.nan], [np.inf], np.zeros((2, 8)), np.zeros(8, np.int16)):
        with pytest.raises(AudioError, match="float32"):
            stream.append(bad)
    assert texts(play(stream, reader, [speech([[1]], 0.1)])) == ["one"]
    with pytest.raises(OptionError, match="finished"):
        stream.append(ONE_SAMPLE)
    stream.finish()
    assert stream.ended and stream.due is None


def test_a_model_that_gives_nan() -> None:
    stream, reader = begin()
    reader.logprob = float("nan")
    with pytest.raises(SlimWhisperError, match="NaN"):
        play(stream, reader, [speech([[1, 2, 3]], 0.1)])


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "greedy"},
        {"update": 0},
        {"first": float("nan")},
        {"vad_threshold": 1},
        {"silence_duration_ms": 0.5},
        {"prefix_padding_ms": -1},
        {"window": 1.0},
        {"words": "yes"},
        {"language": "xx"},
    ],
)
def test_options_that_cannot_work(change: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(change))}"):
        begin(replace(PLAIN, **change))
