"""One engine for several recordings and calls: turns, what is kept, and the same texts as alone."""

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError
from slimwhisper.longform import engine_pool as module
from slimwhisper.longform.batch import Batch
from slimwhisper.longform.engine_pool import EnginePool, make_engine, search_of, slot_bytes
from slimwhisper.longform.recording import Recording
from slimwhisper.model.model import Model
from slimwhisper.option_checks import make_options
from slimwhisper.types import Transcript
from tests.support.parity import differences
from tests.support.pretend import models
from tests.support.pretend.cuda import pretend_cuda
from tests.support.sounds import noise_bursts
from tests.support.windows import DIMS, random_model

QUICK: dict[str, Any] = {"language": "en", "sample_len": 5}
AUDIO = [noise_bursts(seconds, seed=i) for i, seconds in enumerate((4, 34, 12))]


@pytest.fixture(scope="module")
def network() -> Model:
    return random_model()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """(slots, beams) of the engines that are made."""
    sizes: list[tuple[int, int | None]] = []

    def noted(model: Model, search: Search, slots: int) -> Engine:
        sizes.append((slots, search.beams))
        return make_engine(model, search, slots)

    monkeypatch.setattr(module, "make_engine", noted)
    return sizes


def transcribe_all(model: SlimWhisper, **options: Any) -> list[dict[str, Any]]:
    results = {}
    for source, result in model.transcribe_many(AUDIO, **{**QUICK, **options}):
        assert isinstance(result, Transcript)
        results[id(source)] = result.as_dict()
    return [results[id(audio)] for audio in AUDIO]


def test_calls_share_one_engine(network: Model, made: list[tuple[int, int | None]]) -> None:
    model = SlimWhisper(network)
    window = torch.randn(80, 3000, generator=torch.Generator().manual_seed(0))
    for audio in AUDIO:
        model.transcribe(audio, temperature=0, **QUICK)
        model.decode(window, sample_len=4, language="en", fp16=False)
    assert made == [(1, None)]
    transcribe_all(model, temperature=0)
    transcribe_all(model, temperature=0)  # of the same size
    model.transcribe(AUDIO[0], temperature=0, **QUICK)  # one window at a time: any size
    assert made == [(1, None), (4, None)]
    model.transcribe(AUDIO[0], temperature=0, beam_size=2, **QUICK)
    assert made[2:] == [(1, 2)]
    model.release()
    model.transcribe(AUDIO[0], temperature=0, beam_size=2, **QUICK)
    assert made[3:] == [(1, 2)]


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"temperature": (0.0, 0.8), "best_of": 3}, {"beam_size": 3}],
    ids=["greedy", "samples", "beams"],
)
def test_results_do_not_depend_on_the_calls_before(
    network: Model, options: dict[str, Any], made: list[tuple[int, int | None]]
) -> None:
    """Equal numbers, not only equal texts."""
    failing = {"logprob_threshold": 0.0, "no_speech_threshold": None}  # every temperature is tried
    chosen = {"temperature": 0, **QUICK, **failing, **options}
    alone = [SlimWhisper(network).transcribe(audio, **chosen) for audio in AUDIO[:2]]
    model = SlimWhisper(network)
    together = transcribe_all(model, **chosen)
    assert [model.transcribe(audio, **chosen) for audio in AUDIO[:2]] == alone
    assert len(made) == 3
    for ours, other in zip(together, alone, strict=False):
        assert not differences(ours, other)


def test_one_window_at_a_time_in_a_larger_engine(network: Model) -> None:
    model = SlimWhisper(network)
    transcribe_all(model, temperature=0)
    kept = model._engines._idle_engine
    assert kept is not None and kept.slots == 4
    busy = []
    results = model.transcribe_many(
        iter(AUDIO),
        batch_size=1,
        temperature=0,
        on_segments=lambda *_: busy.append(kept.slots - kept.free),
        **QUICK,
    )
    assert len(list(results)) == 3
    assert busy and max(busy) <= 1


def test_an_engine_with_windows_in_it_is_not_kept(
    network: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SlimWhisper(network)
    results = model.transcribe_many(AUDIO, temperature=0, **QUICK)
    assert isinstance(results, Iterator)
    next(results)
    # whether the others are still decoded depends on how fast their readers are
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "idle", False)
        results.close()  # type: ignore[attr-defined]
    assert model._engines._idle_engine is None and model._engines.nbytes() == 0


def test_an_engine_after_an_error_is_not_kept(
    network: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SlimWhisper(network)
    model.transcribe(AUDIO[0], temperature=0, **QUICK)
    assert model._engines.nbytes() > 0

    def fails(self: Engine) -> None:
        raise RuntimeError("the driver is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", fails)
        with pytest.raises(RuntimeError, match="the driver is gone"):
            model.transcribe(AUDIO[0], temperature=0, **QUICK)
    assert model._engines._idle_engine is None
    assert model.transcribe(AUDIO[0], temperature=0, **QUICK)["language"] == "en"


def test_calls_at_the_same_time_have_engines_of_their_own(network: Model) -> None:
    engines = EnginePool(network)
    lent: list[Engine] = []
    both = threading.Barrier(2)

    def borrow(slots: int) -> None:
        with engines.lend(Search(), slots) as engine:
            lent.append(engine)
            both.wait(20)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(borrow, (1, 3)))
    assert len({id(engine) for engine in lent}) == 2
    assert (
        engines._idle_engine is not None and engines._idle_engine.batch_size == 3
    )  # the larger one


