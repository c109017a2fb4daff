"""A pretend CUDA device: its tensors say cuda:N and live on the CPU, and what a GPU forbids raises.

    with pretend_cuda() as gpu:
        model = Model(checkpoint, torch.device("cuda", 0), torch.float16)
        with gpu.counting() as counts:
            engine.step()

Raises `Forbidden` where tensors of different devices meet, where a kernel is launched on another
device than its tensors', or with strides that it is not told, and where a capture reads from or
copies to the host. Counts kernels, uploads and reads. `torch.cuda.CUDAGraph` records operators with
the very tensors and numbers, and replays them into the same memory, so that whatever should have
been kept in a buffer shows as a stale result. Kernels are counted and checked, and PyTorch does
their work; with `interpreted`, Triton's interpreter does, a hundred times slower.
"""

import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from slimwhisper.kernels.gpu import (
    choose_token,
    combine,
    driver,
    heads,
    hopper,
    latent,
    norm,
)
from tests.support.pretend.device import (
    GPU,
    Forbidden,
    OnDevice,
    PretendEvent,
    PretendGraph,
    PretendStream,
)
from tests.support.pretend.kernels import WORK
from tests.support.pretend.operators import Functions, Interceptor, Operators

MODULES = (choose_token, combine, heads, latent, norm)  # with kernels
# what Triton's kernels write
WRITTEN = {"out", "sums", "stats", "total", "normed", "kept", "factors", "tokens", "logprobs"}


class _Kernel:
    """A Triton kernel: launched on tensors of the thread's current device, interpreted."""

    def __init__(self, gpu: GPU, name: str, kernel: Any, interpreted: bool) -> None:
        self.gpu, self.name, self.kernel = gpu, name, kernel
        self.interpreted = interpreted

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            options = {k: kwargs.pop(k) for k in ("num_warps", "num_stages") if k in kwargs}
            named = inspect.signature(self.kernel.fn).bind(*args, **kwargs).arguments
            named = {name: on_host(self.gpu, self.name, a) for name, a in named.items()}
            check_strides(self.name, named, [*named.values()])
            self.gpu.note("kernels", self.name)
            written = [named[n] for n in WRITTEN if n in named]
            self.gpu.order(self.name, self.gpu.current, [*named.values()], written)

            def work() -> Any:
                if self.interpreted:
                    return self.kernel[grid](**named, **options)
                return WORK[self.name](named)

            return self.gpu.run(self.name, work)

        return launch


