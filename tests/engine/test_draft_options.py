"""Drafts by a model: their options."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.cli import build_parser
from slimwhisper.engine.drafting import Acceptance
from slimwhisper.engine.engine import make_engine
from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError
from slimwhisper.jobs.flags import options_of
from tests.support.paths import SAMPLES

DOOR = SAMPLES / "door-code.mp3"


def test_beams_and_drafts() -> None:
    common = ["transcribe", "a.wav", "--model", "digits"]
    assert options_of(build_parser().parse_args(common))["beam_size"] == 5
    arguments = build_parser().parse_args([*common, "--draft", "x"])
    assert options_of(arguments).get("beam_size") is None
    beams = build_parser().parse_args([*common, "--draft", "x", "--beam_size", "3"])
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


def test_a_draft_of_one_layer(
    plain: Words, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Most of its guesses are wrong; the text is the model's own, and so are its words' times."""
    full = torch.load(Path(slimwhisper.__file__).parent / "models/digits.pt", weights_only=True)
    others = tuple(f"decoder.blocks.{i}." for i in (1, 2, 3))
    state = {n: t for n, t in full["model_state_dict"].items() if not n.startswith(others)}
    small = {"dims": {**full["dims"], "n_text_layer": 1}, "model_state_dict": state}
    torch.save(small, tmp_path / "draft.pt")
    model = slimwhisper.load_model("digits", draft=tmp_path / "draft.pt")
    assert transcribe_words(model) == plain
    assert drafts_of(model).drafted
    with caplog.at_level("WARNING", logger="slimwhisper"):
        engines = [make_engine(model.network, Search(), slots) for slots in (7, 8, 8)]
    drafted = [engine.group_runners[0].speculation is not None for engine in engines]
    assert drafted == [True, False, False]
    assert caplog.text.count("batch_size 8: ") == 1 and "draft.pt drafts for up to 7" in caplog.text
    with pytest.raises(OptionError, match=r"beams: .*draft\.pt drafts for digits"):
        model.transcribe(DOOR, beam_size=2)
    state["encoder.conv1.bias"] = state["encoder.conv1.bias"] + 1
    torch.save(small, tmp_path / "other.pt")
    with pytest.raises(OptionError, match=r"its encoder\.conv1\.bias differs"):
        slimwhisper.load_model("digits", draft=tmp_path / "other.pt")
    assert replace(model.dims, n_text_layer=1) == model.network.draft.dims  # type: ignore[union-attr]
