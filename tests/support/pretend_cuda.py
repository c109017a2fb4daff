"""A pretend CUDA device: its tensors say cuda:N and live on the CPU, and what a GPU forbids raises.

    with pretend_cuda() as gpu:
        model = Model(checkpoint, torch.device("cuda", 0), torch.float16)
        with gpu.counting() as counts:
            engine.step()

Raises `Forbidden` where tensors of different devices meet, where a Triton kernel is launched on
another device than its tensors', and where a capture reads from or copies to the host. Counts
kernels, uploads and reads. `torch.cuda.CUDAGraph` records operators with the very tensors and
numbers, and replays them into the same memory, so that whatever should have been kept in a buffer
shows as a stale result. Triton's kernels are counted and checked, and PyTorch does their work;
with `interpreted`, Triton's interpreter does, a hundred times slower.
"""

import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from slimwhisper.kernels import choose_token, combine, heads_triton, latent_triton, norm_triton
from tests.support.pretend_kernels import WORK

MODULES = (choose_token, combine, heads_triton, latent_triton, norm_triton)  # with kernels
FACTORIES = {
    *(torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye, torch.randn),
    *(torch.tensor, torch.as_tensor, torch.empty_strided, torch.scalar_tensor, torch.linspace),
}
WHOLE = {F.linear, F.scaled_dot_product_attention, F.conv1d}  # one kernel each, or as good as
READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"}
READS |= {"unique_dim", "_unique2", "tolist"}
NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
NOTHING |= {"_unsafe_view", "detach", "alias", "lift_fresh", "lift", "_reshape_alias"}
# what Triton's kernels write
WRITTEN = {"out", "sums", "stats", "total", "normed", "kept", "factors", "tokens", "logprobs"}
PAGEABLE = 64 << 10  # bytes that are uploaded without a wait
INDEXED = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}


class Forbidden(BaseException):
    """What a GPU would refuse, or do wrongly. Not an Exception: no fall-back may hide it."""


@dataclass
class Counts:
    """What happened on the device."""

    kernels: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)  # host to device
    reads: Counter[str] = field(default_factory=Counter)  # the host waits for the device
    downloads: Counter[str] = field(default_factory=Counter)  # into pinned memory: nobody waits


class OnDevice(Tensor):
    """A tensor of the pretend device."""

    elem: Tensor
    index: int

    @staticmethod
    def __new__(cls, elem: Tensor, index: int) -> "OnDevice":
        made: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            elem.shape,
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=torch.device("meta"),
        )
        made.elem, made.index = elem, index
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside pretend_cuda()")

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.elem}, cuda:{self.index})"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def record_stream(self, stream: Any) -> None:  # type: ignore[override]
        """The host's memory needs no such care."""


def _host(value: Any) -> Any:
    return value.elem if isinstance(value, OnDevice) else value


