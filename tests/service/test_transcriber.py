"""Several recordings, calls and threads: turns, what is kept, and the same texts as alone."""

import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.cores import use_threads, usual_threads
from slimwhisper.engine import engine as engine_module
from slimwhisper.engine.engine import Engine, make_engine, slot_bytes
from slimwhisper.engine.requests import Align, Search
from slimwhisper.errors import OptionError
from slimwhisper.longform.passes import Passes
from slimwhisper.longform.recording import Recording
from slimwhisper.longform.requests import search_of
from slimwhisper.model.model import Model
from slimwhisper.option_group import ModelFacts
from slimwhisper.options import make_options
from slimwhisper.recordings.speech import SpeechRecording
from slimwhisper.recordings.transcribe import RecordingSource
from slimwhisper.service import transcriber as module
from slimwhisper.service.shared_engine import Submission
from slimwhisper.service.source import Failed, Finished, Windows
from slimwhisper.service.transcriber import Call, Transcriber
from slimwhisper.types import Transcript
from tests.support.parity import differences, transcribe_each
from tests.support.pretend import models
from tests.support.pretend.cuda import pretend_cuda
from tests.support.sounds import noise_bursts
from tests.support.waiting import eventually, forked
from tests.support.windows import DIMS, VOCABULARY, random_model, windows

QUICK: dict[str, Any] = {"language": "en", "sample_len": 5}
AUDIO = [noise_bursts(seconds, seed=i) for i, seconds in enumerate((4, 34, 12))]


@pytest.fixture(scope="module")
def network() -> Model:
    return random_model()


@pytest.fixture
def model(network: Model) -> SlimWhisper:
    return SlimWhisper(network)


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
    return transcribe_each(model, AUDIO, **{**QUICK, **options})


def test_calls_share_one_engine(model: SlimWhisper, made: list[tuple[int, int | None]]) -> None:
    """It is made again for more slots or another search, and never for fewer: one is kept."""
    window = torch.randn(80, 3000, generator=torch.Generator().manual_seed(0))
    for audio in AUDIO[:2]:
        model.transcribe(audio, temperature=0, **QUICK)
        model.decode(window, sample_len=4, language="en", fp16=False)
    assert len(made) == 1
    for _ in range(2):
        transcribe_all(model, temperature=0)
        assert len(made) == 2 and made[-1][0] > 1
    busy, (kept,) = [], model.transcriber.engines
    results = model.transcribe_many(
        iter(AUDIO),
        batch_size=1,  # in a larger engine: one at a time
        temperature=0,
        on_segments=lambda *_: busy.append(kept.slots - kept.scheduler.free),
        **QUICK,
    )
    assert len(list(results)) == 3 and busy and max(busy) <= 1 and len(made) == 2
    model.transcribe(AUDIO[0], temperature=0, beam_size=2, **QUICK)
    assert made[2:] == [(1, 2)] and len(model.transcriber.engines) == 1
    model.release()
    assert not model.transcriber.engines


def test_a_call_that_is_given_up_leaves_nothing(model: SlimWhisper) -> None:
    """Whatever is still in the engine is nobody's; the next call reads as alone."""
    alone = transcribe_all(model, temperature=0)
    results = model.transcribe_many(AUDIO, temperature=0, **QUICK)
    assert isinstance(results, Iterator)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert not model.transcriber.used
    again = transcribe_all(model, temperature=0)
    assert list(map(differences, again, alone)) == [[], [], []]
    (engine,) = model.transcriber.engines
    assert engine.idle and engine.room == engine.slots


def test_an_engine_after_an_error_is_not_kept(model: SlimWhisper) -> None:
    model.transcribe(AUDIO[0], temperature=0, **QUICK)
    assert model.transcriber.nbytes() > 0
    gone = RuntimeError("the driver is gone")
    with patch.object(Engine, "step", side_effect=gone), pytest.raises(RuntimeError, match="gone"):
        model.transcribe(AUDIO[0], temperature=0, **QUICK)
    assert not model.transcriber.engines
    assert model.transcribe(AUDIO[0], temperature=0, **QUICK)["language"] == "en"


