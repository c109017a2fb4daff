"""The state of pretend GPUs: tensors, counts, streams, and the capture in progress."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Forbidden(BaseException):
    """What a GPU would refuse, or do wrongly. Not an Exception: no fall-back may hide it."""


@dataclass
class Counts:
    """What happened on the device."""

    kernels: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)  # host to device
    reads: Counter[str] = field(default_factory=Counter)  # the host waits for the device
    downloads: Counter[str] = field(default_factory=Counter)  # into pinned memory, without waiting


class GPU:
    """The state of all pretend devices, and what happens to their tensors."""

    def __init__(self) -> None:
        self.kind = "cuda"  # or "mps", "xpu"
        self.counts = Counts()
        self.log: list[Callable[[], Any]] | None = None  # of the capture in progress
        self.recorder: int | None = None  # its thread
        self.fresh: PretendGraph | None = None  # captured, and not yet replayed
        self.breaks = False  # captures cannot be ended
        self.pools: dict[Any, list[weakref.ref[PretendGraph]]] = {}
        self.streams: Counter[tuple[int, int]] = Counter()  # made, by device and priority
        self.pool: dict[tuple[int, int], PretendStream] = {}  # by device and number
        self.defaults: dict[int, PretendStream] = {}
        # downloads: stream, its clock, and what keeps the memory from being used again
        self.pending: dict[int, tuple[int, int, Tensor | None]] = {}
        self.complete: dict[int, int] = {}  # clocks that the host has waited for
        self.writers: dict[int, tuple[int, int]] = {}  # of each storage: stream, and its clock
        self.attention_shapes: set[Any] = set()  # cuDNN plans each for 0.05 to 0.4 s
        self._thread = threading.local()

    def new_pool(self) -> tuple[int, int]:
        """What `torch.cuda.graph_pool_handle` returns."""
        self.pools[handle := (0, len(self.pools) + 1)] = []
        return handle

    @property
    def stream(self) -> "PretendStream":
        """The thread's current stream on its current device."""
        return self.stream_of(self.current)

    def stream_of(self, index: int) -> "PretendStream":
        """The thread's current stream on a device."""
        chosen: PretendStream | None = getattr(self._thread, "stream", None)
        if chosen is not None and chosen.device.index == index:
            return chosen
        return self.defaults.setdefault(index, PretendStream(self, index, -index))

    @stream.setter
    def stream(self, stream: "PretendStream | None") -> None:
        self._thread.stream = stream

    @property
    def current(self) -> int:
        """The thread's current device."""
        return getattr(self._thread, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._thread.index = index

    @property
    def capturing(self) -> bool:
        return self.log is not None and self.recorder == threading.get_ident()

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """What happens within the block; it counts in `counts` as well."""
        before, self.counts = self.counts, Counts()
        try:
            yield self.counts
        finally:
            for name in ("kernels", "uploads", "reads", "downloads"):
                getattr(before, name).update(getattr(self.counts, name))
            self.counts = before

    def note(self, kind: str, name: str) -> None:
        if kind != "kernels" and self.capturing:
            raise Forbidden(f"{name} in a capture: {kind} are not allowed")
        getattr(self.counts, kind)[name] += 1

    def order(self, name: str, index: int, args: Any, written: Any) -> None:
        """Check that what a kernel reads is there by then, and note what it writes."""
        if self.capturing:  # a graph runs where it is replayed
            return
        stream = self.stream_of(index)
        for t in tree_leaves(args):
            if isinstance(t, Tensor):
                by, clock = self.writers.get(t.untyped_storage().data_ptr(), (stream.number, 0))
                if by != stream.number and stream.known.get(by, 0) < clock:
                    raise Forbidden(f"{name}: reads what another stream may still be writing")
        stream.clock += 1
        for t in tree_leaves(written):
            if isinstance(t, Tensor):
                place = t.untyped_storage().data_ptr()
                self.writers[place] = (stream.number, stream.clock)

    def launched(self, name: str, call: Callable[[], Any], out: list[Tensor]) -> None:
        """Count a kernel that has run, and record it if this thread captures."""
        if self.fresh is not None and not self.capturing:
            raise Forbidden(f"{name} between a capture and its first replay")
        self.note("kernels", name)
        if self.log is None or not self.capturing:
            return

        def again() -> None:
            for old, new in zip(out, tree_leaves(call()), strict=bool(out)):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self.log.append(again)


class PretendGraph:
    """`torch.cuda.CUDAGraph`: its operators run while they are captured, as the first replay."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.log: list[Callable[[], Any]] = []
        self.stream: PretendStream | None = None  # of its capture

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Only on a stream of its own, and so that other threads may use the device."""
        gpu = self.gpu
        if gpu.stream.number <= 0:
            raise Forbidden("a capture on the default stream")
        if gpu.stream.device.index != gpu.current:
            raise Forbidden("a capture on another device's stream")
        if capture_error_mode != "thread_local":
            raise Forbidden(f"capture mode {capture_error_mode}: other threads would break it")
        self.stream = gpu.stream
        graphs = gpu.pools.setdefault(pool, [])
        if graphs and all(graph() is None for graph in graphs):
            raise Forbidden("a capture into a pool whose graphs are all gone")
        graphs.append(weakref.ref(self))
        gpu.log, gpu.recorder = self.log, threading.get_ident()

    def capture_end(self) -> None:
        self.gpu.log = self.gpu.recorder = None
        if self.gpu.breaks:
            raise RuntimeError("CUDA error: operation failed due to a previous error: invalid")
        self.gpu.fresh = self

    def replay(self) -> None:
        gpu = self.gpu
        gpu.counts.kernels["graph"] += 1
        if gpu.fresh is self:
            gpu.fresh = None
            return
        # nothing here is a new launch, and what was made in inference mode changes in it alone
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for call in self.log:
                call()


class PretendStream:
    """`torch.cuda.Stream`. Everything runs at once, in the order of the calls; what a stream reads
    must have been written by itself, or by another one that it waited for.
    """

    def __init__(self, gpu: GPU, index: int, number: int) -> None:
        self.gpu, self.device, self.number = gpu, torch.device("cuda", index), number
        self.clock = 0  # kernels launched
        self.known: dict[int, int] = {}  # of other streams: their clocks when last waited for

    def seen(self) -> dict[int, int]:
        """All that has happened before what comes next."""
        return {**self.known, self.number: self.clock}

    def learn(self, seen: dict[int, int]) -> None:
        for number, clock in seen.items():
            self.known[number] = max(clock, self.known.get(number, 0))

    def wait_stream(self, other: "PretendStream") -> None:
        self.learn(other.seen())

    def wait_event(self, event: "PretendEvent") -> None:
        self.learn(event.seen)


class PretendEvent:
    """`torch.cuda.Event`, done at the second query."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu, self.queries = gpu, 0
        self.seen: dict[int, int] = {}

    def record(self, stream: PretendStream | None = None) -> None:
        self.seen = (stream or self.gpu.stream).seen()

    def query(self) -> bool:
        self.queries += 1
        return self.queries > 1

    def synchronize(self) -> None:
        self.gpu.note("reads", "event.synchronize")
        self.gpu.complete.update(self.seen)
