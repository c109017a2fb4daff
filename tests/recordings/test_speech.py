"""One recording without its silences, or in pieces side by side; its times stay."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.longform.passes import Passes, TranscriptContext
from slimwhisper.options import Options
from slimwhisper.recordings.passes import passes_of, with_logprobs
from slimwhisper.recordings.speech import SpeechRecording
from slimwhisper.recordings.transcribe import make_recording
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Segment, Transcript, Word
from tests.support.checkpoints import tiny_dims
from tests.support.parity import differences
from tests.support.scripted import segment as plain_segment
from tests.support.sounds import claps
from tests.support.spoken import WORDS, spoken_words

PAUSE = 5.0  # seconds between phrases
PHRASES = 4


class Phrases:
    """Spoken phrases of three digits with long pauses between."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        words = spoken_words()
        pieces: list[np.ndarray] = [np.zeros(8_000, np.float32)]
        self.spans: list[tuple[float, float]] = []  # seconds
        self.words: list[str] = []
        for _ in range(PHRASES):
            start = sum(map(len, pieces)) / 16_000
            for i in rng.choice(len(words), 3):
                pieces += [words[i][1], np.zeros(3_200, np.float32)]
                self.words.append(WORDS[words[i][0]])
            self.spans.append((start, sum(map(len, pieces)) / 16_000))
            pieces.append(np.zeros(int(PAUSE * 16_000), np.float32))
        self.audio = np.concatenate(pieces)

    def holds(self, start: float, end: float) -> bool:
        """Whether a stretch lies in one phrase, with half a second to spare."""
        return any(a - 0.5 <= start <= end <= b + 0.5 for a, b in self.spans)


@pytest.fixture(scope="module")
def phrases() -> Phrases:
    return Phrases()


def test_pieces_have_the_recordings_own_times(digits: SlimWhisper, phrases: Phrases) -> None:
    options: dict[str, Any] = {"parallel": True, "temperature": 0, "word_timestamps": True}
    result = digits.transcribe(phrases.audio, **options)
    texts = [s for s in result["segments"] if s["text"]]
    assert [s["id"] for s in result["segments"]] == list(range(len(result["segments"])))
    assert [s["start"] for s in texts] == sorted(s["start"] for s in texts)
    for segment in texts:  # it may span a pause, but begins and ends with its words
        first, last = segment["words"][0], segment["words"][-1]
        assert (segment["start"], segment["end"]) == (first["start"], last["end"])
    words = [w for s in texts for w in s["words"]]
    assert words and all(phrases.holds(w["start"], w["end"]) for w in words)
    assert jiwer.wer(" ".join(phrases.words), result["text"].strip()) <= 1 / 12
    assert not differences(digits.transcribe(phrases.audio, **options, batch_size=1), result)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (8.0, 10.5, (8.0, 10.0)),  # half a second past the pause is cut off
        (9.5, 12.0, (20.0, 22.0)),
        (8.0, 12.0, (8.0, 22.0)),  # it is on both sides
        (2.0, 4.0, (2.0, 4.0)),
        (10.0, 11.0, (20.0, 21.0)),
    ],
)
@pytest.mark.parametrize("mode", ["parallel", "vad_filter"])
def test_segments_at_a_pause_that_was_left_out(
    mode: str, start: float, end: float, expected: tuple[float, float], digits: SlimWhisper
) -> None:
    """Of 10 s, between the first and the last ten."""
    samples = ArraySamples(np.zeros(480_000, np.float32))
    passes = Passes(speech=[(0, 160_000), (320_000, 480_000)])
    recording = SpeechRecording(samples, digits.network, Options(**{mode: True}), passes)
    segment = plain_segment(0, 0, start, end, "one", [])
    found = recording._with_original_times(segment)
    assert (found.start, found.end) == expected
    words = [Word("one", a, a + 0.1, 1.0) for a in (start, end - 0.1)]
    found = recording._with_original_times(replace(segment, words=words))
    edges = found.words[0].start, found.words[-1].end  # type: ignore[index]
    assert (found.start, found.end) == edges and edges[1] - edges[0] >= end - start - 1e-9
    recording.close()