def test_the_idle_engine_makes_room_first(network: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = EnginePool(network)
    with engines.lend(Search(), 2) as engine:
        kept = weakref.ref(engine)
        del engine
    assert kept() is not None

    def full(*_: object, **__: object) -> Engine:
        assert kept() is None, "still there while another is allocated"
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(module, "Engine", full)
    with (
        pytest.raises(OptionError, match="batch_size 8: not enough memory on cpu"),
        engines.lend(Search(), 8),
    ):
        pass
    assert engines.nbytes() == 0


def test_bytes_of_a_slot(network: Model) -> None:
    """As an engine allocates them, once both of its lanes are there."""
    for search in (Search(), Search(samples=3), Search(beams=4), Search(beams=2, samples=3)):
        engine = make_engine(network, search, 6)
        assert engine.nbytes() <= 6 * slot_bytes(network, search)
        if search == Search():
            assert engine.nbytes() == 6 * slot_bytes(network, search)


def test_memory_for_texts(network: Model) -> None:
    """Pages for as many bytes as the model allows; too few are an error that names the flag."""
    page = network.dims.n_text_layer * 16 * network.dims.n_text_state * 4
    whole = network.dims.n_text_ctx // 16
    assert make_engine(network, Search(), 6).pool.count == 6 * whole
    network.cache_memory = 2 * whole * page
    try:
        assert make_engine(network, Search(), 6).pool.count == 2 * whole
        with pytest.raises(OptionError, match=r"cache_memory.* may need 84"):
            make_engine(network, Search(beams=3), 6)
        model = SlimWhisper(network)
        (one,) = list(model.transcribe_many(AUDIO[:1], batch_size=2, temperature=0, **QUICK))
        assert (
            isinstance(one[1], Transcript)
            and 0 < model.text_memory().peak_bytes <= 2 * whole * page
        )
    finally:
        network.cache_memory = None


OPTIONS = make_options(DIMS, "random", language="en", sample_len=5, temperature=0.0)
SEARCH = search_of(OPTIONS)
SHORT = ArraySamples(noise_bursts(0.8, 1))


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


def alone(network: Model, seconds: float, seed: int) -> str:
    batch: Batch[str] = Batch(make_engine(network, SEARCH, 1))
    batch.add("it", recording(seconds, seed))
    return run(batch)[0][1]


def test_a_short_recording_does_not_wait_for_a_long_one(network: Model) -> None:
    """One slot: they take turns, window by window, and read as alone."""
    batch: Batch[str] = Batch(make_engine(network, SEARCH, 1))
    for source, seconds, seed in (("long", 65, 1), ("longer", 95, 2)):
        batch.add(source, recording(seconds, seed))
    batch.fill()
    for _ in range(6):
        batch.step()
    batch.add("short", recording(20, 3))
    ended = run(batch)
    assert [source for source, _ in ended] == ["short", "long", "longer"]
    texts = dict(ended)
    assert texts["long"] == alone(network, 65, 1)
    assert texts["longer"] == alone(network, 95, 2)
    assert texts["short"] == alone(network, 20, 3)


def test_a_gpu_encodes_ahead_for_a_batch() -> None:
    """Of as many windows as the engine decodes, but not of fewer."""
    with pretend_cuda():
        network = models.made(("e", "x"), torch.device("cuda"), layers=1)
        pool = EnginePool(network)
        for slots, filled in ((3, 8), (1, 1)):
            with pool.lend(SEARCH, slots) as engine:
                assert engine.batch_size == 3 and engine.slots == 27
                batch: Batch[str] = Batch(engine, None, slots)
                for seed in range(8):
                    batch.add(str(seed), Recording(SHORT, network.dims, OPTIONS))
                batch.fill()
                assert engine.slots - engine.room == filled
                assert batch.slots == batch.filled == slots
                assert len(run(batch)) == 8


def test_pieces_of_one_recording_leave_room_for_others(
    network: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = [(i * 320_000, i * 320_000 + 256_000) for i in range(5)]  # two are over 30 s
    monkeypatch.setattr("slimwhisper.longform.recording.speech_regions", lambda *_, **__: regions)
    batch: Batch[str] = Batch(make_engine(network, SEARCH, 2))
    batch.add("pieces", recording(100, 1, parallel=True))
    batch.fill()
    batch.step()
    batch.add("short", recording(20, 3))
    assert [source for source, _ in run(batch)] == ["short", "pieces"]


def test_giving_up_frees_the_slots(network: Model) -> None:
    batch: Batch[str] = Batch(make_engine(network, SEARCH, 2))
    given_up = [recording(100, seed) for seed in (1, 2, 4)]
    for each in given_up:
        batch.add("given up", each)
    batch.fill()
    batch.step()
    batch.add("kept", recording(20, 3))
    for each in given_up:
        batch.drop(each)
    assert run(batch) == [("kept", alone(network, 20, 3))]


def test_nothing_to_hear(network: Model) -> None:
    batch: Batch[str] = Batch(make_engine(network, SEARCH, 1))
    result = batch.add("tick", Recording(ArraySamples(np.zeros(10, np.float32)), DIMS, OPTIONS))
    assert result is not None and result.text == "" and not batch.running
