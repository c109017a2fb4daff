"""Steps that are recorded once and replayed: the same texts, nothing read back, no stale number.

What a CUDA graph does on a GPU, `OperatorRecorder` does on a CPU: it keeps the operators that ran,
with the very tensors and numbers, and runs them again.
"""

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.filters.rules import WIDTH
from slimwhisper.engine.requests import Decoded, Search
from slimwhisper.kernels.graphs import MAX_FAILURES, CUDAGraphs, Graphs, bucket_of, stream_of
from slimwhisper.model.model import Model
from tests.support.pretend.cuda import pretend_cuda
from tests.support.windows import (
    SEARCHES,
    VOCABULARY,
    assert_same,
    decode,
    random_model,
    run,
    short_model,
    short_windows,
    windows,
)

CUDA = torch.device("cuda", 0)
# weights whose texts stay the same where rounding changes logits by 2e-5 of the largest
NO_NEAR_TIE = 6
# on a GPU these wait for it, or copy from the host
SYNCHRONISING = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "lift_fresh", "unique")


class OperatorRecorder:
    """Records by running: the first replay is the run itself."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        log: list[tuple[Any, Any, Any, Any]] = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                name = func.overloadpacket.__name__
                assert name not in SYNCHRONISING, f"{name} reads from the device"
                if name.startswith("index"):
                    flags = [t for t in tree_leaves(args[1]) if isinstance(t, Tensor)]
                    assert all(t.dtype != torch.bool for t in flags), (
                        f"{func} by a mask reads from the device"
                    )
                out = func(*args, **(kwargs or {}))
                log.append((func, args, kwargs or {}, out))
                return out

        with Mode():
            body()
        self.recorded += 1
        new = True

        def replay() -> None:
            nonlocal new
            if new:
                new = False
                return
            made: dict[int, Tensor] = {}

            def current(value: Any) -> Any:
                return made.get(id(value), value) if isinstance(value, Tensor) else value

            for func, args, kwargs, out in log:
                again = func(*tree_map(current, args), **tree_map(current, kwargs))
                for old, fresh in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor):
                        made[id(old)] = fresh

        return replay


@pytest.fixture(scope="module")
def model() -> Model:
    return short_model()


@pytest.mark.parametrize(
    ("search", "temperatures"),
    [SEARCHES[0], SEARCHES[-1]],
)
def test_replayed_steps_give_the_same(
    model: Model, search: Search | None, temperatures: Sequence[float]
) -> None:
    """Slots are refilled, texts end at different times, rows draw and do not."""
    requests = [*short_windows(6, temperatures=temperatures), *short_windows(3, 30, temperatures)]
    expected = decode(model, requests, 3, search, check_every=4)
    recorder = OperatorRecorder()
    engine = Engine(model, VOCABULARY, 3, search, 4, recorder)
    done = run(engine, dict(enumerate(requests)))
    found = [answer for i in range(len(requests)) for answer in done[i]]
    assert all(isinstance(f, Decoded) for f in found)
    assert_same(found, expected)
    lanes = [lane.graphs for lane in engine.group_runners]
    replays = sum(graphs.replays for graphs in lanes)
    assert recorder.recorded == sum(len(graphs.recorded) for graphs in lanes)
    assert replays > 2 * recorder.recorded > 0, "few are recorded, many replayed"
    assert recorder.recorded <= 2 * 2 * 2 * 4  # buckets, drawing or not, timestamps or not, extents


@pytest.mark.parametrize(
    ("forms", "recorder"),
    [(("e", "x"), OperatorRecorder()), (("kv", "kv"), None)],
    ids=["e+x replayed", "kv+kv launched"],
)
def test_rows_share_whole_pages(
    forms: tuple[str, str], recorder: OperatorRecorder | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beams and samples that go on as copies copy a page at most; the audio stays in its slot."""
    search, temperatures = SEARCHES[-1]
    requests = [*short_windows(4, temperatures=temperatures), *short_windows(1, 60, temperatures)]
    expected = decode(short_model(forms=forms), requests, 3, search)
    engine = Engine(short_model(forms=forms), VOCABULARY, 3, search, 4, recorder)
    copied: list[int] = []
    copy = engine.runner.pages.copy

    def counted(pages: Tensor, sources: Tensor) -> None:
        copied.append(len(pages))
        copy(pages, sources)

    monkeypatch.setattr(engine.runner.pages, "copy", counted)
    done = run(engine, dict(enumerate(requests)))
    assert_same([done[i][0] for i in range(len(requests))], expected)
    assert 0 < max(copied) <= 3 * 3, "a page for each beam of three windows"
    assert engine.pool.used == 0