def on_host(gpu: GPU, kernel: str, value: Any) -> Any:
    """A launch's argument, with the memory of a tensor of the thread's current device."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    tensor = value.base if isinstance(value, TensorDescriptor) else value
    if not isinstance(tensor, Tensor):
        return value
    if not isinstance(tensor, OnDevice):
        raise Forbidden(f"{kernel}: a tensor of the host")
    if tensor.index != gpu.current:
        raise Forbidden(
            f"{kernel}: launched on cuda:{gpu.current}, its tensors are on cuda:{tensor.index}"
        )
    if tensor is value:
        return tensor.elem
    return TensorDescriptor.from_tensor(tensor.elem, value.block_shape)


def check_strides(kernel: str, named: dict[str, Any], numbers: Sequence[Any]) -> None:
    """A kernel knows of a tensor's layout what it is told: it steps through the last dimension by
    1, and through others by a stride that is among its numbers.
    """
    told = {n for n in numbers if type(n) is int}
    for name, t in named.items():
        if not isinstance(t, Tensor) or t.is_contiguous():
            continue
        *outer, last = zip(t.shape, t.stride(), strict=True)
        for size, stride in outer:
            if size > 1 and stride not in told:
                raise Forbidden(f"{kernel}: {name} has a stride {stride} it is not told")
        if last[0] > 1 and last[1] != 1:
            raise Forbidden(f"{kernel}: {name} is read by 1, its stride is {last[1]}")


def hopper_launch(gpu: GPU) -> Callable[..., None]:
    """`kernels.gpu.hopper.launch` on the pretend device."""

    def launch(variant: Any, grid: Any, buffers: Any, numbers: Any) -> None:
        name = "hopper_latent"
        mapped = [on_host(gpu, name, buffer) for buffer in buffers]
        check_strides(name, {f"buffer {i}": t for i, t in enumerate(mapped)}, numbers)
        gpu.note("kernels", name)
        gpu.order(name, gpu.current, mapped, mapped[-3:])
        arguments = {"variant": variant, "grid": grid, "buffers": mapped, "numbers": numbers}
        gpu.run(name, lambda: WORK[name](arguments))

    return launch


@contextmanager
def pretend_cuda(
    count: int = 1, memory: int = 80 << 30, interpreted: bool = False, divides: bool = True
) -> Iterator[GPU]:
    """`count` devices with `memory` bytes each, for this thread and those it starts. divides:
    whether their multiprocessors can be divided.
    """
    gpu = GPU(memory)
    interceptor = Interceptor(gpu)
    properties = SimpleNamespace(
        name="a pretend GPU",
        shared_memory_per_block_optin=232_448,
        multi_processor_count=132,
        regs_per_multiprocessor=65_536,
        total_memory=memory,
    )

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

    def make_partition_stream(device: torch.device) -> PretendStream:
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
        with Functions(interceptor), Operators(interceptor):
            started(self)

    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: gpu.current,
        "get_device_capability": lambda _=None: (9, 0),
        "get_device_properties": lambda _=None: properties,
        "get_device_name": lambda _=None: properties.name,
        "mem_get_info": lambda _=None: (memory, memory),
        "memory_reserved": lambda _=None: 0,
        "memory_allocated": lambda _=None: 0,
        "get_per_process_memory_fraction": of_index(1.0),
        "set_per_process_memory_fraction": of_index(None),
        "set_device": of_index(None),
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
    with ExitStack() as changed:
        for name, value in cuda.items():
            changed.enter_context(patch.object(torch.cuda, name, value))
        for streams in ("_streams", "_unused"):  # of this pretend device only
            changed.enter_context(patch(f"slimwhisper.kernels.graphs.{streams}", defaultdict(list)))
        for module in MODULES:
            for name in [n for n in vars(module) if n.endswith("_kernel")]:
                kernel = _Kernel(
                    gpu, name.removesuffix("_kernel"), getattr(module, name), interpreted
                )
                changed.enter_context(patch.object(module, name, kernel))
        changed.enter_context(patch.object(hopper, "launch", hopper_launch(gpu)))
        for name, value in {
            "has_bindings": lambda: not interpreted,
            "can_divide": lambda _: divides,
            "partition_stream": make_partition_stream,
        }.items():
            changed.enter_context(patch.object(driver, name, value))
        changed.enter_context(patch.object(threading.Thread, "run", run_thread))
        # operators in inference mode would not be taken apart as they are elsewhere
        changed.enter_context(patch.object(torch.inference_mode, "__enter__", _no_grad_begins))
        changed.enter_context(patch.object(torch.inference_mode, "__exit__", _no_grad_ends))
        with Functions(interceptor), Operators(interceptor):
            yield gpu


@contextmanager
def pretend_other(kind: str) -> Iterator[GPU]:
    """A device of another `kind`, "mps" or "xpu": without CUDA, streams, graphs, Triton and pinned
    memory; "mps" without float64.
    """

    def missing(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise Forbidden(f"torch.cuda.{name} for {kind}")

        return call

    names = ("Stream", "Event", "current_stream", "stream", "device", "CUDAGraph", "synchronize")
    with pretend_cuda() as gpu, ExitStack() as changed:
        changed.enter_context(patch.object(torch.cuda, "is_available", lambda: False))
        changed.enter_context(patch.object(OnDevice, "kind", kind))
        for name in names:
            changed.enter_context(patch.object(torch.cuda, name, missing(name)))
        for module in MODULES:
            for name in [n for n in vars(module) if n.endswith("_kernel")]:
                changed.enter_context(patch.object(module, name, missing(name)))
        changed.enter_context(patch.object(Tensor, "pin_memory", missing("pin_memory")))
        yield gpu


def _no_grad_begins(self: Any) -> None:
    self.pretended = torch.no_grad()
    self.pretended.__enter__()


def _no_grad_ends(self: Any, *error: Any) -> None:
    self.pretended.__exit__(*error)