def test_threads_share_an_engine(network: Model, made: list[tuple[int, int | None]]) -> None:
    """It grows with the calls that there are, and each call gets its own texts."""
    model, begin = SlimWhisper(network), threading.Barrier(3)
    alone = [dict(SlimWhisper(network).transcribe(a, temperature=0, **QUICK)) for a in AUDIO]
    made.clear()

    def work(audio: np.ndarray) -> dict[str, Any]:
        begin.wait(20)
        return dict(model.transcribe(audio, temperature=0, **QUICK))

    with ThreadPoolExecutor(3) as threads:
        texts = list(threads.map(work, AUDIO))
    assert list(map(differences, texts, alone)) == [[], [], []]
    assert max(slots for slots, _ in made) > 1, "several windows together"
    assert not model.transcriber.used and len(model.transcriber.engines) == 1


def test_kinds_of_search_at_the_same_time(model: SlimWhisper) -> None:
    """In the library they do not wait for each other."""
    with Call(model.transcriber, SEARCH, 1) as call:
        submit(call, "it", recording(20, 3))
        call.transcriber.step()
        model.transcribe(AUDIO[0], temperature=0, beam_size=2, **QUICK)
        assert len(model.transcriber.engines) == 2
        assert [source for source, _ in run(call)] == ["it"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), MemoryError()])