def test_more_banned_tokens_are_recorded_again(model: Model) -> None:
    """Their buffers move: what was recorded is forgotten."""
    engine = Engine(model, VOCABULARY, 1, None, 1, OperatorRecorder())
    first, second = short_windows(2, 12)
    run(engine, {0: first})
    graphs = engine.group_runners[0].graphs
    before = dict(graphs.recorded)
    assert before
    more = torch.arange(WIDTH + 5)
    window = replace(second, rules=replace(second.rules, suppress=more))
    (answer,) = run(engine, {1: window})[1]
    assert not set(answer.tokens) & set(more.tolist())
    assert not set(before.values()) & set(graphs.recorded.values())
    assert_same([answer], decode(model, [window], 1))


def test_what_cannot_be_recorded_runs_anew_each_time(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    ran: list[int] = []
    graphs = Graphs(Broken())
    with caplog.at_level(logging.WARNING):
        for i in range(4):
            graphs.run("key", lambda i=i: ran.append(i))
    assert ran == [0, 1, 2, 3] and graphs.replays == 0
    (record,) = caplog.records
    assert "a CUDA graph cannot be recorded, so its step is slower: RuntimeError" in record.message


def test_buckets() -> None:
    assert [bucket_of(n, 64) for n in (1, 2, 3, 5, 8, 9, 16, 17, 63, 64)] == [
        *(1, 2, 4, 8, 8, 16, 16, 24, 64, 64)
    ]
    assert bucket_of(9, 11) == 11 and bucket_of(3, 3) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("search", "temperatures"), SEARCHES)
def test_cuda_graphs(
    search: Search | None, temperatures: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # of the encoder's convolutions
    model = random_model(torch.device("cuda"), seed=NO_NEAR_TIE)
    requests = [*windows(6, temperatures=temperatures), *windows(3, 30, temperatures)]
    engine = Engine(model, VOCABULARY, 3, search, 4, CUDAGraphs(model.device))
    done = run(engine, dict(enumerate(requests)))
    graphs = engine.group_runners[0].graphs
    assert graphs.replays > 0 and graphs.failure is None
    found = [a for i in range(len(requests)) for a in done[i] if isinstance(a, Decoded)]
    assert_same(found, decode(random_model(seed=NO_NEAR_TIE), requests, 3, search))


def streams_of(graphs: Graphs) -> set[int]:
    """The numbers of the streams that its graphs were captured on."""
    return {recorded._graph.stream.number for recorded in graphs.recorded.values()}


def test_graphs_of_other_roles_and_engines_have_other_capture_streams() -> None:
    """However many were captured, in two threads, since torch has 32 streams of a priority."""
    found: list[Graphs] = []

    def work() -> None:
        for role in ("decoder", "encoder"):
            graphs, x = Graphs(CUDAGraphs(CUDA, role)), torch.zeros(3, device=CUDA)
            for key in [*range(40), *range(40)]:
                graphs.run(key, lambda x=x: x.add_(1))
            assert x.tolist() == [80] * 3
            found.append(graphs)

    with pretend_cuda():
        run_stream = stream_of(CUDA, "decoder").number
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        streams = [streams_of(graphs) for graphs in found]
        assert [len(numbers) for numbers in streams] == [1] * 4
        assert len(set.union(*streams, {run_stream})) == 5
        first = streams[0]
        del found[0]  # its stream is free, and its graphs are gone
        for _ in range(40):  # a dropped engine's stream is used again, and no other
            graphs = Graphs(CUDAGraphs(CUDA))
            x = torch.zeros(3, device=CUDA)
            for _ in range(2):
                graphs.run("key", lambda x=x: x.add_(1))
            assert streams_of(graphs) == first
            del graphs


def test_no_garbage_is_collected_in_a_capture() -> None:
    seen: list[bool] = []
    with pretend_cuda():
        graphs = Graphs(CUDAGraphs(CUDA))
        for _ in range(2):
            graphs.run("key", lambda: seen.append(gc.isenabled()))
    assert seen == [True, False] and gc.isenabled()


def test_a_failure_ends_graphs_of_its_key_only_and_after_three() -> None:
    class Sometimes:
        failing = 0

        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            self.failing -= 1
            if self.failing >= 0:
                raise RuntimeError("invalidated")
            return body

    recorder, count = Sometimes(), 0

    def body() -> None:
        nonlocal count
        count += 1

    graphs = Graphs(recorder)
    recorder.failing = 2
    for _ in range(5):
        graphs.run("first", body)
    assert count == 5 and graphs.replays == 2 and "first" in graphs.recorded
    recorder.failing = 100
    for _ in range(9):
        graphs.run("second", body)
    assert recorder.failing == 100 - MAX_FAILURES and "second" not in graphs.recorded
    recorder.failing = 0
    for _ in range(3):
        graphs.run("third", body)
    assert "third" in graphs.recorded and count == 17
