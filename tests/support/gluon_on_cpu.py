"""Runs our Gluon kernel on the CPU, from its own source, as late and as early as a GPU might.

Gluon has no interpreter. Here the kernel's Python functions run with other modules in the place of
Gluon's: tensors are torch's, partitions are threads, barriers count arrivals and bytes.

- A copy by the tensor memory accelerator fills its place with NaN when it is issued, and with data,
  zeros outside the tensor, when its barrier is waited for: a piece that is replaced while it is
  needed, or read before it is there, is seen.
- A product computes when it is waited for, not when it is issued: so is one that reads too late.
- Fresh shared memory is NaN, and a wait that never ends is an error.

Layouts, swizzles and fragments are the compiler's, and are not modelled.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import product
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl

SECONDS = 30  # until a wait counts as a deadlock


class Barrier:
    """An mbarrier in shared memory: a phase ends when all have arrived and all bytes are there."""

    def __init__(self) -> None:
        self.count = self.pending = self.bytes = self.phase = 0
        self.copies: deque[Callable[[], int]] = deque()  # each returns its bytes
        self.changed = threading.Condition()

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def arrive(self, count: int, size: int = 0) -> None:
        """So many arrivals; so many bytes are to be waited for."""
        with self.changed:
            self.pending -= count
            self.bytes += size
            assert self.pending >= 0, "more arrivals than the barrier counts"
            self.end_phase()

    def end_phase(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count
        self.changed.notify_all()

    def copy_later(self, copy: Callable[[], int]) -> None:
        with self.changed:
            self.copies.append(copy)
            self.changed.notify_all()

    def wait(self, phase: int) -> None:
        with self.changed:
            while self.phase % 2 == int(phase):
                if self.copies:
                    self.bytes -= self.copies.popleft()()
                    self.end_phase()
                else:
                    assert self.changed.wait(SECONDS), "a wait that does not end"


class Barriers:
    """Shared memory that holds barriers."""

    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, i: int) -> Barrier:
        return self.all[int(i)]


class Shared:
    """A view of shared memory."""

    def __init__(self, data: Tensor) -> None:
        self.data, self.dtype = data, data.dtype

    def index(self, i: int) -> "Shared":
        return Shared(self.data[int(i)])

    def reshape(self, shape: Sequence[int]) -> "Shared":
        return Shared(self.data.view(*shape))

    def permute(self, order: Sequence[int]) -> "Shared":
        return Shared(self.data.permute(*order))

    def slice(self, start: int, length: int) -> "Shared":
        return Shared(self.data[start : start + length])

    def load(self, layout: object) -> Tensor:
        return self.data.clone()

    def store(self, value: Tensor) -> None:
        assert value.shape == self.data.shape
        self.data.copy_(value)


class Pointer:
    """A place in a tensor's memory, or many."""

    def __init__(self, tensor: Tensor, at: Any = None) -> None:
        self.tensor = tensor
        self.at = tensor.storage_offset() if at is None else at
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.tensor, self.at + offset)

    def memory(self) -> Tensor:
        size = self.tensor.untyped_storage().nbytes() // self.tensor.element_size()
        return self.tensor.as_strided((size,), (1,), 0)


class Descriptor:
    """A tensor [A, B, C] that is loaded in blocks."""

    def __init__(self, made: Any) -> None:
        self.tensor, self.block = made.base, made.block_shape
        self.dtype, self.layout = made.base.dtype, made.layout

    def read(self, at: Sequence[int]) -> Tensor:
        """The block that begins there, zeros outside the tensor."""
        block = torch.zeros(self.block, dtype=self.dtype)
        box = [slice(int(a), int(a) + n) for a, n in zip(at, self.block, strict=True)]
        inside = self.tensor[tuple(box)]
        block[tuple(slice(n) for n in inside.shape)] = inside
        return block


class Moving:
    """The accumulator of a product that may not have been computed yet."""

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self.compute = compute
        self.value: Tensor | None = None


class Products(threading.local):
    """Those that a partition has issued and not yet waited for."""

    def __init__(self) -> None:
        self.issued: deque[Moving] = deque()


