"""What happens to the tensors of a pretend GPU: every function of PyTorch's Python interface.

They are tensors of the host that have a home, the index of their device. What one function of
Python does is one kernel here, where a GPU may launch several.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.support.pretend.device import GPU, Forbidden

READS = {"item", "tolist", "numpy", "nonzero", "argwhere", "equal", "masked_select", "unique"}
READS |= {"__bool__", "__int__", "__float__", "__index__", "__contains__", "is_nonzero"}
MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
INDEXED = {"__getitem__", "__setitem__", "index_put_", "index_put"}
AUGMENTED = {f"__i{name}__" for name in "add sub mul truediv floordiv and or xor pow mod".split()}


def home(x: Any) -> int | None:
    """The device of a tensor; None: the host."""
    return getattr(x, "pretended_home", None)


def at_home(value: Any, index: int) -> Any:
    """The tensors in a result, now of a device."""

    def settled(x: Any) -> Any:
        if isinstance(x, Tensor):
            x.pretended_home = index  # type: ignore[attr-defined]
        return x

    return tree_map(settled, value)


def is_pinned(x: Tensor) -> bool:
    return getattr(x, "pretends_pinned", False)


class Functions(TorchFunctionMode):
    """Runs functions on the host's memory, and checks and counts them."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.__name__, dict(kwargs or {})
        if name in ("__get__", "__set__"):
            return self._attribute(func, args)
        if name == "pin_memory":
            args[0].pretends_pinned = True
            return args[0]
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func in (Tensor.to, Tensor.cpu):
            return self._move(func, *args, **kwargs)
        if name == "copy_":
            return self._copy(*args, **kwargs)
        pinned, device = kwargs.pop("pin_memory", False), kwargs.get("device")
        device = None if device is None else torch.device(device)
        index = next((home(t) for t in tensors if home(t) is not None), None)
        if device is not None and device.type == self.gpu.kind:
            kwargs["device"] = "cpu"
            index = self.gpu.current if device.index is None else device.index
        if index is None:
            self._check_arrived(tensors)
            out = func(*args, **kwargs)
            if pinned:
                out.pretends_pinned = True
            return out
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            self._upload(name)
        self._check_homes(name, args, tensors)
        if name in READS or (name in INDEXED and _by_mask(args)):
            self.gpu.note("reads", name)
        places = {t.untyped_storage().data_ptr() for t in tensors}
        out = func(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if name in READS:
            self.gpu.order(name, index, tensors, ())
            return out
        written = made
        if _in_place(name):
            written = [args[0]]
        elif "out" not in kwargs and all(t.untyped_storage().data_ptr() in places for t in made):
            return at_home(out, index)  # a view, or a number that the host knows
        self.gpu.order(name, index, tensors, written)
        if name not in MEMORY:
            self.gpu.launched(name, lambda: func(*args, **kwargs), made)
        if func is F.scaled_dot_product_attention:
            self.gpu.attention_shapes.add(tuple(tuple(t.shape) for t in tensors))
        if self.gpu.kind == "mps" and any(t.dtype == torch.float64 for t in made):
            raise Forbidden("MPS has no float64")
        return at_home(out, index)

    def _attribute(self, func: Any, args: Any) -> Any:
        name, index = func.__self__.__name__, home(args[0])
        if index is None:
            return func(*args)
        if name == "device":
            return torch.device(self.gpu.kind, index)
        return self.gpu.kind == "cuda" if name == "is_cuda" else at_home(func(*args), index)

    def _move(self, func: Any, x: Tensor, *others: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to` and `Tensor.cpu`: an upload, a read, or a change of dtype."""
        asked = [*others, *kwargs.values(), *(["cpu"] if func is Tensor.cpu else [])]
        dtype = next((a for a in asked if isinstance(a, torch.dtype)), x.dtype)
        device = next((torch.device(a) for a in asked if isinstance(a, torch.device | str)), None)
        index = home(x)
        if index is None and (device is None or device.type != self.gpu.kind):
            self._check_arrived([x])
            moved: Tensor = func(x, *others, **kwargs)
            return moved
        if self.gpu.kind == "mps" and dtype == torch.float64:
            raise Forbidden("MPS has no float64")
        if index is None:
            target = self.gpu.current if device is None or device.index is None else device.index
            # PyTorch waits until the copy is complete, however small it is
            self._upload("to", is_pinned(x) and kwargs.get("non_blocking", False))
            made = x.detach().to(dtype, copy=True)
            self.gpu.order("to", target, (), made)
            return at_home(made, target)
        if device is not None and device.type == "cpu":
            self.gpu.note("reads", "to(cpu)")
            self.gpu.order("to", index, x, ())
            return x.detach().to(dtype, copy=True)
        if device is not None and device.index not in (None, index):
            raise Forbidden("a copy from one GPU to another")
        if dtype == x.dtype and not kwargs.get("copy"):
            return x
        made = x.to(dtype, copy=True)
        self.gpu.order("to", index, x, made)
        self.gpu.launched("to", lambda: x.to(dtype, copy=True), [made])
        return at_home(made, index)

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        to, of = home(target), home(source)
        if to is None and of is not None:
            if is_pinned(target) and non_blocking:
                self.gpu.note("downloads", "copy_")
                stream = self.gpu.stream_of(of)
                stream.clock += 1
                place = target.untyped_storage().data_ptr()
                self.gpu.pending[place] = (stream.number, stream.clock, target)
            else:
                self.gpu.note("reads", "copy_")
            return target.copy_(source)
        if to is None:
            self._check_arrived([source])
            return target.copy_(source)
        if of is None and source.dim():
            self._upload("copy_", is_pinned(source))
        target.copy_(source)
        self.gpu.order("copy_", to, [t for t in (target, source) if home(t) is not None], target)
        self.gpu.launched("copy_", lambda: target.copy_(source), [])
        return target

    def _upload(self, name: str, is_pinned: bool = False) -> None:
        self.gpu.note("uploads", name)
        if not is_pinned:
            self.gpu.note("reads", "upload of pageable memory")

    def _check_homes(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        """Of the host may be numbers, and indices or what is stored at them, which are uploads."""
        if len({home(t) for t in tensors} - {None}) > 1:
            raise Forbidden(f"{name}: tensors of two GPUs")
        of_host = [t for t in tensors if home(t) is None and t.dim()]
        if of_host and name in INDEXED and home(args[0]) is not None:
            self._upload(f"{name} of the host's", all(map(is_pinned, of_host)))
        elif of_host:
            raise Forbidden(f"{name}: tensors of the host and a GPU")

    def _check_arrived(self, tensors: list[Tensor]) -> None:
        """The host may not read a download before an event after it."""
        for t in tensors if self.gpu.pending else ():
            place = t.untyped_storage().data_ptr()
            stream, clock, _ = self.gpu.pending.get(place, (0, 0, None))
            if self.gpu.complete.get(stream, 0) < clock:
                raise Forbidden("the host reads a download that may not have arrived")


def _in_place(name: str) -> bool:
    if name.startswith("__"):
        return name == "__setitem__" or name in AUGMENTED
    return name.endswith("_")


def _by_mask(args: Any) -> bool:
    """Whether an index is a mask, of which the host must know how much it chooses."""
    return any(isinstance(t, Tensor) and t.dtype == torch.bool for t in tree_leaves(args[1:2]))
