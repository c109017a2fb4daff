"""Several results for one recording: those of separate calls, and every window is encoded once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.engine.requests import Search
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.longform import recording
from slimwhisper.longform.answers import SharedSamples
from slimwhisper.longform.engine_pool import choose_pages, make_engine, memory_beside_texts
from slimwhisper.types import Transcript
from tests.support.encodings import encoded
from tests.support.parity import differences
from tests.support.sounds import noise_bursts

__all__ = ["encoded"]

QUICK: dict[str, Any] = {"temperature": 0, "sample_len": 8}
SHORT, LONG = noise_bursts(6, seed=5), noise_bursts(70, seed=6)
# no timestamp is sampled, so every window has 30 s
WHOLE: dict[str, Any] = {
    "language": "de",
    "without_timestamps": True,
    "no_speech_threshold": None,
    "suppress_tokens": ("-1", *range(50_364, 51_865)),
}
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
def test_a_translation_costs_no_encoder(
    model: SlimWhisper, encoded: list[int], options: dict[str, Any]
) -> None:
    chosen = {"language": "de", "no_speech_threshold": None} | options
    texts = model.transcribe_variants(SHORT, TASKS, **QUICK | chosen)
    shared = sum(encoded)
    assert texts[0]["text"] != texts[1]["text"]
    assert_separate(model, SHORT, TASKS, **chosen)
    # words move the windows, and each text has its own
    assert shared == 1 or ("word_timestamps" in options and shared < (sum(encoded) - shared) / 2)


def test_the_language_is_detected_once_for_all(model: SlimWhisper, encoded: list[int]) -> None:
    """It is detected with silence after a short recording, as in `whisper`: another window."""
    alone = model.transcribe(SHORT, **QUICK)
    assert sum(encoded) == 2
    encoded.clear()
    texts = model.transcribe_variants(SHORT, TASKS, **QUICK)
    assert sum(encoded) == 2 and not differences(texts[0], alone)


def test_prompts_languages_and_temperatures(model: SlimWhisper, encoded: list[int]) -> None:
    variants = [
        {"language": "de"},
        {"language": "fr"},
        {"language": "de", "initial_prompt": "Zahlen und Wörter"},
        {"language": "de", "temperature": 0.8, "seed": 4},
    ]
    model.transcribe_variants(SHORT, variants, **QUICK)
    assert encoded == [1]
    texts = assert_separate(model, SHORT, variants)
    assert len({result["text"] for result in texts}) == 4


def test_other_searches_come_after_each_other(model: SlimWhisper, encoded: list[int]) -> None:
    variants = [{"beam_size": 2}, {}, {"beam_size": 2, "task": "translate"}]
    model.transcribe_variants(SHORT, variants, language="de", **QUICK)
    assert encoded == [1]
    assert_separate(model, SHORT, variants, language="de")


def test_a_long_recording(model: SlimWhisper, encoded: list[int]) -> None:
    """Windows that begin at the same place are shared: all of them, if no timestamps move them."""
    before = model.encoder_hits
    model.transcribe_variants(LONG, TASKS, **QUICK | WHOLE)
    assert sum(encoded) == 3 and model.encoder_hits == before + 3
    assert_separate(model, LONG, TASKS, **WHOLE)
    assert_separate(model, LONG, TASKS, language="de")


def test_regions_of_speech_are_shared(
    model: SlimWhisper, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "find_speech", lambda *_: [(0, 64000), (160000, 800000)])
    variants = [dict(task, parallel=True) for task in TASKS]
    model.transcribe_variants(LONG, variants, batch_size=3, language="de", **QUICK)
    shared = sum(encoded)
    encoded.clear()
    model.transcribe(LONG, language="de", parallel=True, batch_size=3, **QUICK)
    assert shared < 2 * sum(encoded)
    assert_separate(model, LONG, variants, language="de", batch_size=3)


def test_many_recordings(model: SlimWhisper, encoded: list[int], tmp_path: Path) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"not audio")
    sources: list[Any] = [SHORT, str(bad), noise_bursts(4, seed=9), np.zeros(0, np.float32)]
    options = {"language": "de", **QUICK}
    found = list(model.transcribe_many(sources, variants=TASKS, **options))
    assert sum(encoded) == 2 and len(found) == 4
    for source, result in found:
        if source is sources[1]:
            assert isinstance(result, AudioError)
            continue
        assert isinstance(result, Transcript) and len(result.others) == 1
        for task, ours in zip(TASKS, (result, *result.others), strict=True):
            ((_, alone),) = model.transcribe_many([source], **options | task)
            assert isinstance(alone, Transcript)
            assert not differences(ours.as_dict(), alone.as_dict())


def test_nobody_else_pays(model: SlimWhisper, encoded: list[int]) -> None:
    """Where nobody asks for two results, nothing is looked up and nothing is kept."""
    for _ in range(2):
        model.transcribe(SHORT, language="de", **QUICK)
        list(model.transcribe_many([SHORT, SHORT], language="de", **QUICK))
        list(model.transcribe_many([SHORT], variants=TASKS[:1], language="de", **QUICK))
    assert sum(encoded) == 8
    model.transcribe_variants(SHORT, TASKS, language="de", **QUICK)
    kept = model._engines._idle_engine
    assert kept is not None and kept.runner.encoder.kept is None


def test_channels_are_shared(model: SlimWhisper, encoded: list[int]) -> None:
    stereo = np.stack([SHORT, noise_bursts(6, seed=7)])
    split = {"channels": "split", "vad_filter": False, "language": "de", "word_timestamps": False}
    texts = model.transcribe_variants(stereo, TASKS, **QUICK | split)
    assert sum(encoded) == 2 and texts[0]["text"] != texts[1]["text"]
    together = assert_separate(model, stereo, TASKS, **split)
    assert {s["speaker"] for s in together[1]["segments"]} == {"left", "right"}
    encoded.clear()
    ((_, found),) = model.transcribe_many([stereo], variants=TASKS, **QUICK | split)
    assert isinstance(found, Transcript) and sum(encoded) == 2
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


def test_outputs_get_the_room_that_texts_leave(
    model: SlimWhisper, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model.network
    most = Search().most_pages(network.dims.n_text_ctx, 2)
    engine = make_engine(network, Search(), 2)
    page, output = engine.runner.pages.page_bytes, 1500 * network.dims.n_audio_state * 4
    assert memory_beside_texts(network, [engine]) is None and engine.pool.count == most
    variants: list[dict[str, Any]] = [{}, {"beam_size": 2}, {"task": "translate"}]
    # greedy, with two texts side by side; beams, with one
    pages = max(most, Search(beams=2).most_pages(network.dims.n_text_ctx, 1))
    for room, count in ((3 * output, 3), (2 * output, 6), (0, 6)):
        monkeypatch.setattr(network, "cache_memory", pages * page + room)
        assert choose_pages(network, Search(), 2) == most
        model.release()
        encoded.clear()
        model.transcribe_variants(LONG, variants, **QUICK | WHOLE)
        assert sum(encoded) == count
    monkeypatch.setattr(network, "cache_memory", (most - 1) * page)
    assert choose_pages(network, Search(), 2) == most - 1
    model.release()
