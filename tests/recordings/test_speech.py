"""One recording without its silences, or in pieces side by side; its times stay."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jiwer
import numpy as np
import pytest
import soundfile

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.errors import AudioError
from slimwhisper.longform.passes import Passes, TranscriptContext
from slimwhisper.options import Options
from slimwhisper.outputs import FORMATS, formats_of
from slimwhisper.recordings.channels import SplitRecording, _cut
from slimwhisper.recordings.passes import passes_of, with_logprobs
from slimwhisper.recordings.speech import SpeechRecording, pack_regions
from slimwhisper.recordings.transcribe import make_recording
from slimwhisper.subtitles import cues, sentences
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Segment, Transcript, Word
from tests.support.checkpoints import tiny_dims
from tests.support.command import RunCLI
from tests.support.parity import differences
from tests.support.scripted import segment as plain_segment
from tests.support.sounds import claps
from tests.support.spoken import WORDS, Call, call, spoken_words

TABLES = tomllib.loads(Path(__file__).with_name("regions.toml").read_text())
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


@pytest.mark.parametrize(("start", "end", "expected"), TABLES["pauses"])
@pytest.mark.parametrize("mode", ["parallel", "vad_filter"])
def test_segments_at_a_pause_that_was_left_out(
    digits: SlimWhisper, mode: str, start: float, end: float, expected: list[float]
) -> None:
    """Of 10 s, between the first and the last ten."""
    samples = ArraySamples(np.zeros(480_000, np.float32))
    passes = Passes(speech=[(0, 160_000), (320_000, 480_000)])
    recording = SpeechRecording(samples, digits.network, Options(**{mode: True}), passes)
    segment = plain_segment(0, 0, start, end, "one", [])
    found = recording._with_original_times(segment)
    assert [found.start, found.end] == expected
    words = [Word("one", a, a + 0.1, 1.0) for a in (start, end - 0.1)]
    found = recording._with_original_times(replace(segment, words=words))
    edges = found.words[0].start, found.words[-1].end  # type: ignore[index]
    assert (found.start, found.end) == edges and edges[1] - edges[0] >= end - start - 1e-9
    recording.close()


@pytest.mark.parametrize(("gap", "limit", "pieces"), TABLES["pieces"])
def test_neighbours_are_packed_up_to_a_limit(gap: int, limit: int, pieces: Any) -> None:
    regions = [(0, 10), (12, 20), (25, 30), (31, 33)]
    packed = [[[*region] for region in piece] for piece in pack_regions(iter(regions), gap, limit)]
    assert packed == pieces and pack_regions([], gap, limit) == []


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
    stereo = np.stack([loop, np.pad(word, (0, len(loop) - len(word)))])
    made = digits.transcribe(stereo, channels="split", temperature=0, drop=["repeats"])
    rows = [*made["segments"], *made["dropped"]]
    assert made["text"] and [s["id"] for s in rows] == list(range(len(rows)))


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


# Channels that are decoded by themselves: the texts of each one alone, by name, in order


SPLIT: dict[str, Any] = {"channels": "split", "temperature": 0}
ALONE: dict[str, Any] = {"temperature": 0, "vad_filter": True, "word_timestamps": True}


@pytest.fixture(scope="module")
def talk() -> Call:
    return call(turns=4, digits=2)


def words(result: dict[str, Any], speaker: str | None = None) -> list[dict[str, Any]]:
    """The words of a speaker, or of all, without their speakers."""
    segments = [s for s in result["segments"] if speaker in (None, s.get("speaker"))]
    return [{k: w[k] for k in w if k != "speaker"} for s in segments for w in s["words"]]


def tokens(model: SlimWhisper, segments: list[dict[str, Any]]) -> list[int]:
    return [t for s in segments for t in s["tokens"] if model.network.vocabulary.is_text(t)]


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"parallel": True, "batch_size": 3}])
def test_each_channel_is_as_alone(digits: SlimWhisper, talk: Call, options: dict[str, Any]) -> None:
    names = ("agent", "customer")
    result = digits.transcribe(talk.audio, **SPLIT, **options, channel_names=names)
    alone_options = {**ALONE, "vad_filter": "parallel" not in options, **options}
    for name, channel in zip(names, talk.audio, strict=True):
        alone = digits.transcribe(channel, **alone_options)
        segments = [s for s in result["segments"] if s["speaker"] == name]
        assert "".join(s["text"] for s in segments) == alone["text"] != ""
        assert words(result, name) == words(alone)
        assert tokens(digits, segments) == tokens(digits, alone["segments"])


def test_words_may_be_left_out(digits: SlimWhisper) -> None:
    talk = call(turns=6, digits=2, pause=0.3, seed=0)
    for options in ({"word_timestamps": False}, {"sentences": True}):
        result = digits.transcribe(talk.audio, **SPLIT, **options)
        assert sorted(result["text"].split()) == sorted(word for _, word in talk.words)
        assert ("words" in result["segments"][0]) == ("word_timestamps" not in options)
        assert {s["speaker"] for s in result["segments"]} == {"left", "right"}


def test_names_count_in_the_lines_of_subtitles(digits: SlimWhisper, monkeypatch: Any) -> None:
    for module in (cues, sentences):
        monkeypatch.setattr(module, "LINE_COLUMNS", 20)
    options = {**SPLIT, "channel_names": ("agent", "customer"), "sentences": True}
    ((_, result),) = digits.transcribe_many([call(turns=2, digits=6).audio], **options)
    srt = FORMATS["srt"].render(result, {"sentences": True}).decode()
    assert max(len(cue.splitlines()) for cue in srt.split("\n\n")) == 4


@pytest.mark.parametrize(("others", "texts"), TABLES["cuts"])
def test_a_segment_is_cut_where_another_answers(others: list[float], texts: list[str]) -> None:
    starts = {" one": 0.5, " two": 1.5, " three": 4.0, " four": 7.0}
    words = [Word(w, start, start + 0.8, 1.0, "left") for w, start in starts.items()]
    segment = replace(
        plain_segment(0, 0, 0.5, 7.8, "".join(starts), [1, 2, 3, 4]),
        token_logprobs=[-0.1, -0.2, -0.3, -0.4],
        words=words,
        speaker="left",
    )

    def spell(tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        return [(words[token - 1].word, [token]) for token in tokens]

    pieces = _cut(segment, sorted([*starts.values(), *others]), spell)
    assert [piece.text for piece in pieces] == texts
    assert [t for piece in pieces for t in piece.tokens] == segment.tokens
    assert [t for p in pieces for t in p.token_logprobs or ()] == segment.token_logprobs
    for piece in pieces:
        assert piece.words is not None and piece.speaker == "left"
        assert (piece.start, piece.end) == (piece.words[0].start, piece.words[-1].end)
        assert [len(piece.tokens)] == [len(piece.words)] == [len(piece.token_logprobs or ())]
    (*_, last) = _cut(replace(segment, end=9.0), sorted([*starts.values(), *others, 8.2]), spell)
    assert last.end == 8.2, "the time to read it"


def steps(model: SlimWhisper, audio: np.ndarray, **options: Any) -> tuple[int, Transcript]:
    """The slots that were in use, added up over all steps; and the transcript."""
    on_step = Mock()
    ((_, result),) = model.transcribe_many([audio], on_step=on_step, **options)
    return sum(call.args[0] for call in on_step.call_args_list), result


def test_a_silent_channel_costs_nothing(digits: SlimWhisper, talk: Call) -> None:
    alone, expected = steps(digits, talk.audio[0], **ALONE)
    for noise in (np.zeros_like(talk.audio[0]), claps(30.0)[: talk.audio.shape[1]] * 0.1):
        silent = np.pad(noise, (0, talk.audio.shape[1] - len(noise)))
        split, result = steps(digits, np.stack([talk.audio[0], silent]), **SPLIT)
        assert (split, result.text) == (alone, expected.text)


def test_segments_are_reported_in_order(digits: SlimWhisper) -> None:
    talk = call(turns=12, digits=4, seed=4)
    reported: list[Segment] = []

    def report(_: object, segments: list[Segment], done: float) -> None:
        assert 0 <= done <= talk.audio.shape[1] / 16_000
        reported.extend(segments)

    outcomes = digits.transcribe_many([talk.audio], on_segments=report, batch_size=2, **SPLIT)
    ((_, result),) = list(outcomes)
    starts = [segment.start for segment in reported]
    assert starts == sorted(starts) and len(reported) > 4
    assert [segment.id for segment in reported] == list(range(len(reported)))
    for name in ("left", "right"):
        text = "".join(s.text for s in result.segments if s.speaker == name)
        assert "".join(s.text for s in reported if s.speaker == name) == text


def test_who_begins_at_the_same_time_waits_for_the_channels_before() -> None:
    left, right = (plain_segment(0, 0, 0.0, 1.0, name, []) for name in ("left", "right"))
    slow = Mock(done=False, next_start=0.0, **{"report.side_effect": [[], [left]]})
    quick = Mock(done=True, **{"report.side_effect": [[right], []]})
    split = SplitRecording([slow, quick])
    assert split.report() == []
    slow.done = True
    assert [segment.text for segment in split.report()] == ["left", "right"]


def test_recordings_beside_each_other(digits: SlimWhisper, talk: Call, tmp_path: Path) -> None:
    """Of a list, with one that has no channels to split."""
    paths = [tmp_path / f"{name}.wav" for name in ("call", "mono", "again")]
    for path, audio in zip(paths, (talk.audio.T, talk.audio[0], talk.audio.T), strict=True):
        soundfile.write(path, audio, 16_000)
    for loaders in (0, 1):
        results = dict(digits.transcribe_many(paths, loaders=loaders, **SPLIT))
        error = results[paths[1]]
        assert isinstance(error, AudioError)
        assert str(error).startswith(f"{paths[1]}: has one channel")
        for path in (paths[0], paths[2]):
            result = results[path]
            assert result.text.split() == [word for _, word in talk.words]


def test_the_command(run_cli: RunCLI, talk: Call, tmp_path: Path) -> None:
    """A file for each format, with the names."""
    out = tmp_path / "out"
    soundfile.write(tmp_path / "call.wav", talk.audio.T, 16_000)
    names = ("--channels", "split", "--channel_names", "agent,customer")
    run = run_cli("transcribe", str(tmp_path), "--model", "digits", "-o", str(out), *names)
    assert run.status == 0 and "] agent: " in run.out and "] customer: " in run.out
    assert {p.suffix[1:] for p in out.glob("call.*")} == {*formats_of("all"), "rttm"}
    lines = [line.partition(": ") for line in (out / "call.txt").read_text().splitlines()]
    assert [name for name, *_ in lines] == ["agent", "customer"] * 2
    assert " ".join(text for *_, text in lines).split() == [word for _, word in talk.words]
