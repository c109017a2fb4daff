"""A pretend CUDA device: its tensors say cuda:N and live on the CPU, and what a GPU forbids raises.

    with pretend_cuda() as gpu:
        model = Model(checkpoint, torch.device("cuda", 0), torch.float16)
        with gpu.counting() as counts:
            engine.step()

Raises `Forbidden` where tensors of different devices meet, where a stream reads what another may
still be writing, and where a capture reads from or copies to the host. Counts operators, uploads
and reads. `torch.cuda.CUDAGraph` records operators with the very tensors and numbers, and replays
them into the same memory, so that whatever should have been kept in a buffer shows as a stale
result. Attention is PyTorch's: kernels are tested in tests/kernels, and on GPUs.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock, patch

import torch
from torch import Tensor

from slimwhisper.kernels import graphs
from slimwhisper.kernels.gpu import driver
from tests.support.pretend.device import GPU, Forbidden, PretendEvent, PretendGraph, PretendStream
from tests.support.pretend.operators import Functions

MEMORY = 80 << 30  # bytes of each device, all free


@contextmanager
def pretend_cuda(count: int = 1, memory: int = MEMORY, divides: bool = True) -> Iterator[GPU]:
    """`count` devices with `memory` bytes each, for this thread and those it starts. divides:
    whether their multiprocessors can be divided.
    """
    gpu = GPU()

    @contextmanager
    def device(chosen: torch.device | int) -> Iterator[None]:
        index = chosen if isinstance(chosen, int) else chosen.index
        before = gpu.current
        gpu.current = before if index is None else index
        try:
            yield
        finally:
            gpu.current = before

    @contextmanager
    def stream(chosen: PretendStream) -> Iterator[None]:
        before, index = getattr(gpu._thread, "stream", None), gpu.current
        gpu.stream, gpu.current = chosen, chosen.device.index
        try:
            yield
        finally:
            gpu.stream, gpu.current = before, index

    def current_stream(device: torch.device | None = None) -> PretendStream:
        with torch.cuda.device(device or gpu.current):
            return gpu.stream

    def make_stream(device: torch.device | None = None, priority: int = 0) -> PretendStream:
        """One of 32 of this priority, in turns: the next ones are the same again."""
        index = gpu.current if device is None or device.index is None else device.index
        gpu.streams[index, priority] += 1
        number = 1 + gpu.streams[index, priority] % 32 + 32 * -priority
        return gpu.pool.setdefault((index, number), PretendStream(gpu, index, number))

    def partition_stream(device: torch.device) -> PretendStream:
        """A new one each time."""
        index, number = device.index or 0, 1000 + len(gpu.pool)
        return gpu.pool.setdefault((index, number), PretendStream(gpu, index, number))

    def of_index(found: Any) -> Callable[..., Any]:
        """A function whose device, the last argument, must have a number, as PyTorch insists."""

        def call(*args: Any) -> Any:
            chosen = args[-1] if args else None
            if isinstance(chosen, torch.device | str) and torch.device(chosen).index is None:
                raise ValueError(f"Expected a torch.device with a specified index, got: {chosen}")
            return found

        return call

    started = threading.Thread.run

    def run_thread(self: threading.Thread) -> None:
        with Functions(gpu):
            started(self)

    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: gpu.current,
        "get_device_capability": lambda _=None: (9, 0),
        "mem_get_info": lambda _=None: (memory, memory),
        "memory_reserved": lambda _=None: 0,
        "memory_allocated": lambda _=None: 0,
        "get_per_process_memory_fraction": of_index(1.0),
        "set_per_process_memory_fraction": of_index(None),
        "empty_cache": lambda: None,
        "synchronize": lambda _=None: gpu.note("reads", "synchronize"),
        "device": device,
        "stream": stream,
        "Stream": make_stream,
        "current_stream": current_stream,
        "Event": lambda **_: PretendEvent(gpu),
        "graph_pool_handle": gpu.new_pool,
        "CUDAGraph": lambda: PretendGraph(gpu),
    }
    with (
        patch.multiple(torch.cuda, **cuda),
        # of this pretend device only
        patch.multiple(graphs, _streams=defaultdict(list), _unused=defaultdict(list)),
        patch.multiple(driver, can_divide=lambda _: divides, partition_stream=partition_stream),
        patch.dict(os.environ, SLIMWHISPER_KERNELS="torch"),
        # the host's memory needs no such care
        patch.object(Tensor, "record_stream", lambda *_: None),
        patch.object(threading.Thread, "run", run_thread),
        Functions(gpu),
    ):
        yield gpu


@contextmanager
def pretend_other(kind: str) -> Iterator[GPU]:
    """A device of another `kind`, "mps" or "xpu": without CUDA, streams, graphs, Triton and pinned
    memory; "mps" without float64.
    """
    names = ("Stream", "Event", "current_stream", "stream", "device", "CUDAGraph", "synchronize")
    missing = Mock(side_effect=Forbidden(f"of CUDA alone, for {kind}"))
    cuda = dict.fromkeys(names, missing) | {"is_available": lambda: False}
    unpinned = patch.object(Tensor, "pin_memory", missing)
    with pretend_cuda() as gpu, patch.multiple(torch.cuda, **cuda), unpinned:
        gpu.kind = kind
        yield gpu
