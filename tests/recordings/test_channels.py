"""Channels that are decoded by themselves: the texts of each one alone, by name, in order."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile

from slimwhisper.api import SlimWhisper
from slimwhisper.errors import AudioError
from slimwhisper.outputs import FORMATS, formats_of
from slimwhisper.recordings.channels import SplitRecording, _cut
from slimwhisper.subtitles import cues, sentences
from slimwhisper.types import Segment, Transcript, Word
from tests.support.command import RunCLI
from tests.support.scripted import segment as plain_segment
from tests.support.sounds import claps
from tests.support.spoken import Call, call

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


def test_names_count_in_the_lines_of_subtitles(
    digits: SlimWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cues, sentences):
        monkeypatch.setattr(module, "LINE_COLUMNS", 20)
    options = {**SPLIT, "channel_names": ("agent", "customer"), "sentences": True}
    ((_, result),) = digits.transcribe_many([call(turns=2, digits=6).audio], **options)
    assert isinstance(result, Transcript)
    srt = FORMATS["srt"].render(result, {"sentences": True}).decode()
    assert max(len(cue.splitlines()) for cue in srt.split("\n\n")) == 4


@pytest.mark.parametrize(
    ("others", "texts"),
    [
        ([], [" one two three four"]),
        ([0.7], [" one two three four"]),  # while this one speaks
        ([1.4], [" one two three four"]),  # in a short pause
        ([3.0, 3.2], [" one two", " three four"]),
        ([3.0, 6.0], [" one two", " three", " four"]),
    ],
)
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


def test_people_who_speak_at_once_stay_so(digits: SlimWhisper, talk: Call) -> None:
    channels = [call(turns=1, digits=4, seed=seed).audio[0] for seed in (8, 9)]
    count = min(map(len, channels))
    result = digits.transcribe(np.stack([channel[:count] for channel in channels]), **SPLIT)
    by_speaker = {s["speaker"]: s for s in result["segments"]}
    left, right = by_speaker["left"], by_speaker["right"]
    assert left["start"] < right["end"] and right["start"] < left["end"]


def steps(model: SlimWhisper, audio: np.ndarray, **options: Any) -> tuple[int, Transcript]:
    """The slots that were in use, added up over all steps; and the transcript."""
    on_step = Mock()
    ((_, result),) = model.transcribe_many([audio], on_step=on_step, **options)
    assert isinstance(result, Transcript)
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
    assert isinstance(result, Transcript)
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
            assert isinstance(result, Transcript)
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
