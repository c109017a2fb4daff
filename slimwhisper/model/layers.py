"""What encoder and decoder share: linear maps, layer norms and MLPs, rounded once to a dtype."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import (
    Weight,
    at_least_float32,
    few,
    linear,
    pack,
    packed_width,
    quantize,
    unpacked,
)
from slimwhisper.kernels.norm import Place, add_norm


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint's tensors under one prefix, moved to a device and dtype as they are read."""

    state: Mapping[str, Tensor]
    prefix: str
    device: torch.device
    dtype: torch.dtype
    int8: bool = False  # linear maps in int8
    few: bool = False  # they serve few rows, too

    def __truediv__(self, name: str) -> "Source":
        return replace(self, prefix=f"{self.prefix}{name}.")

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, in its own shape [...]; dtype None: the source's."""
        return self.state[self.prefix + name].to(self.device, dtype or self.dtype)


@dataclass(frozen=True, slots=True)
class Linear:
    """x W^T + b, W [out, in], packed where that is faster."""

    weight: Weight
    bias: Tensor | None

    @staticmethod
    def read(source: Source, bias: bool = True) -> "Linear":
        weight, offset = source.tensor("weight"), source.tensor("bias") if bias else None
        if source.int8:
            return Linear(quantize(weight, offset, source.few), None)
        return Linear(pack(weight), offset)

    def __call__(self, x: Tensor, gelu: bool = False) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(x, self.weight, self.bias, gelu)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Over the last dimension, computed in at least float32, returned in x's dtype."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def read(source: Source) -> "LayerNorm":
        wide = at_least_float32(source.dtype)
        return LayerNorm(source.tensor("weight", wide), source.tensor("bias", wide))

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d]."""
        return add_norm(x, None, self.weight, self.bias)[1]


class Residual:
    """The residual stream of one call: every block reads a norm of it, and adds to it.

    What a block adds is summed where the next norm is read, which on a GPU is one launch.
    """

    def __init__(self, x: Tensor, kernels: Kernels) -> None:
        """x [R, d] or [B, T, d]."""
        self.x, self.kernels = x, kernels
        self._added: Tensor | None = None

    def add(self, y: Tensor) -> None:
        """Add y, of the stream's shape; its memory may be used for the sum."""
        assert self._added is None, "a norm is read before the next block adds"
        self._added = y

    def normed(self, norm: LayerNorm, place: Place | None = None) -> Tensor:
        """The norm of the sum so far, of the stream's shape; `place` as in `kernels.norm`."""
        added, self._added = self._added, None
        self.x, normed = self.kernels.add_norm(self.x, added, norm.weight, norm.bias, place)
        return normed


@dataclass(frozen=True, slots=True)
class MLP:
    """Feed-forward block, d -> 4 d -> d, and the norm before it. With packed weights it is computed
    for some of the hidden values at a time, so that these stay in a CPU's caches; few rows take
    the whole weights, where these are kept too.
    """

    norm: LayerNorm
    parts: Sequence[tuple[Linear, Weight]]  # (up, down) for some of the hidden values
    up_bias: Tensor | None
    down_bias: Tensor | None
    whole: tuple[Tensor, Tensor] | None = None  # up [4 d, d], down [d, 4 d]

    @staticmethod
    def read(source: Source) -> "MLP":
        up, down, norm = source / "mlp" / "0", source / "mlp" / "2", source / "mlp_ln"
        if source.int8:
            both = (Linear.read(up), Linear.read(down).weight)
            return MLP(LayerNorm.read(norm), [both], None, None)
        wide, bias, narrow = up.tensor("weight"), up.tensor("bias"), down.tensor("weight")
        width = packed_width(narrow) or narrow.shape[1]
        pieces = zip(wide.split(width), bias.split(width), narrow.split(width, dim=1), strict=True)
        parts = [(Linear(pack(u), b), pack(d)) for u, b, d in pieces]
        first, second = (unpacked(w) if source.few else None for w in (wide, narrow))
        whole = None if first is None or second is None else (first, second)
        return MLP(LayerNorm.read(norm), parts, bias, down.tensor("bias"), whole)

    def __call__(self, x: Tensor) -> Tensor:
        """The normed x [..., d] -> what the residual stream gains, [..., d]."""
        if self.whole is not None:
            up, down = self.whole
            hidden = few(x, up, self.up_bias)
            y = None if hidden is None else few(F.gelu(hidden), down, self.down_bias)
            if y is not None:
                return y
        y = None
        for piece, weight in self.parts:
            bias = self.down_bias if y is None else None
            y = linear(piece(x, gelu=True), weight, bias, onto=y)
        assert y is not None
        return y
