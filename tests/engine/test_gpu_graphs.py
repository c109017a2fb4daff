"""What a GPU forbids, or breaks: mixed devices, captures that read, graphs that fail."""

import logging
import threading

import pytest
import torch

from slimwhisper.kernels.graphs import CUDAGraphs, Graphs
from slimwhisper.model.model import Model
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.device import Forbidden
from tests.support.pretend.models import CUDA, small


def test_devices_do_not_mix() -> None:
    with pretend_cuda(count=2) as gpu:
        ours = torch.zeros(3, device="cuda:0")
        with pytest.raises(Forbidden, match="host and a GPU"):
            ours + torch.zeros(3)
        with pytest.raises(Forbidden, match="two GPUs"):
            ours + torch.zeros(3, device="cuda:1")
        with gpu.counting() as counts:
            assert ours.sum().item() == 0
        assert counts.reads.total() == 1


def record(graphs: Graphs, key: str, body) -> None:  # type: ignore[no-untyped-def]
    for _ in range(2):
        graphs.run(key, body)


def test_a_capture_reads_nothing() -> None:
    with pretend_cuda():
        graphs = Graphs(CUDAGraphs(torch.device("cuda")))
        x = torch.zeros(3, device="cuda")
        with pytest.raises(Forbidden, match="not allowed"):
            record(graphs, "reads", lambda: x.add_(float(x.sum())))


def test_graphs_after_discard_are_recorded_in_a_new_pool() -> None:
    with pretend_cuda(count=2):
        graphs = Graphs(CUDAGraphs(CUDA))
        x = torch.zeros(3, device=CUDA)
        record(graphs, "adds", lambda: x.add_(1))
        graphs.discard()
        record(graphs, "adds", lambda: x.add_(1))
        graphs.run("adds", lambda: x.add_(1))
        assert graphs.failure is None and x.tolist() == [5, 5, 5]


def test_other_threads_work_beside_a_capture() -> None:
    with pretend_cuda():
        graphs = Graphs(CUDAGraphs(torch.device("cuda")))
        x, y = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")

        def body() -> None:
            x.add_(1)
            other = threading.Thread(target=lambda: y.copy_(torch.ones(3)))
            other.start()
            other.join()

        record(graphs, "adds", body)
        graphs.run("adds", lambda: None)
        assert graphs.failure is None and x.tolist() == [3, 3, 3] and y.tolist() == [1, 1, 1]


def test_a_capture_that_cannot_be_ended_leaves_its_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pretend_cuda() as gpu, caplog.at_level(logging.WARNING):
        graphs = Graphs(CUDAGraphs(torch.device("cuda")))
        x = torch.zeros(3, device="cuda")
        gpu.breaks = True
        record(graphs, "adds", lambda: x.add_(1))
        assert graphs.failure is not None and "invalid" in graphs.failure
        assert gpu.stream.number == 0 and not gpu.capturing
        assert "cannot be recorded" in caplog.text


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_runs_out_is_reported(recorded: bool) -> None:
    """A kernel is not given up for a way that needs more."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pretend_cuda(count=2):
        model = Model(small(), CUDA, torch.float32)
        with pytest.raises(torch.OutOfMemoryError):
            if recorded:
                graphs = Graphs(CUDAGraphs(CUDA))
                graphs._seen.add("full")
                graphs.run("full", full)
            else:
                model.plan.kernels._table["latent"] = [("triton", full)]
                model.plan.kernels._run("latent")
        assert model.plan.kernels.failures == {}