def test_sentences_are_cut_at_pauses(digits: SlimWhisper, phrases: Phrases) -> None:
    audio = phrases.audio[: int(16_000 * (phrases.spans[1][1] + 2))]
    result = digits.transcribe(audio, parallel=True, temperature=0, sentences=True)
    assert result["text"] == "".join(s["text"] for s in result["segments"])
    assert len(result["segments"]) == 2
    for segment, (start, end) in zip(result["segments"], phrases.spans, strict=False):
        assert start - 0.5 <= segment["words"][0]["start"] == segment["start"]
        assert segment["words"][-1]["end"] <= segment["end"] <= end + 1.5


def test_silence_is_left_out(digits: SlimWhisper, phrases: Phrases) -> None:
    """Half of the recording is decoded, in one window."""
    result = digits.transcribe(phrases.audio, vad_filter=True, temperature=0)
    seconds = len(phrases.audio) / 16_000
    starts = [s["start"] for s in result["segments"]]
    assert starts == sorted(starts)
    assert all(0 <= s["start"] <= s["end"] <= seconds for s in result["segments"])
    recording = make_recording(
        ArraySamples(phrases.audio), digits.network, Options(vad_filter=True)
    )
    session = recording.next_session()
    assert session is not None and isinstance(recording, SpeechRecording)
    speech = sum(end - start for start, end in phrases.spans)
    assert speech < session.mel.frames / 100 < speech + PHRASES * 1.2 < seconds
    # a time in the third phrase of the decoded audio is in the third phrase of the recording
    seconds_decoded = sum(end - start + 0.8 for start, end in phrases.spans[:2]) + 0.8
    assert phrases.spans[2][0] < recording._original(seconds_decoded) < phrases.spans[2][1]
    recording.close()


@pytest.mark.parametrize("mode", ["parallel", "vad_filter", "channels"])
def test_no_speech_at_all(random_paths: dict[str, Path], mode: str) -> None:
    """No text, and a language all the same; on both channels, too."""
    multilingual = slimwhisper.load_model(random_paths["multilingual"], "cpu")
    for count in (48_000, 10):
        if mode == "channels":
            silence, value = np.zeros((2, count), np.float32), "split"
        else:
            silence, value = np.zeros(count, np.float32), True
        result = multilingual.transcribe(silence, **{mode: value})
        assert (result["text"], result["segments"]) == ("", [])
        assert len(result["language"]) in (2, 3)


def test_windows_without_speech_have_no_text(digits: SlimWhisper, phrases: Phrases) -> None:
    """Those with speech have the text that they had, and what whisper leaves out after it."""
    noises = claps(30.0)
    assert digits.transcribe(noises, temperature=0)["text"]
    assert digits.transcribe(noises, temperature=0, speech_only=True)["text"] == ""
    plain = digits.transcribe(phrases.audio, temperature=0)
    alone = digits.transcribe(phrases.audio, temperature=0, speech_only=True)
    assert plain["text"] == alone["text"].removesuffix(" nine one nine") != alone["text"]
    both = np.concatenate([noises, phrases.audio])
    result = digits.transcribe(both, temperature=0, speech_only=True)
    assert result["text"] == alone["text"]
    starts = [s["start"] - 30 for s in result["segments"] if s["text"]]
    assert starts == pytest.approx([s["start"] for s in alone["segments"] if s["text"]], abs=0.01)


