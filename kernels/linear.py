"""x W^T + b: each weight in the form in which its device multiplies fastest, chosen once.

`prepare` and `pack` choose the form: in C (`kernels.cpu`), packed by oneDNN, in int8, or PyTorch's
own.
"""

import platform
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import FINE_ROWS, Library, intercepted, library, processor_has

Vector = Tensor | None  # a bias [out], or an addend [..., out]
X86 = ("x86_64", "AMD64")
INT8_PRODUCTS = "onednn" in torch.backends.quantized.supported_engines  # on x86
PACKED_DEPTH = 384  # products that oneDNN sums in one pass
_INSTRUCTIONS = {  # by the C function that multiplies
    "multiply_rows_wide": "AVX-512",
    "multiply_integers_wide": "AVX512-VNNI",
    "multiply_rows_bf16": "AVX512-BF16",
}


def describe_paths() -> str:
    """What multiplies here, by dtype: "float32 AVX2, int8 AVX2, bfloat16 PyTorch"."""
    found = []
    for name, compiled, function in (
        ("float32", library(), "multiply_rows"),
        ("int8", library(), "multiply_integers"),
        ("bfloat16", library(torch.bfloat16), "multiply_rows"),
    ):
        path = "PyTorch"
        if compiled is not None and function in compiled.functions:
            symbol = compiled.functions[function].__name__
            path = _INSTRUCTIONS.get(symbol, "AVX2" if compiled.has_integers else "C")
        found.append(f"{name} {path}")
    return ", ".join(found)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of layer norms, positions and logits: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


class Matrix(Protocol):
    """A weight [out, in] in the form in which its device multiplies fastest."""

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        """x W^T + b, plus `addend` [..., out], then GELU if `gelu`: x [..., in] -> [..., out]."""

    def unrounded(self, x: Tensor) -> Tensor:
        """x W^T, which may be float32 where x is bfloat16."""
        return self.multiply(x, None, None, False)


Weight = Tensor | Matrix


def finish(y: Tensor, addend: Vector, gelu: bool) -> Tensor:
    """y [..., out], whose memory may be used, with what a form does not do as it multiplies."""
    y = y if addend is None else y.add_(addend)
    return F.gelu(y) if gelu else y


@dataclass(frozen=True)
class Plain(Matrix):
    """A weight as it is, for PyTorch."""

    matrix: Tensor  # [out, in]

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        return finish(F.linear(x, self.matrix.to(x.dtype), bias), addend, gelu)


@dataclass(frozen=True)
class Compiled(Plain):
    """A weight that C reads in place, in float16 too for x in float32. PyTorch multiplies by it
    where C does not: many rows on some processors, or a mode that watches operators.
    """

    library: Library

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        y = self.library.linear(x, self.matrix, bias, addend)
        if y is None:
            return super().multiply(x, bias, addend, gelu)
        return F.gelu(y) if gelu else y

    def unrounded(self, x: Tensor) -> Tensor:
        y = self.library.linear(x, self.matrix, unrounded=True)
        return super().unrounded(x) if y is None else y


@dataclass(frozen=True)
class HalfOnGPU(Plain):
    """A weight for cuBLAS in half precision: it adds to a tensor, and applies GELU, for nothing."""

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        if not gelu or addend is not None or bias is None:
            return super().multiply(x, bias, addend, gelu)
        # cuBLAS applies GELU to sums that are not rounded yet, by the formula with tanh, which
        # differs from GELU by at most 0.0005. The error is that of the other order, which rounds
        # the sums first (docs/internals/numerics.md), in three quarters of the time. PyTorch has no
        # public operator for it.
        flat = x.flatten(0, -2)
        y: Tensor = torch.ops.aten._addmm_activation(bias, flat, self.matrix.T, use_gelu=True)
        return y.unflatten(0, x.shape[:-1])


@dataclass(frozen=True)
class Packed(Matrix):
    """A weight in oneDNN's blocked layout, split along `in`."""

    parts: tuple[Tensor, ...]  # opaque, each [out, at most PACKED_DEPTH]

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        run, total = torch.ops.mkldnn._linear_pointwise, addend
        fused = gelu and addend is None and len(self.parts) == 1
        activation, algorithm = ("gelu", "none") if fused else ("none", "")
        for part, matrix in zip(x.split(self.parts[0].shape[1], -1), self.parts, strict=True):
            if total is None:
                total = run(part, matrix, bias, activation, [], algorithm)
            else:
                total = run.binary(part, total, matrix, bias, "add")
            bias = None
        assert total is not None
        return F.gelu(total) if gelu and not fused else total


@dataclass(frozen=True)
class Rounded(Matrix):
    """A weight in bfloat16, for which x in float32 is rounded."""

    matrix: Matrix

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        bias, fused = None if bias is None else bias.bfloat16(), gelu and addend is None
        y = self.matrix.multiply(x.bfloat16(), bias, None, fused).float()
        return finish(y, addend, gelu and not fused)


