"""Bodies that are recorded once and replayed: what a GPU forbids, and what breaks a capture; and
half of a GPU for a stream.
"""

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from slimwhisper.devices import bucket_of
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Search
from slimwhisper.kernels.gpu import driver
from slimwhisper.kernels.graphs import MAX_FAILURES, CUDAGraphs, Graphs, stream_of
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.device import Forbidden
from tests.support.windows import SEARCHES, assert_same, decode, random_model, run, windows

CUDA = torch.device("cuda", 0)
OTHER = torch.device("cuda", 1)
# weights whose texts stay the same where rounding changes logits by 2e-5 of the largest
NO_NEAR_TIE = 6


class Sometimes:
    """A recorder that fails so many times."""

    failing = 0
    error: Exception = RuntimeError("operation not permitted when stream is capturing\nmore")

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        self.failing -= 1
        if self.failing >= 0:
            raise self.error
        return body


def test_a_failure_ends_graphs_of_its_key_only_and_after_three(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With one warning; what cannot be recorded runs anew each time."""
    recorder, ran = Sometimes(), list[str]()
    graphs = Graphs(recorder)

    def run(key: str, times: int, failing: int) -> None:
        recorder.failing = failing
        for _ in range(times):
            graphs.run(key, lambda: ran.append(key))

    with caplog.at_level(logging.WARNING):
        run("first", 5, 2)
        assert graphs.replays == 2
        run("second", 9, 100)
        assert recorder.failing == 100 - MAX_FAILURES
        run("third", 3, 0)
    assert ran == ["first"] * 5 + ["second"] * 9 + ["third"] * 3
    assert graphs.recorded.keys() == {"first", "third"}
    (record,) = caplog.records
    assert "cannot be recorded" in record.message and "more" not in record.message


def test_buckets() -> None:
    found = [bucket_of(n, 64) for n in (1, 2, 3, 5, 8, 9, 16, 17, 63, 64)]
    assert found == [1, 2, 4, 8, 8, 16, 16, 24, 64, 64]
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
    engine = Engine(model, 3, search, 4, CUDAGraphs(model.device))
    done = run(engine, dict(enumerate(asked)))
    graphs = engine.group_runners[0].graphs
    assert graphs.replays > 0 and graphs.failure is None
    found = [a for i in range(len(asked)) for a in done[i] if isinstance(a, Decoded)]
    assert_same(found, decode(random_model(seed=NO_NEAR_TIE), asked, 3, search))


# -- on a pretend GPU ------------------------------------------------------------------------------


def record(graphs: Graphs, body: Callable[[], Any], times: int = 2) -> None:
    for _ in range(times):
        graphs.run("key", body)


def test_what_a_gpu_forbids() -> None:
    with pretend_cuda(count=2) as gpu:
        x, stream = torch.zeros(3, device=CUDA), torch.cuda.Stream()
        with pytest.raises(Forbidden, match="host and a GPU"):
            x + torch.zeros(3)
        with pytest.raises(Forbidden, match="two GPUs"):
            x + torch.zeros(3, device=OTHER)
        with gpu.counting() as counts:
            assert x.sum().item() == 0
        assert counts.reads.total() == 1
        with torch.cuda.stream(stream), pytest.raises(Forbidden, match="another stream"):
            x + 1
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x + 1
        with pytest.raises(Forbidden, match="not allowed"):
            record(Graphs(CUDAGraphs(CUDA)), lambda: x.add_(float(x.sum())))


def test_graphs_after_discard_are_recorded_in_a_new_pool() -> None:
    with pretend_cuda(count=2):
        graphs, x = Graphs(CUDAGraphs(OTHER)), torch.zeros(3, device=OTHER)
        record(graphs, lambda: x.add_(1))
        graphs.discard()
        record(graphs, lambda: x.add_(1), 2)
        graphs.run("key", lambda: x.add_(1))
        assert graphs.failure is None and x.tolist() == [5, 5, 5]


def test_other_threads_and_no_garbage_beside_a_capture() -> None:
    seen: list[bool] = []
    with pretend_cuda():
        graphs = Graphs(CUDAGraphs(CUDA))
        x, y = torch.zeros(3, device=CUDA), torch.zeros(3, device=CUDA)

        def body() -> None:
            x.add_(1)
            seen.append(gc.isenabled())
            other = threading.Thread(target=lambda: y.copy_(torch.ones(3)))
            other.start()
            other.join()

        record(graphs, body, 3)
        assert graphs.failure is None and x.tolist() == [3, 3, 3] and y.tolist() == [1, 1, 1]
    assert seen == [True, False] and gc.isenabled()


def test_a_capture_that_cannot_be_ended_leaves_its_stream() -> None:
    with pretend_cuda() as gpu:
        graphs, x = Graphs(CUDAGraphs(CUDA)), torch.zeros(3, device=CUDA)
        gpu.breaks = True
        record(graphs, lambda: x.add_(1))
        assert graphs.failure is not None and "invalid" in graphs.failure
        assert gpu.stream.number == 0 and not gpu.capturing


@pytest.mark.parametrize("freed", [True, False])
def test_memory_that_runs_out_is_reported(freed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless torch holds some. A graph is not given up for a way that needs more."""
    emptied, recorder = Mock(), Sometimes()
    monkeypatch.setattr(torch.cuda, "empty_cache", emptied)
    recorder.error, recorder.failing = torch.OutOfMemoryError("CUDA out of memory"), 2 - freed
    graphs = Graphs(recorder)
    with nullcontext() if freed else pytest.raises(torch.OutOfMemoryError):
        record(graphs, lambda: None)
    assert emptied.call_count == 1 and graphs.failure is None


def test_graphs_of_other_roles_and_engines_have_other_capture_streams() -> None:
    """However many were captured, in two threads, since torch has 32 streams of a priority."""
    found: list[Graphs] = []

    def streams_of(graphs: Graphs) -> set[int]:
        """The numbers of the streams that its graphs were captured on."""
        return {recorded._graph.stream.number for recorded in graphs.recorded.values()}

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
            graphs, x = Graphs(CUDAGraphs(CUDA)), torch.zeros(3, device=CUDA)
            record(graphs, lambda x=x: x.add_(1))
            assert streams_of(graphs) == first
            del graphs


# Half of a GPU's multiprocessors for a stream


@pytest.mark.parametrize(("capability", "bindings"), [((8, 9), True), ((9, 0), False)])
def test_hopper_alone_is_divided(
    capability: tuple[int, int], bindings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(driver, "has_bindings", lambda: bindings)
    assert not driver.can_divide(CUDA)


@pytest.mark.gpu
def test_a_stream_on_half_of_the_multiprocessors() -> None:
    if not (torch.cuda.is_available() and driver.can_divide(CUDA)):
        pytest.skip("no GPU whose multiprocessors can be divided")
    stream = driver.partition_stream(CUDA)
    x = torch.randn(4096, 4096, device=CUDA)
    whole = x @ x
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        half = x @ x
    torch.cuda.synchronize()
    torch.testing.assert_close(half, whole, rtol=1e-4, atol=1e-2)
