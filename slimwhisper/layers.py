"""What encoder and decoder share: linear maps, layer norms, MLPs, rounded once to a dtype."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

X86 = ("x86_64", "AMD64")


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of layer norms, positions and logits: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


def pack(weight: Tensor) -> Tensor:
    """A weight [out, in] for `linear`: on a CPU in oneDNN's blocked layout, else itself.

    float32 on x86 alone: there oneDNN's products of packed weights are two to three times faster
    than `F.linear`'s on CPUs that MKL was not written for (docs/performance.md). The packed tensor
    is opaque; its shape is the weight's.
    """
    usable = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.ndim == 2
    if not (usable and torch.backends.mkldnn.is_available() and platform.machine() in X86):
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> Tensor:
    """x W^T + b, then GELU where asked: x [..., in], weight [out, in], packed or plain."""
    if weight.is_mkldnn:
        attribute, algorithm = ("gelu", "none") if gelu else ("none", "")
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, attribute, [], algorithm)
    y = F.linear(x, weight, bias)
    return F.gelu(y) if gelu else y


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint's tensors under one prefix, brought to a device and dtype as they are read."""

    state: Mapping[str, Tensor]
    prefix: str
    device: torch.device
    dtype: torch.dtype

    def __truediv__(self, name: str) -> "Source":
        return Source(self.state, f"{self.prefix}{name}.", self.device, self.dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.state[self.prefix + name].to(self.device, dtype or self.dtype)


@dataclass(frozen=True, slots=True)
class Linear:
    """x W^T + b, W [out, in], packed where that pays."""

    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def read(source: Source, bias: bool = True) -> "Linear":
        return Linear(pack(source.tensor("weight")), source.tensor("bias") if bias else None)

    def __call__(self, x: Tensor, gelu: bool = False) -> Tensor:
        return linear(x, self.weight, self.bias, gelu)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Over the last dimension, in at least float32, returned in x's dtype."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def read(source: Source) -> "LayerNorm":
        wide = at_least_float32(source.dtype)
        return LayerNorm(source.tensor("weight", wide), source.tensor("bias", wide))

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        return F.layer_norm(wide, wide.shape[-1:], self.weight, self.bias).to(x.dtype)


@dataclass(frozen=True, slots=True)
class MLP:
    """Pre-norm feed-forward block, d -> 4 d -> d."""

    norm: LayerNorm
    up: Linear
    down: Linear

    @staticmethod
    def read(source: Source) -> "MLP":
        return MLP(
            LayerNorm.read(source / "mlp_ln"),
            Linear.read(source / "mlp" / "0"),
            Linear.read(source / "mlp" / "2"),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.up(self.norm(x), gelu=True))