class OnCPU:
    """In the place of a Gluon kernel: `kernel[grid](...)`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, **constants: Any) -> None:
            given = [Pointer(a) if isinstance(a, Tensor) else a for a in args]
            given = [Descriptor(a) if hasattr(a, "block_shape") else a for a in given]
            for place in product(*map(range, grid)):
                _Program(place).plain(self.kernel)(*given, **constants)

        return launch


class _Program:
    """One program of a grid."""

    def __init__(self, place: tuple[int, ...]) -> None:
        self.place = place
        self.products = Products()
        self.language = _Language(self)

    def plain(self, kernel: Any) -> Callable[..., Any]:
        """A kernel's Python function, with what stands for Gluon in its globals."""
        function = kernel.fn
        names = dict(function.__globals__)
        for name, value in names.items():
            if isinstance(value, gl.constexpr):
                names[name] = value.value
            elif name in function.__code__.co_names and hasattr(value, "is_gluon"):
                names[name] = self.plain(value)
        names |= {"gl": self.language, "tl": self.language}
        names |= {
            "mbarrier": SimpleNamespace(
                init=lambda barrier, count: barrier.init(count),
                wait=lambda barrier, phase: barrier.wait(phase),
                expect=lambda barrier, size: barrier.arrive(1, size),
                arrive=lambda barrier, count: barrier.arrive(count),
                MBarrierLayout=lambda: None,
            ),
            "load_piece": self.load,
            "fence_async_shared": lambda: None,
            "warpgroup_mma_init": lambda value: value,
            "warpgroup_mma": self.multiply,
            "warpgroup_mma_wait": self.wait,
        }
        return FunctionType(function.__code__, names)

    def load(self, tensor: Descriptor, at: Sequence[int], barrier: Barrier, to: Shared) -> None:
        to.data.fill_(float("nan"))

        def copy() -> int:
            to.data.copy_(tensor.read(at))
            return to.data.nbytes

        barrier.copy_later(copy)

    def multiply(self, a: Shared, b: Shared, to: Any, is_async: bool) -> Moving:
        def compute() -> Tensor:
            sum_of = to.value if isinstance(to, Moving) else to
            return sum_of + a.data.float() @ b.data.float()

        self.products.issued.append(Moving(compute))
        return self.products.issued[-1]

    def wait(self, left: int, deps: Sequence[Moving]) -> Tensor:
        issued = self.products.issued
        while len(issued) > left:
            first = issued.popleft()
            first.value = first.compute()
        (asked,) = deps
        assert asked.value is not None, "a product that was not waited for"
        return asked.value


class _Language:
    """What the kernel calls of `gl` and `tl`; what is missing here, such as layouts, is Gluon's."""

    static_range = range
    float32, int32, int64 = torch.float32, torch.int32, torch.int64
    exp2, zeros_like, maximum = torch.exp2, torch.zeros_like, torch.maximum

    def __init__(self, program: _Program) -> None:
        self.program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(gl, name)

    def program_id(self, axis: int) -> Tensor:
        return torch.tensor(self.program.place[axis])

    def allocate_shared_memory(self, dtype: Any, shape: Sequence[int], layout: object) -> Any:
        if dtype == torch.int64:
            return Barriers(shape[0]) if len(shape) > 1 else Barrier()
        return Shared(torch.full(shape, float("nan"), dtype=dtype))

    def warp_specialize(
        self, partitions: Sequence[tuple[Any, Any]], warps: object, registers: object
    ) -> None:
        failures: list[BaseException] = []

        def work(function: Callable[..., None], args: Sequence[Any]) -> None:
            try:
                function(*args)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=p, daemon=True) for p in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    @staticmethod
    def full(shape: Sequence[int], value: float, dtype: Any, layout: object) -> Tensor:
        return torch.full(shape, value, dtype=dtype)

    @staticmethod
    def zeros(shape: Sequence[int], dtype: Any, layout: object) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    @staticmethod
    def arange(start: int, end: int, layout: object) -> Tensor:
        return torch.arange(start, end)

    @staticmethod
    def cast(value: Any, dtype: Any) -> Any:
        return value

    @staticmethod
    def cdiv(a: Any, b: int) -> Any:
        return -(-a // b)

    @staticmethod
    def minimum(a: Any, b: Any) -> Tensor:
        return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, bool):
            return a if condition else b
        return torch.where(condition, a, b)

    @staticmethod
    def max(x: Tensor, axis: int) -> Tensor:
        return x.amax(axis)

    @staticmethod
    def sum(x: Tensor, axis: int) -> Tensor:
        return x.sum(axis)

    @staticmethod
    def load(place: Pointer) -> Tensor:
        return place.memory()[place.at]

    @staticmethod
    def store(place: Pointer, value: Tensor, mask: Tensor) -> None:
        at, mask = torch.broadcast_tensors(place.at, mask)
        place.memory()[at[mask]] = value[mask]
