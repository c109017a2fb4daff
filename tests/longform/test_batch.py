"""Recordings that share an engine: turns, giving up, and the same texts as alone."""

import numpy as np
import pytest

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.longform.batch import Batch
from slimwhisper.longform.engines import make_engine, search_of
from slimwhisper.longform.recording import Recording
from slimwhisper.model.model import Model
from slimwhisper.options import make_options
from slimwhisper.types import Transcript
from tests.support.sounds import noise_bursts
from tests.support.windows import DIMS, random_model

OPTIONS = make_options(DIMS, "random", language="en", sample_len=5, temperature=0.0)
SEARCH = search_of(OPTIONS)


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model()


def recording(seconds: float, seed: int, **options: object) -> Recording:
    chosen = make_options(DIMS, "random", language="en", sample_len=5, temperature=0.0, **options)
    return Recording(ArraySamples(noise_bursts(seconds, seed)), DIMS, chosen)


def run(batch: Batch[str]) -> list[tuple[str, str]]:
    """(source, text) in the order in which they end."""
    ended = []
    while batch.running:
        batch.fill()
        for source, outcome in batch.step():
            assert isinstance(outcome, Transcript)
            ended.append((source, outcome.text))
    assert batch.engine.idle and batch.engine.free == batch.engine.slots
    return ended


def alone(model: Model, seconds: float, seed: int) -> str:
    batch: Batch[str] = Batch(make_engine(model, SEARCH, 1))
    batch.add("it", recording(seconds, seed))
    return run(batch)[0][1]


def test_a_short_recording_does_not_wait_for_a_long_one(model: Model) -> None:
    """One slot: they take turns, window by window, and read as alone."""
    batch: Batch[str] = Batch(make_engine(model, SEARCH, 1))
    for source, seconds, seed in (("long", 65, 1), ("longer", 95, 2)):
        batch.add(source, recording(seconds, seed))
    batch.fill()
    for _ in range(6):
        batch.step()
    batch.add("short", recording(20, 3))
    ended = run(batch)
    assert [source for source, _ in ended] == ["short", "long", "longer"]
    texts = dict(ended)
    assert texts["long"] == alone(model, 65, 1)
    assert texts["longer"] == alone(model, 95, 2)
    assert texts["short"] == alone(model, 20, 3)


def test_pieces_of_one_recording_leave_room_for_others(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = [(i * 320_000, i * 320_000 + 240_000) for i in range(5)]
    monkeypatch.setattr("slimwhisper.longform.recording.speech_regions", lambda *_, **__: regions)
    batch: Batch[str] = Batch(make_engine(model, SEARCH, 2))
    batch.add("pieces", recording(100, 1, parallel=True))
    batch.fill()
    batch.step()
    batch.add("short", recording(20, 3))
    assert [source for source, _ in run(batch)] == ["short", "pieces"]


def test_giving_up_frees_the_slots(model: Model) -> None:
    batch: Batch[str] = Batch(make_engine(model, SEARCH, 2))
    given_up = [recording(100, seed) for seed in (1, 2, 4)]
    for each in given_up:
        batch.add("given up", each)
    batch.fill()
    batch.step()
    batch.add("kept", recording(20, 3))
    for each in given_up:
        batch.drop(each)
    assert run(batch) == [("kept", alone(model, 20, 3))]


def test_nothing_to_hear(model: Model) -> None:
    batch: Batch[str] = Batch(make_engine(model, SEARCH, 1))
    result = batch.add("tick", Recording(ArraySamples(np.zeros(10, np.float32)), DIMS, OPTIONS))
    assert result is not None and result.text == "" and not batch.running
