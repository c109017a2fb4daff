"""The layers of encoder and decoder: linear maps, layer norms and MLPs, in a given dtype."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from slimwhisper.kernels.attention import CacheWrite
from slimwhisper.kernels.blocks import MLPBlock
from slimwhisper.kernels.cpu.library import library, rounds_to_bytes
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import HalfOnGPU, Matrix, at_least_float32, packed_width, prepare


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint's tensors with one prefix, converted to a device and dtype when read."""

    state: Mapping[str, Tensor]
    prefix: str
    device: torch.device
    dtype: torch.dtype
    # of linear maps, as in `prepare`
    small_batches: bool = False
    int8: bool = False
    tiled: bool = False

    def __truediv__(self, name: str) -> "Source":
        return replace(self, prefix=f"{self.prefix}{name}.")

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, in its own shape [...]; dtype None: the source's."""
        return self.state[self.prefix + name].to(self.device, dtype or self.dtype)

    def weight(self, divided: Tensor | None) -> Tensor:
        """A linear layer's weight [out, in]; divided: by what its inputs are, [in]."""
        weight = self.tensor("weight")
        return weight if divided is None else weight * divided

    def prepared(self, weight: Tensor) -> Matrix:
        """A linear layer's weight [out, in], as it is multiplied by."""
        return prepare(weight, self.small_batches, self.int8, self.tiled)


class Linear(NamedTuple):
    """x W^T + b."""

    weight: Matrix  # [out, in]
    bias: Tensor | None = None

    @staticmethod
    def read(source: Source, bias: bool = True, divided: Tensor | None = None) -> "Linear":
        """divided: as in `Source.weight`."""
        weight = source.prepared(source.weight(divided))
        return Linear(weight, source.tensor("bias") if bias else None)

    @staticmethod
    def joined(*layers: "Linear") -> "Sequence[Linear]":
        """Layers [out, in] that read the same x as one, [n out, in], where its larger product is
        faster; else as they are.
        """
        weights = [w.matrix for w in (layer.on_gpu for layer in layers) if w is not None]
        if len(weights) < len(layers):
            return layers
        pairs = zip(weights, (layer.bias for layer in layers), strict=True)
        biases = [w.new_zeros(len(w)) if b is None else b for w, b in pairs]
        return [Linear(HalfOnGPU(torch.cat(weights)), torch.cat(biases))]

    @property
    def on_gpu(self) -> HalfOnGPU | None:
        """The weight, if its product can be added to a tensor for the price of the product."""
        return self.weight if isinstance(self.weight, HalfOnGPU) else None

    def __call__(self, x: Tensor, gelu: bool = False, addend: Tensor | None = None) -> Tensor:
        """x [..., in], addend [..., out] -> [..., out]."""
        return self.weight.multiply(x, self.bias, addend, gelu)


class LayerNorm(NamedTuple):
    """Over the last dimension; `Residual.normed` computes it."""

    weight: Tensor  # [d]
    bias: Tensor  # [d]

    @staticmethod
    def read(source: Source) -> "LayerNorm":
        wide = at_least_float32(source.dtype)
        return LayerNorm(source.tensor("weight", wide), source.tensor("bias", wide))

    @staticmethod
    def read_even(source: Source) -> "tuple[LayerNorm, Tensor | None]":
        """The norm, and by what its results [..., d] are divided, [d] or None. Where int8 rounds a
        row to bytes, that is the square root of its weight: few of a row are then much larger than
        the others (docs/internals/numerics.md).
        """
        norm = LayerNorm.read(source)
        if not (source.int8 and rounds_to_bytes()):
            return norm, None
        size = norm.weight.abs()
        roots = size.clamp(min=0.01 * float(size.mean()) + 1e-12).sqrt()
        return LayerNorm(norm.weight / roots, norm.bias / roots), roots


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
        if layer.on_gpu is None:
            self.add(layer(y))
            return
        assert self._addend is None
        total = self.x.view(-1, self.x.shape[-1])
        torch.addmm(total, y.flatten(0, -2), layer.on_gpu.matrix.T, out=total)
        if layer.bias is not None:
            wide = at_least_float32(self.x.dtype)
            self._shift = layer.bias.to(wide) if self._shift is None else self._shift + layer.bias

    def add_mlp(self, mlp: "MLP") -> None:
        """Add an MLP of the norm of the sum so far."""
        normed, ((up, down), *others) = self.normed(mlp.norm), mlp.parts
        if others or down.on_gpu is None:
            self.add(mlp(normed))
        else:
            self.add_product(up(normed, gelu=True), down)

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
    parts: Sequence[tuple[Linear, Linear]]  # up and down, for a part of the hidden values
    block: MLPBlock | None = None  # the whole, in C

    @staticmethod
    def read(source: Source) -> "MLP":
        up, down, prepared = source / "mlp" / "0", source / "mlp" / "2", source.prepared
        norm, divided = LayerNorm.read_even(source / "mlp_ln")
        wide, bias, narrow = up.weight(divided), up.tensor("bias"), down.tensor("weight")
        width = None if source.int8 or source.tiled else packed_width(narrow, source.small_batches)
        width, parts = width or narrow.shape[1], list[tuple[Linear, Linear]]()
        pieces = zip(wide.split(width), bias.split(width), narrow.split(width, dim=1), strict=True)
        for piece, its_bias, lower in pieces:
            last_bias = None if parts else down.tensor("bias")
            parts.append((Linear(prepared(piece), its_bias), Linear(prepared(lower), last_bias)))
        block = None
        if source.small_batches:  # of weights that are not packed, there is one part
            matrices = (layer.weight for layer in parts[0])
            block = MLPBlock.of(library(source.dtype), *matrices, bias, parts[0][1].bias)
        return MLP(norm, parts, block)

    def __call__(self, x: Tensor) -> Tensor:
        """The normed x [..., d] -> [..., d], to add to the residual stream."""
        if self.block is not None and (whole := self.block(x)) is not None:
            return whole
        y = None
        for up, down in self.parts:
            y = down(up(x, gelu=True), addend=y)
        assert y is not None
        return y
