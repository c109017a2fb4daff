"""Decode steps as CUDA graphs: recorded once for a number of rows, replayed with new contents.

A step launches about 15 small kernels per layer; for a small model the launches take longer than
the work. A graph holds a step's kernels and their addresses, so everything that changes must
lie in buffers that do not move.

cuBLAS keeps a workspace for each thread and stream, and a graph holds the address of the one that
its capture stream had. Two graphs with one workspace must not run at the same time, and torch 2.12
and later frees it with the first of them that is dropped. So each `CUDAGraphs` has a capture stream
to itself, and the streams of steps and of encoders come from pools of different priorities.
"""

import gc
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from slimwhisper.kernels.gpu import driver

logger = logging.getLogger("slimwhisper.kernels")

Body = Callable[[], None]

# torch gives the 32 streams of a priority in turns to all threads of the process
PRIORITIES = {"decoder": -1, "encoder": 0}
MAX_FAILURES = 3  # of one key

_streams: dict[tuple[int, str], torch.cuda.Stream] = {}
_unused: dict[tuple[int, str], list[torch.cuda.Stream]] = defaultdict(list)  # for captures


def stream_of(device: torch.device, role: str) -> torch.cuda.Stream:
    """The stream on which all engines of the process run a role on a device.

    One stream, so that graphs of engines in several threads never run at the same time.

    role: of `PRIORITIES`, or "beside": an encoder's on half of the GPU, if `driver.can_divide`.
    """
    key = (device.index or 0, role)
    if key not in _streams:
        _streams.setdefault(key, _new_stream(device, role))
    return _streams[key]


def _new_stream(device: torch.device, role: str) -> torch.cuda.Stream:
    if role == "beside":
        return driver.partition_stream(device)
    return torch.cuda.Stream(device, priority=PRIORITIES[role])


class CaptureStream:
    """A stream for the captures of one engine and role, used again once all its graphs are gone."""

    def __init__(self, device: torch.device, role: str) -> None:
        self._unused = _unused[device.index or 0, role]
        try:
            self.stream = self._unused.pop()
        except IndexError:
            self.stream = _new_stream(device, role)

    def __del__(self) -> None:
        if hasattr(self, "stream"):
            self._unused.append(self.stream)


class RecordedGraph:
    """A recorded graph."""

    __slots__ = ("_graph", "_stream")  # in this order: the graph goes before its stream is free

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: CaptureStream) -> None:
        self._graph, self._stream = graph, stream

    def __call__(self) -> None:
        self._graph.replay()


class Recorder(Protocol):
    """Records a body without running it; `CUDAGraphs` on a GPU."""

    def record(self, body: Body) -> Body:
        """Return a function that runs the body again, on the current contents of its buffers."""


class CUDAGraphs:
    """Records CUDA graphs that share one memory pool, as they never run at the same time."""

    def __init__(self, device: torch.device, role: str = "decoder") -> None:
        """role: as in `stream_of`."""
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.capture = CaptureStream(device, role)

    def record(self, body: Body) -> Body:
        """Other threads may use the GPU meanwhile; their launches are not recorded."""
        graph, stream = torch.cuda.CUDAGraph(), self.capture.stream
        with torch.cuda.device(self.device), _no_collection():
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):  # left even if the capture cannot be ended
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    body()
                finally:
                    graph.capture_end()
            current.wait_stream(stream)
        return RecordedGraph(graph, self.capture)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected: a graph or a kernel's module that goes during a capture ends it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graphs:
    """The recorded steps of one row group, or of an encoder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.recorded: dict[Hashable, Body] = {}
        self.replays = 0
        self.failure: str | None = None  # the last one
        self._failures: Counter[Hashable] = Counter()
        self._seen: set[Hashable] = set()
        self._outdated: list[Body] = []

    def run(self, key: Hashable, body: Body) -> None:
        """Run a body: directly the first time, and from its key's second time on as a graph.

        The first run compiles the kernels and initializes libraries; the second records. A key
        whose recording has failed `MAX_FAILURES` times runs directly from then on.
        """
        if key not in self._seen or self._failures[key] >= MAX_FAILURES:
            self._seen.add(key)
            body()
            return
        replay = self.recorded.get(key)
        if replay is None:
            try:
                replay = self.recorded[key] = self.recorder.record(body)
            except torch.OutOfMemoryError:
                # what direct runs have left to torch, which it does not take during a capture
                torch.cuda.empty_cache()
                replay = self.recorded[key] = self.recorder.record(body)
            except Exception as error:  # whatever a driver raises, it runs without graphs
                reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                if self.failure is None:
                    text = "a CUDA graph cannot be recorded, so its step is slower: %s"
                    logger.warning(text, reason)
                self.failure = reason
                self._failures[key] += 1
                body()
                return
        self.replays += 1
        replay()

    def discard(self) -> None:
        """Record every step again, because a buffer has moved. The old graphs stay in memory: torch
        frees the workspace that they share with the new ones when one of them goes.
        """
        self._outdated += self.recorded.values()
        self.recorded.clear()
