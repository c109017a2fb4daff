"""What encoder and decoder share: linear maps, layer norms, MLPs, rounded once to a dtype."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of layer norms, positions and logits: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


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
    """x W^T + b, W [out, in]."""

    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def read(source: Source, bias: bool = True) -> "Linear":
        return Linear(source.tensor("weight"), source.tensor("bias") if bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


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
        return self.down(F.gelu(self.up(self.norm(x))))