def test_flagged_segments_are_dropped(digits: SlimWhisper) -> None:
    """They are in no text, and neither printed nor streamed; json has them."""
    word = np.pad(spoken_words()[0][1], (0, 3_200))
    loop = np.tile(word, 12 * 16_000 // len(word))
    plain = digits.transcribe(loop, temperature=0, sentences=True)
    assert plain["flags"] and "dropped" not in plain
    shown = []
    for _, result in digits.transcribe_many(
        [loop],
        temperature=0,
        drop=["repeats"],
        token_logprobs=True,
        on_segments=lambda _, segments, __: shown.extend(segments),
    ):
        made = dict(result)
    assert (made["text"], made["segments"], shown) == ("", [], [])
    assert "flags" not in made
    assert made["dropped"] and all("repeats" in s["flags"] for s in made["dropped"])
    assert all(len(s["tokens"]) == len(s["token_logprobs"]) for s in made["dropped"])


@pytest.mark.parametrize("sentences", [False, True])
def test_what_is_left_when_segments_are_dropped(sentences: bool) -> None:
    flags = ((), ("invented",), ("too_fast", "improbable"), ())
    texts = (" Good day.", " Thank you.", " Hm.", " See you.")
    segments = [
        replace(
            plain_segment(i, 0, 2.0 * i, 2.0 * i + 2, text, [i]),
            flags=f,
            token_logprobs=[-float(i)],
        )
        for i, (text, f) in enumerate(zip(texts, flags, strict=True))
    ]
    drop = {"drop": ("invented", "improbable"), "token_logprobs": True, "sentences": sentences}
    options, samples = Options(**drop), ArraySamples(np.zeros(128_000, np.float32))
    vocabulary = get_vocabulary(tiny_dims(multilingual=True))
    context = TranscriptContext(options, 8.0, vocabulary, vocabulary.tokenizer("en"))
    found = Transcript("".join(texts), segments, "en")
    for change in passes_of(samples, options, "").transcript:
        found = change(found, context)
    assert found.text == " Good day. See you."
    assert [s.text for s in found.segments] == [" Good day.", " See you."]
    assert [s.token_logprobs for s in found.segments] == [[-0.0], [-3.0]]
    assert list(found.dropped) == segments[1:3]
    assert [s["id"] for s in found["dropped"]] == [1, 2]


def test_clips_hold_for_speech_too(digits: SlimWhisper, phrases: Phrases) -> None:
    start, end = phrases.spans[1]
    clip = f"{start - 0.5},{end + 0.5}"
    for mode in ("parallel", "vad_filter"):
        options: dict[str, Any] = {mode: True, "clip_timestamps": clip, "temperature": 0}
        segments = [s for s in digits.transcribe(phrases.audio, **options)["segments"] if s["text"]]
        assert segments
        assert all(start - 0.6 <= s["start"] <= s["end"] <= end + 0.6 for s in segments)


def test_pieces_are_sessions_of_their_own(digits: SlimWhisper, phrases: Phrases) -> None:
    """With a spectrogram each, so they are made as places come free: never all at once."""
    audio = np.tile(phrases.audio, 8)
    recording = make_recording(ArraySamples(audio), digits.network, Options(parallel=True))
    assert isinstance(recording, SpeechRecording)
    speech, pieces = recording.seconds_of_speech, 1 + len(recording._waiting)
    assert 2 <= speech / 30 <= pieces < 2 + speech / 25  # nothing but speech, and nearly full
    for count in range(1, pieces + 1):
        assert recording.next_session() is recording.sessions[-1]
        assert len(recording.sessions) == count
    assert recording.next_session() is None
    assert not any(s.options.condition_on_previous_text for s in recording.sessions)
    recording.close()


def test_logprobs_follow_segments_that_are_cut_anew() -> None:
    def segment(*tokens: int, logprobs: list[float] | None = None) -> Segment:
        return replace(plain_segment(0, 0, 0.0, 1.0, "", [*tokens]), token_logprobs=logprobs)

    before = [segment(7, 8, logprobs=[-1.0, -2.0]), segment(7, 9, logprobs=[-3.0, -4.0])]
    result = with_logprobs([segment(7), segment(8, 7, 9), segment()], before)
    assert [s.token_logprobs for s in result] == [[-1.0], [-2.0, -3.0, -4.0], []]
