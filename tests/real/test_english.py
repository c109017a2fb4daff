"""An English model as people have it, from 2022, through all that slimwhisper does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper

import slimwhisper
from slimwhisper.commands.convert import convert
from slimwhisper.faster_whisper import BatchedInferencePipeline, WhisperModel
from tests.support.command import RunCLI
from tests.support.real_models import real_model

SAID = "And so my fellow Americans ask not what your country can do for you"
WORDS = SAID.lower().split()
GREEDY: dict[str, Any] = {"temperature": 0.0, "word_timestamps": True}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> slimwhisper.SlimWhisper:
    return slimwhisper.load_model(real_model("tiny.en"), device="cpu")


@pytest.fixture
def jfk(speech_folder: Path) -> str:
    return str(speech_folder / "jfk.flac")


def heard(text: str) -> list[str]:
    return [word.strip(".,!").lower() for word in text.split()][: len(WORDS)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 5},
        {"word_timestamps": True},
        {"word_timestamps": True, "word_times": "fine"},
        {"sentences": True},
        {"language": "en-US", "initial_prompt": "<|en|> Kennedy"},
        {"language": "de", "task": "translate", "vad_filter": True},
    ],
    ids=str,
)
def test_transcribe(model: slimwhisper.SlimWhisper, jfk: str, options: dict[str, Any]) -> None:
    result = model.transcribe(jfk, **options)
    assert heard(result["text"]) == WORDS and result["language"] == "en"


def test_align_live_and_languages(model: slimwhisper.SlimWhisper, jfk: str) -> None:
    aligned = model.align(jfk, SAID)
    assert aligned["segments"][0]["words"][0]["word"].strip() == "And" and not aligned.get("flags")
    audio = slimwhisper.load_audio(jfk)
    spoken = [
        event.text for event in model.live(np.array_split(audio, 30)) if hasattr(event, "text")
    ]
    assert "country" in " ".join(spoken)
    assert model.detect_language(jfk) == ("en", {"en": 1.0})


def test_faster_whispers_interface(jfk: str) -> None:
    theirs = WhisperModel(str(real_model("tiny.en")), device="cpu")
    for each in (theirs, BatchedInferencePipeline(theirs)):
        segments, info = each.transcribe(jfk, language="en-US", hotwords="<|en|>")
        assert heard(" ".join(s.text for s in segments)) == WORDS and info.language == "en"


def test_convert_and_openai_whisper(
    run_cli: RunCLI, model: slimwhisper.SlimWhisper, jfk: str, tmp_path: Path
) -> None:
    """The same words at the same times from each format; and the same text from openai-whisper,
    whose times are the same with the model's heads.
    """
    expected = model.transcribe(jfk, **GREEDY)
    for out in ("tiny.en.pt", "folder"):
        made = convert(str(real_model("tiny.en")), tmp_path / out).path
        assert slimwhisper.load_model(made, device="cpu").transcribe(jfk, **GREEDY) == expected
    theirs = whisper.load_model(str(tmp_path / "tiny.en.pt"), device="cpu")
    theirs.set_alignment_heads(whisper._ALIGNMENT_HEADS["tiny.en"])
    found = theirs.transcribe(jfk, fp16=False, **GREEDY)
    assert found["text"] == expected["text"]
    times = [
        [(w["word"], w["start"], w["end"]) for s in r["segments"] for w in s["words"]]
        for r in (found, expected)
    ]
    assert times[0] == times[1]
    for command in (["report"], ["report", "--guard"]):
        assert run_cli(*command, str(real_model("tiny.en"))).status == 0
