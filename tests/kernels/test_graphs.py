"""Steps that are recorded once and replayed: the same texts, nothing read back, no stale number."""

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.filters import WIDTH
from slimwhisper.engine.requests import Decoded, Search
from slimwhisper.kernels.graphs import MAX_FAILURES, CUDAGraphs, Graphs, stream_of
from slimwhisper.kernels.memory import bucket_of
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.models import assert_recorded_like_a_cpu, made, requests
from tests.support.windows import (
    CPU,
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


@pytest.mark.parametrize(("search", "temperatures"), [SEARCHES[0], SEARCHES[-1]])
def test_replayed_steps_give_the_same(search: Search | None, temperatures: Sequence[float]) -> None:
    """Slots are refilled, texts end at different times, rows draw and do not."""
    graphs = assert_recorded_like_a_cpu(requests(3, temperatures), search)
    assert graphs.replays > 2 * len(graphs.recorded), "few are recorded, many replayed"
    assert len(graphs.recorded) <= 2 * 2 * 2 * 4  # buckets, drawing or not, timestamps, extents


@pytest.mark.parametrize("forms", [("e", "x"), ("kv", "kv")])
def test_rows_share_whole_pages(forms: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams and samples that go on as copies copy a page at most; the audio stays in its slot."""
    search, temperatures = SEARCHES[-1]
    asked = [*short_windows(4, temperatures=temperatures), *short_windows(1, 60, temperatures)]
    expected = decode(short_model(forms=forms), asked, 3, search)
    engine = Engine(short_model(forms=forms), VOCABULARY, 3, search, 4)
    copied: list[int] = []
    copy = engine.runner.pages.copy

    def counted(pages: Tensor, sources: Tensor) -> None:
        copied.append(len(pages))
        copy(pages, sources)

    monkeypatch.setattr(engine.runner.pages, "copy", counted)
    done = run(engine, dict(enumerate(asked)))
    assert_same([done[i][0] for i in range(len(asked))], expected)
    assert 0 < max(copied) <= 3 * 3, "a page for each beam of three windows"
    assert engine.pool.used == 0


def test_more_banned_tokens_are_recorded_again() -> None:
    """Their buffers move: what was recorded is forgotten."""
    first, second = requests(2)
    more = torch.arange(WIDTH + 5)
    window = replace(second, rules=replace(second.rules, suppress=more))  # type: ignore[type-var]
    with pretend_cuda():
        engine = Engine(made(("e", "x"), CUDA), VOCABULARY, 1, None, 1)
        run(engine, {0: first})
        graphs = engine.group_runners[0].graphs
        assert graphs is not None
        before = dict(graphs.recorded)
        assert before
        (answer,) = run(engine, {1: window})[1]
        assert not set(before.values()) & set(graphs.recorded.values())
    assert isinstance(answer, Decoded) and not set(answer.tokens) & set(more.tolist())
    assert_same([answer], decode(made(("e", "x"), CPU), [window], 1))


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
    asked = [*windows(6, temperatures=temperatures), *windows(3, 30, temperatures)]
    engine = Engine(model, VOCABULARY, 3, search, 4, CUDAGraphs(model.device))
    done = run(engine, dict(enumerate(asked)))
    graphs = engine.group_runners[0].graphs
    assert graphs.replays > 0 and graphs.failure is None
    found = [a for i in range(len(asked)) for a in done[i] if isinstance(a, Decoded)]
    assert_same(found, decode(random_model(seed=NO_NEAR_TIE), asked, 3, search))


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
