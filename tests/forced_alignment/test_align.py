"""A text and its recording, from end to end, with `digits`."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from whisper.tokenizer import get_tokenizer

import slimwhisper
from recipes.digits.voices import RATE, WORDS
from slimwhisper.api import SlimWhisper
from slimwhisper.cli import main
from slimwhisper.engine.requests import Alignment
from slimwhisper.errors import OptionError
from slimwhisper.longform.passes import DecodedWindow, WindowSpan
from slimwhisper.types import Segment, Word
from slimwhisper.word_times.fine import with_fine_times
from tests.support.paths import PHONE, SHARED
from tests.support.real_models import real_model
from tests.support.spoken import EXPECTED, joined, spoken_words

LINES = [segment["text"] for segment in EXPECTED[PHONE.name]["segments"]]


def timed_sequence(count: int, seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Words, their borders [count, 2] in seconds, and the audio."""
    rng = np.random.default_rng(seed)
    chosen = [spoken_words()[i] for i in rng.integers(len(spoken_words()), size=count)]
    pieces = [joined([part], rng) for _, part in chosen]  # a pause, and the word
    stops = np.cumsum([len(piece) for piece in pieces])
    starts = stops - [len(part) for _, part in chosen]
    borders = np.stack([starts, stops], axis=1) / RATE
    return [WORDS[digit] for digit, _ in chosen], borders, np.concatenate(pieces)


def lines_of(words: list[str], size: int = 6) -> list[str]:
    return [" ".join(words[i : i + size]) for i in range(0, len(words), size)]


def borders_of(result: dict) -> np.ndarray:  # type: ignore[type-arg]
    words = [w for s in result["segments"] for w in s["words"]]
    return np.array([(w["start"], w["end"]) for w in words])


def test_borders_of_words(digits: SlimWhisper) -> None:
    """95 % within 100 ms and 80 % within 50 ms, over several windows; the text as it is."""
    words, borders, audio = timed_sequence(75, seed=4)
    assert len(audio) > 60 * RATE
    lines = lines_of(words)
    result = digits.align(audio, lines)
    assert [s["text"] for s in result["segments"]] == lines
    assert ["".join(w["word"] for w in s["words"]) for s in result["segments"]] == lines
    errors = np.abs(borders_of(result) - borders)
    assert (errors <= 0.1).mean() >= 0.95 and (errors <= 0.05).mean() >= 0.8
    assert "flags" not in result and result["text"] == "\n".join(lines)
    segment = result["segments"][3]
    assert segment["start"] == segment["words"][0]["start"]
    assert segment["end"] == segment["words"][-1]["end"]


def test_what_is_missing_on_either_side_is_marked(digits: SlimWhisper) -> None:
    lines = ["It was a dark and stormy night", *LINES[:1], "♪", *LINES[2:]]
    result = digits.align(PHONE, "\n".join(lines))
    assert [s["text"] for s in result["segments"]] == lines
    assert result["flags"] == {0: ["not_in_audio"], 2: ["not_in_audio"]}
    assert all(s["start"] == s["end"] for s in (result["segments"][i] for i in (0, 2)))
    (span,) = result["unscripted"]
    assert span["text"] == LINES[1]
    truth = EXPECTED[PHONE.name]["segments"][1]
    assert span["start"] == pytest.approx(truth["start"], abs=0.2)
    assert span["end"] == pytest.approx(truth["end"], abs=0.2)


def test_another_text_altogether(digits: SlimWhisper) -> None:
    """As long as what is said; and a recording without words."""
    result = digits.align(PHONE, ["cat dog bird", "fish cow horse", "ant bee wasp fly"])
    assert len(result["flags"]) == 3
    assert " ".join(span["text"] for span in result["unscripted"]) == " ".join(LINES)
    silent = digits.align(np.zeros(RATE * 3, np.float32), LINES)
    assert len(silent["flags"]) == 3 and "unscripted" not in silent
    nothing = digits.align(np.zeros(10, np.float32), LINES)
    assert len(nothing["flags"]) == 3


@pytest.mark.parametrize("option", ["vad_filter", "sentences", "channels"])
def test_options_that_change_the_text_or_the_audio(digits: SlimWhisper, option: str) -> None:
    value = "split" if option == "channels" else True
    with pytest.raises(OptionError, match=f"{option} cannot be used to align"):
        digits.align(PHONE, LINES, **{option: value})


def test_fine_word_times_change_no_text(digits: SlimWhisper) -> None:
    words, borders, audio = timed_sequence(40, seed=20)
    usual = digits.transcribe(audio, word_timestamps=True)
    fine = digits.transcribe(audio, word_timestamps=True, word_times="fine")
    assert usual["text"] == fine["text"] and usual["text"].split() == words
    assert [len(s["words"]) for s in usual["segments"]] == [
        len(s["words"]) for s in fine["segments"]
    ]
    errors = np.abs(borders_of(fine) - borders)
    assert (errors <= 0.1).mean() >= 0.95 and (errors <= 0.05).mean() >= 0.8
    assert (np.abs(borders_of(usual) - borders) <= 0.1).mean() < 0.8, "whisper's are coarser"


