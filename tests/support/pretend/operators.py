"""What happens to the tensors of a pretend GPU: every operator, and what never becomes one."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.support.pretend.device import GPU, Forbidden, OnDevice

FACTORIES = {
    *(torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye, torch.randn),
    *(torch.tensor, torch.as_tensor, torch.empty_strided, torch.scalar_tensor, torch.linspace),
}
WHOLE = {F.linear, F.scaled_dot_product_attention, F.conv1d}  # one kernel each, or as good as
READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"}
READS |= {"unique_dim", "_unique2", "tolist"}
NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
NOTHING |= {"_unsafe_view", "detach", "alias", "lift_fresh", "lift", "_reshape_alias"}
INDEXED = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}


def _host(value: Any) -> Any:
    return value.elem if isinstance(value, OnDevice) else value


class Interceptor:
    """Runs operators on the host's tensors, and checks and counts them."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu

    # -- operators -----------------------------------------------------------------------------

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator of ATen; on the host alone if no tensor of a device takes part."""
        name: str = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        ours = [t for t in leaves if isinstance(t, OnDevice)]
        wanted = kwargs.get("device")
        wanted = None if wanted is None else torch.device(wanted)
        here = wanted is not None and wanted.type in (OnDevice.kind, "meta")
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
            self.gpu.note("reads", name)
        leaves_gpu = name == "_to_copy" and wanted is not None and wanted.type == "cpu"
        if leaves_gpu:
            self.gpu.note("reads", "to(cpu)")
        into_host = name == "copy_" and ours and not isinstance(args[0], OnDevice)
        if into_host:
            pinned = getattr(args[0], "pretends_pinned", False)
            if pinned and kwargs.get("non_blocking", len(args) > 2 and args[2]):
                self.gpu.note("downloads", name)
                stream = self.gpu.stream_of(ours[0].index)
                stream.clock += 1
                place = args[0].untyped_storage().data_ptr()
                self.gpu.pending[place] = (stream.number, stream.clock, args[0])
            else:
                self.gpu.note("reads", name)
        host_kwargs = {k: _host(v) for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        if "device" in kwargs and kwargs["device"] is not None:
            host_kwargs["device"] = torch.device("cpu")
        host_args = tree_map(_host, args)
        host_kwargs = tree_map(_host, host_kwargs)
        if reads or leaves_gpu or _is_view(func) or name in NOTHING:
            out = func(*host_args, **host_kwargs)
        else:
            if not into_host:
                self.gpu.note("kernels", name)
            out = self.gpu.run(name, lambda: func(*host_args, **host_kwargs))
        if not _is_view(func) and not into_host:
            self.gpu.order(name, index, [_host(t) for t in ours], out)
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
                self.gpu.note("uploads", name)
                if not all(getattr(t, "pretends_pinned", False) for t in large):
                    self.gpu.note("reads", "upload of pageable memory")
            return
        if name in INDEXED and isinstance(args[0], OnDevice):
            indices = _indices(args)
            if all(any(t is i for i in indices) for t in large):
                self.gpu.note("uploads", f"{name} by host indices")
                self.gpu.note("reads", "upload of pageable memory")
                return
        shapes = [(tuple(t.shape), str(t.device)) for t in leaves if isinstance(t, Tensor)]
        raise Forbidden(f"{name}: tensors of the host and a GPU, {shapes}")

    def _check_arrived(self, leaves: list[Any]) -> None:
        """The host may not read a download before an event after it."""
        for t in leaves if self.gpu.pending else ():
            if isinstance(t, Tensor):
                place = t.untyped_storage().data_ptr()
                stream, clock, _ = self.gpu.pending.get(place, (0, 0, None))
                if self.gpu.complete.get(stream, 0) < clock:
                    raise Forbidden("the host reads a download that may not have arrived")

    def _index(self, device: torch.device | None) -> int:
        found = None if device is None else device.index
        return self.gpu.current if found is None else found

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
            self.gpu.note("reads", func.__name__)
            return args[0].elem.tolist()
        if func is Tensor.data_ptr and isinstance(args[0], OnDevice):
            return args[0].elem.data_ptr()
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            self.gpu.note("uploads", "new_tensor")
            self.gpu.note("reads", "upload of pageable memory")
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
            if func is F.scaled_dot_product_attention:
                self.gpu.attention_shapes.add(tuple(tuple(t.shape) for t in tensors))
            self.gpu.note("kernels", name)
            out = self.gpu.run(name, lambda: func(*host_args, **host_kwargs))
            self.gpu.order(name, index, (host_args, host_kwargs), out)
            return OnDevice(out, index)
        return func(*args, **kwargs)

    def _factory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        pinned = kwargs.pop("pin_memory", False)
        if device is None or torch.device(device).type != OnDevice.kind:
            made = func(*args, **kwargs)
            if pinned:
                made.pretends_pinned = True
            return made
        kwargs["device"] = "cpu"
        index, name = self._index(torch.device(device)), func.__name__
        if func in (torch.tensor, torch.as_tensor):
            self.gpu.note("uploads", name)
            self.gpu.note("reads", "upload of pageable memory")
            made = func(*args, **kwargs)
            self.gpu.order(name, index, (), made)
            return OnDevice(made, index)
        if name in NOTHING:
            made = func(*args, **kwargs)
        else:
            self.gpu.note("kernels", name)
            made = self.gpu.run(name, lambda: func(*args, **kwargs))
        self.gpu.order(name, index, (), made)
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
        if device is None or device.type != OnDevice.kind:
            return func(*args, **kwargs)
        index = self._index(device)
        if isinstance(x, OnDevice):
            if x.index != index:
                raise Forbidden("a copy from one GPU to another")
            return x if dtype is None else func(x, dtype)
        self.gpu.note("uploads", "to")
        pinned = getattr(x, "pretends_pinned", False) and kwargs.get("non_blocking")
        if not pinned:  # PyTorch waits until the copy is complete, however small it is
            self.gpu.note("reads", "upload of pageable memory")
        made = x.detach().to(dtype or x.dtype, copy=True)
        self.gpu.order("to", index, (), made)
        return OnDevice(made, index)


def _indices(args: tuple[Any, ...]) -> list[Tensor]:
    return [t for t in tree_leaves(args[1:2]) if isinstance(t, Tensor)]


def _is_view(func: Any) -> bool:
    schema = func._schema
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return False
    return any(r.alias_info is not None for r in schema.returns)


class Operators(TorchDispatchMode):
    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self.interceptor = interceptor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite):
            with self:
                found = func.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return self.interceptor.operator(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    def __init__(self, interceptor: Interceptor) -> None:
        self.interceptor = interceptor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.interceptor.function(func, args, kwargs or {})
