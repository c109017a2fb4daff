"""The layers of encoder and decoder: linear maps, layer norms and MLPs, in a given dtype."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slimwhisper.checkpoint.validate import FACTORS
from slimwhisper.kernels.cpu.blocks import MLPBlock
from slimwhisper.kernels.cpu.library import library, processor_has
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import (
    Tiled,
    Weight,
    at_least_float32,
    half_on_gpu,
    linear,
    pack,
    packed_width,
    quantize,
)
from slimwhisper.kernels.norm import CacheWrite, add_norm


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint's tensors with one prefix, converted to a device and dtype when read."""

    state: Mapping[str, Tensor]
    prefix: str
    device: torch.device
    dtype: torch.dtype
    int8: bool = False  # linear maps in int8
    small_batches: bool = False  # they also serve few rows
    tiled: bool = False  # they are `Tiled`

    def __truediv__(self, name: str) -> "Source":
        return replace(self, prefix=f"{self.prefix}{name}.")

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, in its own shape [...]; dtype None: the source's."""
        return self.state[self.prefix + name].to(self.device, dtype or self.dtype)

    def matrices(self) -> list[Tensor]:
        """A linear layer's weight [out, in]; of a factored layer, the two that are multiplied by
        one after the other, [r, in] and [out, r] (`checkpoint.formats.lite_whisper`).
        """
        if f"{self.prefix}weight" in self.state:
            return [self.tensor("weight")]
        return [self.tensor(name).T.contiguous() for name in FACTORS]


@dataclass(frozen=True, slots=True)
class Linear:
    """x W^T + b, W [out, in], packed where that is faster; of a factored layer, x W_1^T W^T + b."""

    weight: Weight  # [out, in], or [out, r]
    bias: Tensor | None
    first: Weight | None = None  # W_1 [r, in]

    @staticmethod
    def read(source: Source, bias: bool = True) -> "Linear":
        *factor, weight = source.matrices()
        layer = Linear.of(source, weight, source.tensor("bias") if bias else None)
        return replace(layer, first=Linear.of(source, factor[0]).weight) if factor else layer

    @staticmethod
    def of(source: Source, weight: Tensor, bias: Tensor | None = None) -> "Linear":
        """weight [out, in], bias [out], in the form in which the source's layers multiply."""
        # tiles of bfloat16 are multiplied faster than int8 in C with a factor for each row
        if source.int8 and not source.small_batches and processor_has("amx_bf16"):
            return Linear(pack(weight.bfloat16()), None if bias is None else bias.bfloat16())
        if source.int8:
            return Linear(quantize(weight, bias), None)
        if source.tiled:
            return Linear(Tiled.of(weight), bias)
        return Linear(pack(weight, source.small_batches), bias)

    @staticmethod
    def joined(*layers: "Linear") -> "Linear | None":
        """Layers [out, in] that read the same x as one, [n out, in], where its larger product is
        faster; else None.
        """
        if not all(layer.accumulates for layer in layers):
            return None
        pairs = [(w, b) for w, b in (layer.pair for layer in layers) if isinstance(w, Tensor)]
        biases = [w.new_zeros(len(w)) if b is None else b for w, b in pairs]
        return Linear(torch.cat([w for w, _ in pairs]), torch.cat(biases))

    def split(self, count: int) -> "list[Linear]":
        """The layers of which it was joined; they share its memory."""
        assert isinstance(self.weight, Tensor) and self.bias is not None
        parts = zip(self.weight.chunk(count), self.bias.chunk(count), strict=True)
        return [Linear(weight, bias) for weight, bias in parts]

    @property
    def accumulates(self) -> bool:
        """Whether its product can be added to a tensor in place, for the price of the product."""
        return isinstance(self.weight, Tensor) and self.first is None and half_on_gpu(self.weight)

    @property
    def pair(self) -> tuple[Weight, Tensor | None]:
        """weight and bias."""
        return self.weight, self.bias

    def __call__(self, x: Tensor, gelu: bool = False) -> Tensor:
        """x [..., in] -> [..., out]."""
        if self.first is not None:
            x = linear(x, self.first)
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

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """weight and bias, [d] each."""
        return self.weight, self.bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d]."""
        return add_norm(x, None, self.weight, self.bias)[1]


class Residual:
    """The residual stream of one call: every block reads a norm of it, and adds to it.

    The sum and the next norm are computed together, on a GPU in one launch.
    """

    def __init__(self, x: Tensor, kernels: Kernels) -> None:
        """x [R, d] or [B, T, d]; `add_product` writes to it."""
        self.x, self.kernels = x, kernels
        self._addend: Tensor | None = None
        self._shift: Tensor | None = None  # [d]: what every row lacks, the biases of `add_product`

    def add(self, y: Tensor) -> None:
        """Add y, of the stream's shape; its memory may be used for the sum."""
        assert self._addend is None, "a norm is read before the next block adds"
        self._addend = y

    def add_product(self, y: Tensor, layer: Linear) -> None:
        """Add layer(y), y [..., in]. On a GPU in half precision the product is added in place, so
        that the next norm reads one tensor, and writes one; the bias is left to the norms.
        """
        if not layer.accumulates:
            self.add(layer(y))
            return
        assert isinstance(layer.weight, Tensor) and self._addend is None
        total = self.x.view(-1, self.x.shape[-1])
        torch.addmm(total, y.flatten(0, -2), layer.weight.T, out=total)
        if layer.bias is not None:
            wide = at_least_float32(self.x.dtype)
            self._shift = layer.bias.to(wide) if self._shift is None else self._shift + layer.bias

    def add_mlp(self, mlp: "MLP") -> None:
        """Add an MLP of the norm of the sum so far."""
        normed, down = self.normed(mlp.norm), mlp.down
        if down is None:
            self.add(mlp(normed))
        else:
            self.add_product(mlp.parts[0][0](normed, gelu=True), down)

    def keep(self, positions: Tensor) -> None:
        """Go on with some tokens of [B, T, d] alone: positions [B, n] int64."""
        index = torch.arange(len(positions), device=positions.device)[:, None], positions
        self.x = self.x[index]
        self._addend = None if self._addend is None else self._addend[index]

    def normed(self, norm: LayerNorm, write: CacheWrite | None = None) -> Tensor:
        """The norm of the sum so far, of the stream's shape. write: where to store it as well."""
        addend, self._addend = self._addend, None
        self.x, normed = self.kernels.add_norm(
            self.x, addend, norm.weight, norm.bias, write, self._shift
        )
        return normed