@dataclass(frozen=True)
class Tiled(Matrix):
    """A float32 weight in the order in which C reads it (tiles.h), for `encoder_rows`; it
    multiplies by itself only where operators are watched.
    """

    blocks: Tensor  # [out / 16, in, 16]

    @staticmethod
    def of(weight: Tensor) -> "Tiled":
        """Of a weight [out, in] whose number of outputs is a multiple of 16."""
        return Tiled(weight.unflatten(0, (-1, 16)).transpose(1, 2).contiguous())

    def matrix(self) -> Tensor:
        """[out, in], a copy."""
        return self.blocks.transpose(1, 2).flatten(0, 1)

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        return finish(F.linear(x, self.matrix(), bias), addend, gelu)


@dataclass(frozen=True)
class Quantized(Matrix):
    """A weight in int8 with a factor per output, for x in float32, which is not rounded."""

    integers: Tensor  # [out, in] int8, or in the order of a subclass
    factors: Tensor  # [out] float32
    sums: Tensor  # [out] int32, of the rows
    library: Library | None  # that reads `integers`

    def dequantized(self) -> Tensor:
        """[out, in] float32."""
        return self.integers * self.factors[:, None]

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        compiled, y = self.library, None
        if compiled is not None:
            y = compiled.linear(x, self.integers, bias, factors=self.factors)
        y = F.linear(x, self.dequantized(), bias) if y is None else y
        return finish(y, addend, gelu)


@dataclass(frozen=True)
class QuantizedInC(Quantized):
    """A weight by which C multiplies in integers: `integers` is [out / 16, in / 4, 16, 4], at its
    end with zeros. x is rounded to 8 bits with a factor for each row, up to `fine_rows` to 16.
    """

    fine_rows: int = FINE_ROWS

    def dequantized(self) -> Tensor:
        rows = self.integers.transpose(1, 2).flatten(2).flatten(0, 1)
        return rows[: len(self.factors)] * self.factors[:, None]

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        width, depth, compiled = len(self.factors), 4 * self.integers.shape[1], self.library
        rows, x = x.numel() // depth, x.contiguous()
        assert compiled is not None
        if not rows or intercepted() or not compiled.readable(x):
            return finish(F.linear(x, self.dequantized(), bias), addend, gelu)
        planes = 2 if rows <= self.fine_rows else 1
        addend = None if addend is None else addend.contiguous()
        operands = x, self.integers, self.sums, self.factors, bias, addend
        rounded = torch.empty((rows, planes, depth), dtype=torch.int16)  # with AVX-512, bytes
        y, steps = torch.empty((*x.shape[:-1], width)), torch.empty((rows, 2))
        sizes = rows, width, depth, planes, int(gelu)
        compiled.call("multiply_integers", y, *operands, rounded, steps, *sizes)
        return y