def test_fine_times_leave_text_without_length_as_it_is() -> None:
    """Whisper removes it. A word begins at its letters; what has none takes no time."""
    tokenizer = get_tokenizer(multilingual=True, language="ja")
    text = tuple(tokenizer.encode("一二 — 三"))
    scores = torch.zeros(1, 1 + len(text) + 1, 100)
    segments = [
        Segment(i, 0, time, end, word, [], 0.0, 0.0, 0.0, 0.0, [Word(word, time, end, 0.5)])
        for i, (word, time, end) in enumerate(
            [("一", 0, 0.4), ("二", 0.4, 0.4), (" —", 0.4, 1), (" 三", 1, 2)]
        )
    ]
    alignment = Alignment(text, 1, scores, (0.5,) * len(text))
    span = WindowSpan(100, 200, 300, 3_000)
    window = DecodedWindow(
        span, lambda: torch.zeros(80, 3000), tokenizer, (), alignment=alignment, stop=300
    )
    first, second, dash, third = with_fine_times(segments, window)
    assert dash.start < dash.end, "its text stays"
    segments[2:] = [replace(third, text=" — 三", words=[*(dash.words or ()), *(third.words or ())])]
    _, _, both = with_fine_times(segments, window)
    assert 1.0 <= first.start < first.end <= 3.0
    assert first.end <= both.start == both.words[0].end == both.words[1].start
    assert second == segments[1] and third.end - third.start < 0.03


@pytest.mark.slow
def test_a_window_that_ends_between_sentences() -> None:
    """Its last word does not take the sound of the next window's; more than 64 words."""
    recording = SHARED / "speech/katiesteve.flac"
    if not recording.exists():
        pytest.skip(f"no recording at {recording}")
    model = slimwhisper.load_model(real_model("base"), device="cpu")
    fine = model.transcribe(recording, word_timestamps=True, word_times="fine", beam_size=5)
    assert {s["seek"] for s in fine["segments"]} == {0, 2534}
    borders = borders_of(fine)
    assert (np.diff(borders.ravel()) >= 0).all()
    truth = [[24.7, 25.5], [26.5, 26.7], [26.7, 27.3], [27.5, 27.6]]
    np.testing.assert_allclose(borders[-9:-5], truth, atol=0.2)
    lines = [segment["text"].strip() for segment in fine["segments"]]
    aligned = model.align(recording, lines)
    assert "flags" not in aligned and aligned["segments"][-1]["end"] <= 29.49
    for line, segment in zip(aligned["segments"], fine["segments"], strict=True):
        assert line["start"] == pytest.approx(segment["start"], abs=0.1)
        assert line["end"] == pytest.approx(segment["end"], abs=0.1)


# -- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "old.srt"
    cues = (f"{i}\n00:00:0{i},000 --> 00:00:0{i},500\n{text}\n" for i, text in enumerate(LINES, 1))
    script.write_text("\n".join([*cues, "4\n00:00:09,000 --> 00:00:09,500\nGoodbye then\n"]))
    given = ["align", str(PHONE), str(script), "--model", "digits", "-o", str(tmp_path / "new")]
    assert main([*given, "-f", "all"]) == 0
    out = capsys.readouterr().out
    assert "not in the audio, cue 4: Goodbye then" in out and "3 of 4 cues aligned" in out
    found = json.loads((tmp_path / "new" / "phone-number.json").read_text())
    assert found["flags"] == {"3": ["not_in_audio"]}
    for segment, truth in zip(found["segments"], EXPECTED[PHONE.name]["segments"], strict=False):
        assert segment["start"] == pytest.approx(truth["start"], abs=0.1)
        assert segment["end"] == pytest.approx(truth["end"], abs=0.1)
    srt, txt = ((tmp_path / "new" / f"phone-number.{f}").read_text() for f in ("srt", "txt"))
    assert srt.count("-->") == 3 and LINES[2] in srt, "no cue of what is not there"
    (tmp_path / "full" / "phone-number.srt" / "x").mkdir(parents=True)
    assert main([*given[:-1], str(tmp_path / "full")]) == 1
    assert LINES[2] in capsys.readouterr().out, "the work is not lost where files cannot be written"
    assert txt.splitlines() == [*LINES, "Goodbye then"]
    script.with_suffix(".txt").write_text("\n\nGoodbye then\n")
    assert main([*given[:2], str(script.with_suffix(".txt")), *given[3:]]) == 1
    heard = capsys.readouterr()
    assert "line 3: Goodbye" in heard.out and "nothing of" in heard.err
    assert (tmp_path / "new" / "phone-number.srt").read_text() == srt, "an earlier result stays"


def test_a_recording_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    monkeypatch.chdir(tmp_path)
    usual = os.dup(0)
    try:
        with PHONE.open("rb") as file:
            os.dup2(file.fileno(), 0)
        assert main("align - a.txt --model digits".split()) == 0
    finally:
        os.dup2(usual, 0)
        os.close(usual)
    assert (tmp_path / "stdin.srt").read_text().count("-->") == 3


def test_the_command_overwrites_neither_text_nor_audio(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / PHONE.name).write_bytes(PHONE.read_bytes())
    script = tmp_path / "phone-number.txt"
    script.write_text("\n".join(LINES))
    given = ["align", str(tmp_path / PHONE.name), str(script), "--model", "digits"]
    assert main([*given, "-f", "txt", "-o", str(tmp_path)]) == 2
    assert "phone-number.txt: would be overwritten" in capsys.readouterr().err
    (tmp_path / "file").touch()
    given = ["align", str(PHONE), str(script), "--model", "missing.pt", "-o"]
    assert main([*given, str(tmp_path / "file")]) == 1, "before the model is loaded"
    assert "file: cannot be written to" in capsys.readouterr().err


def test_a_word_that_no_context_holds(digits: SlimWhisper) -> None:
    lines = [f"{LINES[0]} {'xyzq1' * 300}", *LINES[1:]]
    result = digits.align(PHONE, lines)
    assert [s["text"] for s in result["segments"]] == lines
    assert result["segments"][1]["words"] and result["segments"][2]["words"]