def test_the_idle_engine_makes_room_first(
    model: SlimWhisper, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    transcribe_all(model, batch_size=2, temperature=0)
    kept = weakref.ref(model.transcriber.engines[0])

    def full(*_: object, **__: object) -> Engine:
        assert kept() is None, "still there while another is allocated"
        raise error

    monkeypatch.setattr(engine_module, "Engine", full)
    with pytest.raises(OptionError, match="batch_size 8: not enough memory on cpu"):
        list(model.transcribe_many(iter(AUDIO), batch_size=8, **QUICK))
    assert model.transcriber.nbytes() == 0 and not model.transcriber.used


@pytest.mark.parametrize(
    ("where", "name"), [(Engine, "step"), (RecordingSource, "next_window"), (module, "make_engine")]
)
def test_an_interrupt_ends_all_that_is_in_the_engine(
    model: SlimWhisper, where: Any, name: str
) -> None:
    """Ctrl-C: the thread that it comes to raises it, others get an error, and all is as new."""
    alone = model.transcribe(AUDIO[1], temperature=0, **QUICK)
    model.release()
    other = Call(model.transcriber, SEARCH, 1)
    other.submit(RecordingSource(recording(20, 3)), "other")

    with patch.object(where, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        model.transcribe(AUDIO[1], temperature=0, **QUICK)
    (*_, ended) = other.run()
    assert isinstance(ended, Failed if name != "make_engine" else Failed | Finished)
    assert not isinstance(ended, Failed) or "interrupted" in str(ended.error)
    assert not model.transcriber.used
    assert model.transcribe(AUDIO[1], temperature=0, **QUICK) == alone
    model.release()
    assert not model.transcriber.engines, "nobody keeps it"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("stepping", [False, True])
def test_a_fork_goes_on_alone(network: Model, stepping: bool) -> None:
    """In the child, calls work, though none of torch's other threads is there; those in an engine
    that was in the middle of a step fail.
    """
    transcriber = Transcriber(network)
    call = Call(transcriber, SEARCH, 1)
    call.submit(RecordingSource(recording(20, 3)))
    transcriber.step()
    reached, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transcriber.paused():
            reached.set()
            go.wait(20)

    if stepping:
        threading.Thread(target=hold, daemon=True).start()
        assert reached.wait(20)
    use_threads(2)
    torch.ones(10**6).exp()

    def goes_on() -> bool:
        torch.ones(10**6).exp()
        *_, last = call.run()
        return isinstance(last, Failed if stepping else Finished)

    went_on = forked(goes_on)
    go.set()
    use_threads(usual_threads())
    assert went_on()
    assert isinstance(list(call.run())[-1], Finished)


def test_no_thread_stays(model: SlimWhisper) -> None:
    before = threading.active_count()
    model.transcribe(AUDIO[0], temperature=0, **QUICK)
    list(model.transcribe_many(iter(AUDIO), batch_size=2, temperature=0, **QUICK))
    # the readers' threads end by themselves
    assert eventually(lambda: threading.active_count() <= before)


def test_a_call_that_is_too_large_fails_alone(
    model: SlimWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bounded(model: Model, search: Search, slots: int) -> Engine:
        if slots > 4:
            raise OptionError("not enough memory")
        return make_engine(model, search, slots)

    monkeypatch.setattr(module, "make_engine", bounded)
    first = model.transcribe_many(iter(AUDIO), batch_size=2, temperature=0, **QUICK)
    results = [next(first)]
    for sources, why in ((iter(AUDIO), "not enough memory"), ("talk.wav", "give a list")):
        with pytest.raises(OptionError, match=why):
            list(model.transcribe_many(sources, batch_size=64, temperature=0, **QUICK))
    results += first
    assert len(results) == 3 and all(isinstance(r, Transcript) for _, r in results)


@pytest.mark.parametrize("aligns", [False, True])
def test_a_request_that_is_too_long_fails_alone(network: Model, aligns: bool) -> None:
    call, long = call_of(network, 2), (VOCABULARY.sot,) * (DIMS.n_text_ctx + 1)
    (window,), begun = windows(1), (VOCABULARY.sot,)
    source: Any = Windows([replace(window, prompt=begun if aligns else long)])
    source.accept = lambda *_: Align(begun, long[:-2])
    call.submit(source, "long")
    submit(call, "good", recording(20, 3))
    ends = [type(event) for event in call.run() if isinstance(event, Failed | Finished)]
    assert ends == [Failed, Finished]


def test_each_step_is_told(model: SlimWhisper) -> None:
    """To whoever asks; the last one, too."""
    steps = list[tuple[int, int]]()
    model.transcribe_many(AUDIO, **QUICK).close()  # type: ignore[attr-defined]
    with patch.object(Engine, "step", autospec=True, side_effect=Engine.step) as step:
        results = model.transcribe_many(
            AUDIO, on_step=lambda filled, slots, _: steps.append((filled, slots)), **QUICK
        )
        assert len(list(results)) == 3
    assert len(steps) == step.call_count and all(1 <= filled <= slots for filled, slots in steps)


def test_a_finalizer_may_cancel_in_the_middle_of_a_step(
    network: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the garbage collector does, in the thread that makes the step."""
    transcriber = Transcriber(network)
    dropped, kept = (Call(transcriber, SEARCH, 1) for _ in range(2))
    dropped.submit(RecordingSource(recording(95, 2)))
    kept.submit(RecordingSource(recording(20, 3)))
    step = Engine.step

    def collects(self: Engine) -> Any:
        dropped.close()
        return step(self)

    monkeypatch.setattr(Engine, "step", collects)
    assert isinstance(list(kept.run())[-1], Finished)
    assert not dropped.submissions and not transcriber.used


def test_what_is_cancelled_leaves_no_trace(network: Model) -> None:
    """Before a step is made, and while another thread gives the lock back."""
    transcriber = Transcriber(network)
    call, lock = Call(transcriber, SEARCH, 1), transcriber.lock

    @contextmanager
    def closes(wait: bool = True) -> Iterator[bool]:
        with lock(wait) as held:
            yield held
            if wait:
                call.close()

    call.submit(RecordingSource(recording(20, 3)))
    with patch.object(transcriber, "lock", closes), transcriber.paused():
        pass
    assert not call.submissions and not transcriber.working


def test_bytes_of_a_slot(network: Model) -> None:
    """As an engine allocates them, once both of its lanes are there."""
    for search in (Search(), Search(samples=3), Search(beams=4), Search(beams=2, samples=3)):
        engine = make_engine(network, search, 6)
        assert engine.nbytes() <= 6 * slot_bytes(network, search)
        if search == Search():
            assert engine.nbytes() == 6 * slot_bytes(network, search)


def test_memory_for_texts(network: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages for as many bytes as the model allows; too few are an error that names the flag."""
    page = network.dims.n_text_layer * 16 * network.dims.n_text_state * 4
    whole = network.dims.n_text_ctx // 16
    assert make_engine(network, Search(), 6).pool.count == 6 * whole
    monkeypatch.setattr(network, "cache_memory", (3 * whole - 1) * page)
    assert make_engine(network, Search(), 6).pool.count == 3 * whole - 1
    with pytest.raises(OptionError, match=r"cache_memory.* may need 84"):
        make_engine(network, Search(beams=3), 6)
    model = SlimWhisper(network)
    (one,) = list(model.transcribe_many(AUDIO[:1], batch_size=2, temperature=0, **QUICK))
    assert isinstance(one[1], Transcript)
    assert 0 < model.text_memory().peak_bytes <= (3 * whole - 1) * page


FACTS = ModelFacts("random", DIMS, VOCABULARY, None)
OPTIONS = make_options(FACTS, **QUICK, temperature=0.0)
SEARCH = search_of(OPTIONS)
SHORT = ArraySamples(noise_bursts(0.8, 1))


def recording(seconds: float, seed: int) -> Recording:
    return Recording(ArraySamples(noise_bursts(seconds, seed)), DIMS, OPTIONS, VOCABULARY)


def call_of(network: Model, slots: int) -> Call:
    return Call(Transcriber(network), SEARCH, slots)


def submit(call: Call, source: str, *which: Recording) -> list[Submission]:
    return [call.submit(RecordingSource(each), source) for each in which]


def run(call: Call) -> list[tuple[str, str]]:
    """(source, text) in the order in which they end."""
    ended = [(e.tag, e.result.text) for e in call.run() if isinstance(e, Finished)]
    for engine in call.transcriber.engines:
        assert engine.idle and engine.room == engine.slots
    return ended


def alone(network: Model, seconds: float, seed: int) -> str:
    call = call_of(network, 1)
    submit(call, "it", recording(seconds, seed))
    return run(call)[0][1]


def test_a_short_recording_does_not_wait_for_a_long_one(network: Model) -> None:
    """One slot: they take turns, window by window, and read as alone."""
    call = call_of(network, 1)
    for source, seconds, seed in (("long", 65, 1), ("longer", 95, 2)):
        submit(call, source, recording(seconds, seed))
    for _ in range(6):
        call.transcriber.step()
    submit(call, "short", recording(20, 3))
    ended = run(call)
    assert [source for source, _ in ended] == ["short", "long", "longer"]
    texts = dict(ended)
    assert texts["long"] == alone(network, 65, 1)
    assert texts["longer"] == alone(network, 95, 2)
    assert texts["short"] == alone(network, 20, 3)


@pytest.mark.slow
def test_a_gpu_encodes_ahead_for_a_batch() -> None:
    """Of as many windows as the engine decodes, but not of fewer."""
    with pretend_cuda():
        network = models.made(("e", "x"), torch.device("cuda"), layers=1)
        transcriber = Transcriber(network)
        for slots, filled in ((3, 8), (1, 1)):
            call = Call(transcriber, SEARCH, slots)
            for seed in range(8):
                submit(call, str(seed), Recording(SHORT, network.dims, OPTIONS, VOCABULARY))
            call.fill()
            (engine,) = transcriber.engines
            assert engine.batch_size == 3 and engine.slots == 27
            assert engine.slots - engine.room == call.running == filled
            (step,) = transcriber.step()
            assert step.filled == slots
            assert len(run(call)) == 8


def test_pieces_of_one_recording_leave_room_for_others(network: Model) -> None:
    regions = [(i * 320_000, i * 320_000 + 256_000) for i in range(5)]  # two are over 30 s
    call = call_of(network, 2)
    whole, passes = ArraySamples(noise_bursts(100, 1)), Passes(speech=regions)
    options = make_options(FACTS, **QUICK, temperature=0.0, parallel=True)
    submit(call, "pieces", SpeechRecording(whole, network, options, passes))
    call.transcriber.step()
    submit(call, "short", recording(20, 3))
    assert [source for source, _ in run(call)] == ["short", "pieces"]


def test_two_kinds_of_search_stay_within_the_memory_of_one(
    network: Model, made: list[tuple[int, int | None]]
) -> None:
    """That of `slots` greedy windows, in turns; beside a live source, what it leaves of it."""
    transcriber, most = Transcriber(network), 6 * slot_bytes(network, Search())
    transcriber.slots = 6
    searches = SEARCH, replace(SEARCH, beams=2)
    calls = [Call(transcriber, search) for search in searches]
    for seed in range(3):
        for call in calls:
            submit(call, "it", recording(20, seed))
            transcriber.step()
            assert 0 < transcriber.nbytes() <= most
    while transcriber.step():
        assert transcriber.nbytes() <= most
    assert [len(run(call)) for call in calls] == [3, 3]
    stream = calls[1].submit(Mock(live=True, due=None, backlog=0.0, done=False), "it")
    submit(calls[0], "it", recording(60, 3))
    transcriber.step()
    transcriber.cancel(stream)
    assert run(calls[0]) and made == [(6, None), (3, 2), (1, None), (6, None)]
