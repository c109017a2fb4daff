"""Texts that recordings are expected to follow, and drafts by a model: their options."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.cli import build_parser
from slimwhisper.engine.drafting.speculation import Acceptance
from slimwhisper.errors import OptionError
from slimwhisper.jobs.decoding_flags import options_of
from slimwhisper.recordings.expected import expected_tokens, read_expected
from slimwhisper.recordings.transcribe import aligned_recording
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Options
from tests.support.paths import SAMPLES
from tests.support.sessions import TOKENIZER, session
from tests.support.spoken import EXPECTED

DOOR = SAMPLES / "door-code.mp3"
VOCABULARY = get_vocabulary(session(4).dims)


def test_a_file_or_a_folder(tmp_path: Path) -> None:
    script = tmp_path / "talk.txt"
    script.write_text("good\nmorning", encoding="utf-8")
    for place in (script, tmp_path):
        assert read_expected(Options(expected=str(place)), "day/talk") == "good\nmorning"
    assert read_expected(Options(expected=str(tmp_path)), "other") == ""
    assert read_expected(Options(), "talk") == ""
    with pytest.raises(OptionError, match=r"missing\.txt cannot be read \(No such file"):
        read_expected(Options(expected=str(tmp_path / "missing.txt")), "talk")
    script.write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match=r"talk\.txt is not UTF-8"):
        read_expected(Options(expected=str(script)), "talk")
    with script.open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(OptionError, match="more than 4,194,304"):
        read_expected(Options(expected=str(script)), "talk")


def test_the_text_is_that_of_the_recording_that_is_aligned(tmp_path: Path) -> None:
    (tmp_path / "talk.txt").write_text("good morning", encoding="utf-8")
    options = Options(expected=str(tmp_path))
    dims, samples = session(4).dims, ArraySamples(np.zeros(16_000, np.float32))
    aligned = aligned_recording(samples, dims, options, VOCABULARY, ["morning"], "talk")
    (first,) = aligned.recording.sessions
    assert first._expected == expected_tokens(VOCABULARY, "good morning", None)
    with pytest.raises(OptionError, match="sentences cannot be used to align a text"):
        aligned_recording(samples, dims, Options(sentences=True), VOCABULARY, ["morning"])


def test_tokens() -> None:
    assert expected_tokens(VOCABULARY, " ", "Smythe") == ()
    both = expected_tokens(VOCABULARY, "good\n\nmorning", " Smythe ")
    assert TOKENIZER.decode(list(both)) == " good morning Smythe"


def test_beams_and_drafts(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="expected needs greedy decoding"):
        slimwhisper.load_model("digits").make_options(expected="a.txt", beam_size=2)
    common = ["transcribe", "a.wav", "--model", "digits"]
    assert options_of(build_parser().parse_args(common))["beam_size"] == 5
    for flag in ("--expected", "--draft"):
        arguments = build_parser().parse_args([*common, flag, "x"])
        assert options_of(arguments).get("beam_size") is None
        beams = build_parser().parse_args([*common, flag, "x", "--beam_size", "3"])
        assert options_of(beams)["beam_size"] == 3, "refused later, with a reason"


def drafts_of(model: SlimWhisper) -> Acceptance:
    kept = model.transcriber.engines[-1]
    assert kept is not None and kept.group_runners[0].speculation is not None
    return kept.group_runners[0].speculation.acceptance


Words = list[tuple[list[int], list[tuple[str, float, float]]]]


def transcribe_words(model: SlimWhisper, **options: object) -> Words:
    """(tokens, words) of each segment."""
    segments = model.transcribe(DOOR, temperature=0.0, word_timestamps=True, **options)["segments"]
    return [
        (s["tokens"], [(w["word"], w["start"], w["end"]) for w in s["words"]]) for s in segments
    ]


@pytest.fixture(scope="module")
def digits() -> SlimWhisper:
    return slimwhisper.load_model("digits")


@pytest.fixture(scope="module")
def plain(digits: SlimWhisper) -> Words:
    return transcribe_words(digits)


def test_a_transcript_again(digits: SlimWhisper, plain: Words, tmp_path: Path) -> None:
    script = tmp_path / "door.txt"
    script.write_text(EXPECTED[DOOR.name]["text"])
    assert transcribe_words(digits, expected=str(script)) == plain
    assert drafts_of(digits).accepted


def test_a_draft_of_one_layer(plain: Words, tmp_path: Path) -> None:
    """Most of its guesses are wrong; the text is the model's own, and so are its words' times."""
    full = torch.load(Path(slimwhisper.__file__).parent / "models/digits.pt", weights_only=True)
    others = tuple(f"decoder.blocks.{i}." for i in (1, 2, 3))
    state = {n: t for n, t in full["model_state_dict"].items() if not n.startswith(others)}
    small = {"dims": {**full["dims"], "n_text_layer": 1}, "model_state_dict": state}
    torch.save(small, tmp_path / "draft.pt")
    model = slimwhisper.load_model("digits", draft=tmp_path / "draft.pt")
    assert transcribe_words(model) == plain
    assert drafts_of(model).drafted
    with pytest.raises(OptionError, match=r"beams: .*draft\.pt drafts for digits"):
        model.transcribe(DOOR, beam_size=2)
    with pytest.raises(OptionError, match="cannot be used with a draft model"):
        model.transcribe(DOOR, expected=str(tmp_path))
    state["encoder.conv1.bias"] = state["encoder.conv1.bias"] + 1
    torch.save(small, tmp_path / "other.pt")
    with pytest.raises(OptionError, match=r"its encoder\.conv1\.bias differs"):
        slimwhisper.load_model("digits", draft=tmp_path / "other.pt")
    assert replace(model.dims, n_text_layer=1) == model.network.draft.dims  # type: ignore[union-attr]