class GPU:
    """The state of all pretend devices, and what happens to their tensors."""

    def __init__(self, memory: int) -> None:
        self.memory = memory  # bytes, free and in total
        self.counts = Counts()
        self.log: list[Callable[[], Any]] | None = None  # of the capture in progress
        self.recorder: int | None = None  # its thread
        self.fresh: PretendGraph | None = None  # captured, and not yet replayed
        self.breaks = False  # captures cannot be ended
        self.pools: dict[Any, list[weakref.ref[PretendGraph]]] = {}
        self.streams = 0
        self.defaults: dict[int, PretendStream] = {}
        # downloads: stream, its clock, and what keeps the memory from being used again
        self.pending: dict[int, tuple[int, int, Tensor | None]] = {}
        self.complete: dict[int, int] = {}  # clocks that the host has waited for
        self.writers: dict[int, tuple[int, int]] = {}  # of each storage: stream, and its clock
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

    def note(self, kind: str, name: str, count: int = 1) -> None:
        if kind != "kernels" and self.capturing:
            raise Forbidden(f"{name} in a capture: {kind} are not allowed")
        getattr(self.counts, kind)[name] += count

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

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Run a kernel on the host's tensors, and record it if this thread captures."""
        if self.fresh is not None and not self.capturing:
            raise Forbidden(f"{name} between a capture and its first replay")
        out = call()
        if self.capturing:
            kept = tree_leaves(out)

            def again() -> None:
                for old, new in zip(kept, tree_leaves(call()), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

            assert self.log is not None
            self.log.append(again)
        return out

    # -- operators -----------------------------------------------------------------------------

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator of ATen; on the host alone if no tensor of a device takes part."""
        name: str = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        ours = [t for t in leaves if isinstance(t, OnDevice)]
        wanted = kwargs.get("device")
        wanted = None if wanted is None else torch.device(wanted)
        here = wanted is not None and wanted.type in ("cuda", "meta")
        if not ours and not here:
            self._check_arrived(leaves)
            return func(*args, **kwargs)
        if not ours and wanted is not None and wanted.type == "meta":
            if name == "scalar_tensor" or (name == "full" and not list(args[0])):
                # a number to be written, made by C++ where it takes the tensor to be
                return func(*args, **{**kwargs, "device": torch.device("cpu")})
            return func(*args, **kwargs)
        index = ours[0].index if ours else self._index(wanted)
        if any(t.index != index for t in ours) and name not in ("copy_", "_to_copy"):
            raise Forbidden(f"{name}: tensors of two GPUs")
        self._check_host_tensors(name, args, leaves, bool(ours))
        reads = name in READS or (
            name in INDEXED and any(t.dtype == torch.bool for t in _indices(args))
        )
        if reads:
            self.note("reads", name)
        leaves_gpu = name == "_to_copy" and wanted is not None and wanted.type == "cpu"
        if leaves_gpu:
            self.note("reads", "to(cpu)")
        into_host = name == "copy_" and ours and not isinstance(args[0], OnDevice)
        if into_host:
            pinned = getattr(args[0], "pretends_pinned", False)
            if pinned and kwargs.get("non_blocking", len(args) > 2 and args[2]):
                self.note("downloads", name)
                stream = self.stream_of(ours[0].index)
                stream.clock += 1
                place = args[0].untyped_storage().data_ptr()
                self.pending[place] = (stream.number, stream.clock, args[0])
            else:
                self.note("reads", name)
        host_kwargs = {k: _host(v) for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        if "device" in kwargs and kwargs["device"] is not None:
            host_kwargs["device"] = torch.device("cpu")
        host_args = tree_map(_host, args)
        host_kwargs = tree_map(_host, host_kwargs)
        if reads or leaves_gpu or _is_view(func) or name in NOTHING:
            out = func(*host_args, **host_kwargs)
        else:
            if not into_host:
                self.note("kernels", name)
            out = self.run(name, lambda: func(*host_args, **host_kwargs))
        if not _is_view(func) and not into_host:
            self.order(name, index, (host_args, host_kwargs), out)
        if leaves_gpu or name in ("_local_scalar_dense", "is_nonzero", "equal"):
            return out
        if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            if isinstance(out, Tensor):
                return args[0]
        return tree_map(lambda t: OnDevice(t, index) if isinstance(t, Tensor) else t, out)

    def _check_host_tensors(
        self, name: str, args: tuple[Any, ...], leaves: list[Any], ours: bool
    ) -> None:
        """Host tensors with dimensions may be copied, or be indices; both are uploads."""
        large = [t for t in leaves if isinstance(t, Tensor) and t.dim() > 0]
        large = [t for t in large if not isinstance(t, OnDevice)]
        if not (ours and large):
            return
        if name == "copy_":
            if isinstance(args[0], OnDevice):
                self.note("uploads", name)
            return
        if name in INDEXED and isinstance(args[0], OnDevice):
            indices = _indices(args)
            if all(any(t is i for i in indices) for t in large):
                self.note("uploads", f"{name} by host indices")
                return
        shapes = [(tuple(t.shape), str(t.device)) for t in leaves if isinstance(t, Tensor)]
        raise Forbidden(f"{name}: tensors of the host and a GPU, {shapes}")

    def _check_arrived(self, leaves: list[Any]) -> None:
        """The host may not read a download before an event after it."""
        for t in leaves if self.pending else ():
            if isinstance(t, Tensor):
                place = t.untyped_storage().data_ptr()
                stream, clock, _ = self.pending.get(place, (0, 0, None))
                if self.complete.get(stream, 0) < clock:
                    raise Forbidden("the host reads a download that may not have arrived")

    def _index(self, device: torch.device | None) -> int:
        found = None if device is None else device.index
        return self.current if found is None else found

    # -- functions that never reach the operators as they are -----------------------------------

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of PyTorch's Python interface."""
        if func in FACTORIES:
            return self._factory(func, args, dict(kwargs))
        if func in (Tensor.to, Tensor.cuda):
            return self._move(func, args, kwargs)
        if func is Tensor.__setitem__ and isinstance(args[0], OnDevice):
            if not isinstance(args[2], Tensor):  # C++ would make it where it takes the tensor to be
                with torch._C.DisableTorchFunction():
                    args = (*args[:2], torch.scalar_tensor(args[2], dtype=args[0].dtype))
            return func(*args)
        if func in (Tensor.tolist, Tensor.numpy):
            if not isinstance(args[0], OnDevice):
                self._check_arrived([args[0]])
                return func(*args, **kwargs)
            self.note("reads", func.__name__)
            return args[0].elem.tolist()
        if func is Tensor.data_ptr and isinstance(args[0], OnDevice):
            return args[0].elem.data_ptr()
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            self.note("uploads", "new_tensor")
            return OnDevice(args[0].elem.new_tensor(*args[1:], **kwargs), args[0].index)
        if func is Tensor.pin_memory:
            args[0].pretends_pinned = True
            return args[0]
        if func in WHOLE and any(isinstance(t, OnDevice) for t in tree_leaves((args, kwargs))):
            name = func.__name__
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            if not all(isinstance(t, OnDevice) for t in tensors):
                raise Forbidden(f"{name}: tensors of the host and a GPU")
            index = next(t.index for t in tensors if isinstance(t, OnDevice))
            if any(isinstance(t, OnDevice) and t.index != index for t in tensors):
                raise Forbidden(f"{name}: tensors of two GPUs")
            host_args, host_kwargs = tree_map(_host, args), tree_map(_host, kwargs)
            self.note("kernels", name)
            out = self.run(name, lambda: func(*host_args, **host_kwargs))
            self.order(name, index, (host_args, host_kwargs), out)
            return OnDevice(out, index)
        return func(*args, **kwargs)

    def _factory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        pinned = kwargs.pop("pin_memory", False)
        if device is None or torch.device(device).type != "cuda":
            made = func(*args, **kwargs)
            if pinned:
                made.pretends_pinned = True
            return made
        kwargs["device"] = "cpu"
        index, name = self._index(torch.device(device)), func.__name__
        if func in (torch.tensor, torch.as_tensor):
            self.note("uploads", name)
            made = func(*args, **kwargs)
            self.order(name, index, (), made)
            return OnDevice(made, index)
        if name in NOTHING:
            made = func(*args, **kwargs)
        else:
            self.note("kernels", name)
            made = self.run(name, lambda: func(*args, **kwargs))
        self.order(name, index, (), made)
        return OnDevice(made, index)

    def _move(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`Tensor.to` and `Tensor.cuda`: an upload, or a change of dtype on the device."""
        x, device, dtype = args[0], None, None
        for value in (*args[1:], *(kwargs[k] for k in ("device", "dtype", "other") if k in kwargs)):
            if isinstance(value, torch.device | str):
                device = torch.device(value)
            elif isinstance(value, torch.dtype):
                dtype = value
            elif isinstance(value, Tensor):
                device, dtype = value.device, value.dtype
        if func is Tensor.cuda:
            device = device or torch.device("cuda")
        if device is None or device.type != "cuda":
            return func(*args, **kwargs)
        index = self._index(device)
        if isinstance(x, OnDevice):
            if x.index != index:
                raise Forbidden("a copy from one GPU to another")
            return x if dtype is None else func(x, dtype)
        self.note("uploads", "to")
        pinned = getattr(x, "pretends_pinned", False) and kwargs.get("non_blocking")
        if x.nbytes > PAGEABLE and not pinned:
            self.note("reads", "upload of pageable memory")
        made = x.detach().to(dtype or x.dtype, copy=True)
        self.order("to", index, (), made)
        return OnDevice(made, index)


def _indices(args: tuple[Any, ...]) -> list[Tensor]:
    return [t for t in tree_leaves(args[1:2]) if isinstance(t, Tensor)]


def _is_view(func: Any) -> bool:
    schema = func._schema
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return False
    return any(r.alias_info is not None for r in schema.returns)


class _Operators(TorchDispatchMode):
    def __init__(self, gpu: GPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite):
            with self:
                found = func.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return self.gpu.operator(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.function(func, args, kwargs or {})


class _Kernel:
    """A Triton kernel: launched on tensors of the thread's current device, interpreted."""

    def __init__(self, gpu: GPU, name: str, kernel: Any, interpreted: bool) -> None:
        self.gpu, self.name, self.kernel = gpu, name, kernel
        self.interpreted = interpreted

    def _work(self, grid: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.interpreted:
            return self.kernel[grid](*args, **kwargs)
        by_name = inspect.signature(self.kernel.fn).bind(*args, **_without_options(kwargs))
        return WORK[self.name](by_name.arguments)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        def host(value: Any) -> Any:
            tensor = value.base if isinstance(value, TensorDescriptor) else value
            if not isinstance(tensor, Tensor):
                return value
            if not isinstance(tensor, OnDevice):
                raise Forbidden(f"{self.name}: a tensor of the host")
            if tensor.index != self.gpu.current:
                raise Forbidden(
                    f"{self.name}: launched on cuda:{self.gpu.current}, its tensors are on "
                    f"cuda:{tensor.index}"
                )
            if tensor is value:
                return tensor.elem
            return TensorDescriptor.from_tensor(tensor.elem, value.block_shape)

        def launch(*args: Any, **kwargs: Any) -> Any:
            mapped = [host(a) for a in args]
            self.gpu.note("kernels", self.name)
            named = dict(zip(self.kernel.arg_names, mapped, strict=False))
            written = [named[n] for n in WRITTEN if n in named]
            self.gpu.order(self.name, self.gpu.current, mapped, written)
            return self.gpu.run(self.name, lambda: self._work(grid, mapped, kwargs))

        return launch


def _without_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k not in ("num_warps", "num_stages")}


class PretendGraph:
    """`torch.cuda.CUDAGraph`: its operators run while they are captured, as the first replay."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.log: list[Callable[[], Any]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Only on a stream of its own, and so that other threads may use the device."""
        gpu = self.gpu
        if gpu.stream.number <= 0:
            raise Forbidden("a capture on the default stream")
        if gpu.stream.device.index != gpu.current:
            raise Forbidden("a capture on another device's stream")
        if capture_error_mode != "thread_local":
            raise Forbidden(f"capture mode {capture_error_mode}: other threads would break it")
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
    """`torch.cuda.Event`, done when asked for the second time."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu, self.asked = gpu, 0
        self.seen: dict[int, int] = {}

    def record(self, stream: PretendStream | None = None) -> None:
        self.seen = (stream or self.gpu.stream).seen()

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 1

    def synchronize(self) -> None:
        self.gpu.note("reads", "event.synchronize")
        self.gpu.complete.update(self.seen)


@contextmanager
def pretend_cuda(
    count: int = 1, memory: int = 80 << 30, interpreted: bool = False
) -> Iterator[GPU]:
    """`count` devices with `memory` bytes each, for this thread and those it starts."""
    gpu = GPU(memory)
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
        gpu.streams += 1
        index = None if device is None else device.index
        return PretendStream(gpu, gpu.current if index is None else index, gpu.streams)

    started = threading.Thread.run

    def run_thread(self: threading.Thread) -> None:
        with _Functions(gpu), _Operators(gpu):
            started(self)

    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: gpu.current,
        "get_device_capability": lambda _=None: (9, 0),
        "get_device_properties": lambda _=None: properties,
        "get_device_name": lambda _=None: properties.name,
        "mem_get_info": lambda _=None: (memory, memory),
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
        for module in MODULES:
            for name in [n for n in vars(module) if n.endswith("_kernel")]:
                kernel = _Kernel(
                    gpu, name.removesuffix("_kernel"), getattr(module, name), interpreted
                )
                changed.enter_context(patch.object(module, name, kernel))
        changed.enter_context(patch.object(threading.Thread, "run", run_thread))
        # operators in inference mode would not be taken apart as they are elsewhere
        changed.enter_context(patch.object(torch.inference_mode, "__enter__", _no_grad_begins))
        changed.enter_context(patch.object(torch.inference_mode, "__exit__", _no_grad_ends))
        with _Functions(gpu), _Operators(gpu):
            yield gpu


def _no_grad_begins(self: Any) -> None:
    self.pretended = torch.no_grad()
    self.pretended.__enter__()


def _no_grad_ends(self: Any, *error: Any) -> None:
    self.pretended.__exit__(*error)