class QuantizedByOneDNN(Quantized):
    """A weight by which oneDNN multiplies in integers: `integers` is opaque. x is rounded to 8 bits
    with a factor for each row, or to 7.
    """

    def multiply(self, x: Tensor, bias: Vector, addend: Vector, gelu: bool) -> Tensor:
        """Every row of x is rounded to whole numbers from 0 to 255 times its step, so that its
        least and its greatest value, and 0, are among them. Without AVX512-VNNI, sums of two
        products of 8 bits overflow, and they are from 0 to 127.
        """
        most = 255 if processor_has("avx512_vnni") else 127
        least, greatest = torch.aminmax(x, dim=-1, keepdim=True)
        least, greatest = least.clamp_(max=0), greatest.clamp_(min=0)
        steps = ((greatest - least) / most).clamp_(min=1e-30)
        steps.masked_fill_(~steps.isfinite(), torch.nan)
        zeros = (-least / steps).round_()
        rounded = torch.div(x, steps).add_(zeros).round_().clamp_(max=most).to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(rounded, 1.0, 0, self.integers, self.factors, torch.zeros_like(self.sums), None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        y.addcmul_(zeros, self.sums * self.factors, value=-1).mul_(steps)
        return finish(y if bias is None else y.add_(bias), addend, gelu)


def quantize(weight: Tensor, fine_rows: int = FINE_ROWS) -> Quantized:
    """A float32 weight [out, in] on a CPU, also `in_half` -> integers from -127 to 127, rounded.
    fine_rows: as in `QuantizedInC`.
    """
    weight = weight.float()
    factors = weight.abs().amax(dim=1).clamp_(min=1e-30) / 127
    integers = (weight / factors[:, None]).round_().to(torch.int8)
    sums, compiled = integers.sum(1, dtype=torch.int32), library()
    if compiled is not None and compiled.has_integers and weight.shape[1] % 16 == 0:
        padded = F.pad(integers, (0, 0, 0, -len(integers) % 16))
        blocks = padded.view(-1, 16, weight.shape[1] // 4, 4).transpose(1, 2)
        return QuantizedInC(blocks.contiguous(), factors, sums, compiled, fine_rows)
    if INT8_PRODUCTS:
        packed = torch.ops.onednn.qlinear_prepack(integers, None)
        return QuantizedByOneDNN(packed, factors, sums, None)
    reads = compiled is not None and compiled.multiplies(integers, torch.int8)
    return Quantized(integers, factors, sums, compiled if reads else None)


def half_on_gpu(tensor: Tensor) -> bool:
    """Whether cuBLAS multiplies it in half precision."""
    return tensor.device.type == "cuda" and tensor.dtype in (torch.float16, torch.bfloat16)


def prepare(
    weight: Tensor, small_batches: bool = False, int8: bool = False, tiled: bool = False
) -> Matrix:
    """A model's weight [out, in] in the form fastest for it here.

    Arguments:
        weight: in the model's dtype.
        small_batches: it is also used with few rows, as a decoder's is.
        int8: it is rounded to 8 bits; only on a CPU, in float32.
        tiled: it is laid out for `encoder_rows`.
    """
    # tiles of bfloat16 are multiplied faster than int8 in C with a factor for each row
    if int8 and not small_batches and processor_has("amx_bf16"):
        return Rounded(pack(weight.bfloat16()))
    if int8:
        return quantize(weight)
    return Tiled.of(weight) if tiled else pack(weight, small_batches)


def pack(weight: Tensor, small_batches: bool = False) -> Matrix:
    """A weight [out, in] that is not rounded: packed on a CPU in float32, and in bfloat16 where the
    processor multiplies it; else as is.

    small_batches: it is also used with few rows, as a decoder's is. Where the products in C are
    compiled, they read it `in_half` if they can, or as it is.

    oneDNN's products with packed weights are two to three times faster than `F.linear`, but they
    are summed one after the other, which rounds more: twice as much for sums of 1,280. Split into
    parts they keep well within the rule of docs/internals/numerics.md. In bfloat16 sums are wider,
    and there is one part.
    """
    width = packed_width(weight, small_batches)
    if width is None:
        return as_it_is(in_half(weight) if small_batches else weight.contiguous())
    # Private, as is the product of `Packed`: PyTorch has no public operator with packed float32
    # weights. These two names are used in this file alone; a test says if a release drops them.
    reorder = torch.ops.mkldnn._reorder_linear_weight
    return Packed(tuple(reorder(p.contiguous(), None) for p in weight.split(width, dim=1)))


def as_it_is(weight: Tensor) -> Plain:
    """A weight [out, in] that stays where it is."""
    if half_on_gpu(weight):
        return HalfOnGPU(weight)
    compiled = library(torch.float32 if weight.dtype == torch.float16 else weight.dtype)
    if compiled is not None and compiled.multiplies(weight):
        return Compiled(weight, compiled)
    return Plain(weight)


def in_half(weight: Tensor) -> Tensor:
    """A weight [..., out, in] in float16 if all its numbers are, and C widens them as it reads
    them; else as it is.

    The products are the same, bit for bit, and a step with few rows, which takes as long as reading
    the weights, takes half of it. OpenAI's checkpoints are in float16.
    """
    weight, compiled = weight.contiguous(), library()
    if weight.dtype != torch.float32 or compiled is None or not compiled.multiplies(weight):
        return weight
    half = torch.empty_like(weight, dtype=torch.float16)
    parts = zip(half.split(1024), weight.split(1024), strict=True)
    # where they differ, the first part usually says so, at little cost
    same = all(torch.equal(narrow.copy_(wide).float(), wide) for narrow, wide in parts)
    return half if same else weight


def packed_width(weight: Tensor, small_batches: bool = False) -> int | None:
    """How many inputs of a weight [out, in] `pack` puts in each part; None: it packs none."""
    onednn = torch.backends.mkldnn.is_available() and platform.machine() in X86
    if weight.device.type != "cpu" or not onednn:
        return None
    if weight.dtype == torch.bfloat16 and processor_has("avx512_bf16") and not small_batches:
        return weight.shape[1]
    if weight.dtype != torch.float32:
        return None
    if small_batches and (compiled := library()) and compiled.multiplies(weight.contiguous()):
        return None
    count = -(-weight.shape[1] // PACKED_DEPTH)
    return -(-weight.shape[1] // count)


def linear(x: Tensor, weight: Weight, bias: Vector = None) -> Tensor:
    """x W^T + b: x [..., in] -> [..., out]."""
    matrix = as_it_is(weight) if isinstance(weight, Tensor) else weight
    return matrix.multiply(x, bias, None, False)
