"""Decode steps as CUDA graphs: recorded once for a number of rows, replayed with new contents.

A step launches about 15 small kernels per layer; for a small model the launches take longer than
the work. A graph holds a step's kernels and their addresses, so everything that changes must be
kept in buffers that do not move.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

logger = logging.getLogger("slimwhisper.kernels")

Body = Callable[[], None]


class Recorder(Protocol):
    """Records a body without running it; `CUDAGraphs` on a GPU."""

    def record(self, body: Body) -> Body:
        """Return a function that runs the body again, on the current contents of its buffers."""

    def forget(self) -> None:
        """Graphs recorded so far are going away: share no memory with them."""


class CUDAGraphs:
    """Records CUDA graphs that share one memory pool, as they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forget()

    def record(self, body: Body) -> Body:
        """Other threads may use the GPU meanwhile; what they launch is not recorded."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            stream, usual = torch.cuda.Stream(), torch.cuda.current_stream()
            stream.wait_stream(usual)
            with torch.cuda.stream(stream):  # left even if the capture cannot be ended
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    body()
                finally:
                    graph.capture_end()
            usual.wait_stream(stream)
        return graph.replay

    def forget(self) -> None:
        """Take a new pool: one whose graphs are all gone may not be captured into again."""
        self.pool = torch.cuda.graph_pool_handle()


class Graphs:
    """The recorded steps of one lane."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.recorded: dict[Hashable, Body] = {}
        self.replays = 0
        self.failure: str | None = None
        self._seen: set[Hashable] = set()

    def run(self, key: Hashable, body: Body) -> None:
        """Run a body: directly the first time, and from its key's second time on as a graph.

        The first run compiles the kernels and initializes libraries; the second records. If
        recording fails, every run is direct, after one warning.
        """
        if key not in self._seen or self.failure is not None:
            self._seen.add(key)
            body()
            return
        replay = self.recorded.get(key)
        if replay is None:
            try:
                replay = self.recorded[key] = self.recorder.record(body)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a driver raises, it runs without graphs
                self.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                logger.warning(
                    "no CUDA graphs (%s); each step is launched anew, more slowly", self.failure
                )
                body()
                return
        self.replays += 1
        replay()

    def forget(self) -> None:
        """Discard the graphs, because a buffer has moved."""
        self.recorded.clear()
        self.recorder.forget()


def bucket_of(count: int, capacity: int) -> int:
    """The number of places that a graph for `count` is recorded for: 1, 2, 4, 8, 16, 24, ..."""
    bucket = 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
    return min(bucket, capacity)
