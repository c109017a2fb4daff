"""Several results for one recording: those of separate calls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.longform import recording
from slimwhisper.longform.answers import SharedSamples
from slimwhisper.types import Transcript
from tests.support.parity import differences
from tests.support.sounds import noise_bursts

QUICK: dict[str, Any] = {"temperature": 0, "sample_len": 8}
SHORT, LONG = noise_bursts(6, seed=5), noise_bursts(70, seed=6)
TASKS = [{"task": "transcribe"}, {"task": "translate"}]


@pytest.fixture(scope="module")
def model(random_paths: dict[str, Path]) -> SlimWhisper:
    return slimwhisper.load_model(str(random_paths["multilingual"]), device="cpu")


def assert_separate(
    model: SlimWhisper, audio: Any, variants: list[dict[str, Any]], **options: Any
) -> list[dict[str, Any]]:
    """The results of variants, which are those of separate calls."""
    together = model.transcribe_variants(audio, variants, **QUICK | options)
    for ours, variant in zip(together, variants, strict=True):
        assert not differences(ours, model.transcribe(audio, **QUICK | options | variant))
    return together


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3},
        {"temperature": (0.0, 0.9), "best_of": 2, "logprob_threshold": 0.0},
        {"without_timestamps": True},
        {"word_timestamps": True},
    ],
    ids=["greedy", "beams", "samples", "no timestamps", "words"],
)
def test_a_translation_beside_the_text(model: SlimWhisper, options: dict[str, Any]) -> None:
    chosen = {"language": "de", "no_speech_threshold": None} | options
    texts = assert_separate(model, SHORT, TASKS, **chosen)
    assert texts[0]["text"] != texts[1]["text"]


def test_a_language_that_is_detected(model: SlimWhisper) -> None:
    assert_separate(model, SHORT, TASKS)


def test_prompts_languages_and_temperatures(model: SlimWhisper) -> None:
    variants = [
        {"language": "de"},
        {"language": "fr"},
        {"language": "de", "initial_prompt": "Zahlen und Wörter"},
        {"language": "de", "temperature": 0.8, "seed": 4},
    ]
    texts = assert_separate(model, SHORT, variants)
    assert len({result["text"] for result in texts}) == 4


def test_other_searches_come_after_each_other(model: SlimWhisper) -> None:
    variants = [{"beam_size": 2}, {}, {"beam_size": 2, "task": "translate"}]
    assert_separate(model, SHORT, variants, language="de")


def test_a_long_recording(model: SlimWhisper) -> None:
    assert_separate(model, LONG, TASKS, language="de")


def test_regions_of_speech(model: SlimWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "find_speech", lambda *_: [(0, 64000), (160000, 800000)])
    variants = [dict(task, parallel=True) for task in TASKS]
    assert_separate(model, LONG, variants, language="de", batch_size=3)


def test_many_recordings(model: SlimWhisper, tmp_path: Path) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"not audio")
    sources: list[Any] = [SHORT, str(bad), noise_bursts(4, seed=9), np.zeros(0, np.float32)]
    options = {"language": "de", **QUICK}
    found = list(model.transcribe_many(sources, variants=TASKS, **options))
    assert len(found) == 4
    for source, result in found:
        if source is sources[1]:
            assert isinstance(result, AudioError)
            continue
        assert isinstance(result, Transcript) and len(result.others) == 1
        for task, ours in zip(TASKS, (result, *result.others), strict=True):
            ((_, alone),) = model.transcribe_many([source], **options | task)
            assert isinstance(alone, Transcript)
            assert not differences(ours.as_dict(), alone.as_dict())


def test_channels(model: SlimWhisper) -> None:
    stereo = np.stack([SHORT, noise_bursts(6, seed=7)])
    split = {"channels": "split", "vad_filter": False, "language": "de", "word_timestamps": False}
    together = assert_separate(model, stereo, TASKS, **split)
    assert together[0]["text"] != together[1]["text"]
    assert {s["speaker"] for s in together[1]["segments"]} == {"left", "right"}
    ((_, found),) = model.transcribe_many([stereo], variants=TASKS, **QUICK | split)
    assert isinstance(found, Transcript)
    for ours, alone in zip((found, *found.others), together, strict=True):
        assert not differences(ours.as_dict(), alone)


def test_mistakes(model: SlimWhisper) -> None:
    with pytest.raises(OptionError, match="there are none"):
        model.transcribe_variants(SHORT, [])
    with pytest.raises(OptionError, match="taks"):
        model.transcribe_variants(SHORT, [{"taks": "translate"}])
    with pytest.raises(OptionError, match="differ in beam_size"):
        model.transcribe_many([SHORT], variants=[{}, {"beam_size": 2}])
    for call in (model.transcribe_variants, lambda a, v: model.transcribe_many([a], variants=v)):
        with pytest.raises(OptionError, match="must not differ in channels"):
            call(SHORT, [{}, {"channels": "split"}])
    with pytest.raises(AudioError):
        model.transcribe_variants("missing.wav", TASKS)


def test_samples_are_closed_by_the_last_reader() -> None:
    closed: list[bool] = []

    class Watched(ArraySamples):
        def close(self) -> None:
            closed.append(True)

    shared = SharedSamples(Watched(SHORT), 2)
    assert len(shared) == len(SHORT) and (shared.read(5, 9) == SHORT[5:9]).all()
    shared.close()
    assert not closed
    shared.close()
    assert closed == [True]