@dataclass(frozen=True, slots=True)
class MLP:
    """Feed-forward block, d -> 4 d -> d, and the norm before it. With packed weights, parts of the
    hidden values are computed one after the other, so that they stay in a CPU's caches.
    """

    norm: LayerNorm
    parts: Sequence[tuple[Linear, Weight]]  # (up, down) for a part of the hidden values
    down_bias: Tensor | None
    first: Linear | None = None  # d -> r, before the parts, where `up` is factored
    last: Linear | None = None  # r -> d, after them, where `down` is
    block: MLPBlock | None = None  # the whole, in C

    @staticmethod
    def read(source: Source) -> "MLP":
        up, down, norm = source / "mlp" / "0", source / "mlp" / "2", source / "mlp_ln"
        *inner, wide = up.matrices()
        narrow, *outer = down.matrices()
        bias, down_bias = up.tensor("bias"), None if outer else down.tensor("bias")
        first = Linear.of(source, inner[0]) if inner else None
        last = Linear.of(source, outer[0], down.tensor("bias")) if outer else None
        if source.int8 or source.tiled:
            lower = Linear.of(source, narrow, down_bias)
            part = Linear.of(source, wide, bias), lower.weight
            return MLP(LayerNorm.read(norm), [part], lower.bias, first, last)
        width = packed_width(narrow, source.small_batches) or narrow.shape[1]
        pieces = zip(wide.split(width), bias.split(width), narrow.split(width, dim=1), strict=True)
        parts = [(Linear.of(source, u, b), pack(d, source.small_batches)) for u, b, d in pieces]
        block = None
        if source.small_batches and not inner:  # of weights that are not packed, there is one part
            (up_part, down_part), *_ = parts
            matrices = up_part.weight, down_part
            block = MLPBlock.of(library(source.dtype), *matrices, bias, down_bias)
        return MLP(LayerNorm.read(norm), parts, down_bias, first, last, block)

    @property
    def down(self) -> Linear | None:
        """4 d -> d, if there is one product, of all hidden values."""
        if self.first or self.last or self.block or len(self.parts) > 1:
            return None
        return Linear(self.parts[0][1], self.down_bias)

    def __call__(self, x: Tensor) -> Tensor:
        """The normed x [..., d] -> [..., d], to add to the residual stream."""
        if self.block is not None and (whole := self.block(x)) is not None:
            return whole
        if self.first is not None:
            x = self.first(x)
        y = None
        for up, down in self.parts:
            bias = self.down_bias if y is None else None
            y = linear(up(x, gelu=True), down, bias, addend=y)
        assert y is not None
        return y if self.last is None else self.last(y)
