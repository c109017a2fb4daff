"""x W^T + b: in C (`kernels.cpu`), packed for a CPU, in int8, or PyTorch's own."""

import math
import platform
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import DEPTHS, library

X86 = ("x86_64", "AMD64")
INT8_PRODUCTS = "onednn" in torch.backends.quantized.supported_engines  # on x86
PACKED_DEPTH = 384  # products that oneDNN sums in one pass
BFLOAT16_PRODUCTS = torch.cpu.get_capabilities().get("avx512_bf16", False)
INT8_AMX = torch.cpu.get_capabilities().get("amx_int8", False)
# Without AVX512-VNNI, sums of two products of 8 bits overflow: the input is rounded to 7 bits.
SEVEN_BIT_INPUT = not torch.cpu.get_capabilities().get("avx512_vnni", False)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of layer norms, positions and logits: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight [out, in] in oneDNN's blocked layout, split along `in`; only for `linear`."""

    parts: tuple[Tensor, ...]  # opaque, each [out, at most PACKED_DEPTH]

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]


@dataclass(frozen=True, slots=True)
class Tiled:
    """A float32 weight [out, in] in the order in which C reads it (tiles.h), for `encoder_rows`;
    `linear` takes it where operators are watched.
    """

    blocks: Tensor  # [out / 16, in, 16]

    @staticmethod
    def of(weight: Tensor) -> "Tiled":
        """Of a weight [out, in] whose number of outputs is a multiple of 16."""
        return Tiled(weight.unflatten(0, (-1, 16)).transpose(1, 2).contiguous())

    @property
    def width(self) -> int:
        """How many outputs it has."""
        return 16 * len(self.blocks)

    def matrix(self) -> Tensor:
        """[out, in], a copy."""
        return self.blocks.transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight [out, in] in int8 with a factor per output, and its bias; only for `linear`. It has
    `blocks`, or `packed`, or `unpacked`, or the last two.
    """

    factors: Tensor  # [out] float32
    bias: Tensor | None  # [out] float32
    blocks: Tensor | None = None  # for `Library.integers`
    sums: Tensor | None = None  # [out] int32, with blocks
    packed: Tensor | None = None  # opaque, of oneDNN
    unpacked: Tensor | None = None  # [out, in] int8, for few rows or, without `packed`, for all

    @property
    def width(self) -> int:
        """How many outputs it has."""
        return len(self.factors)

    def dequantized(self) -> Tensor:
        """[out, in] float32; not of a weight that is packed alone."""
        integers = self.unpacked
        if integers is None:
            assert self.blocks is not None
            integers = self.blocks.transpose(1, 2).flatten(2).flatten(0, 1)[: len(self.factors)]
        return integers * self.factors[:, None]


Weight = Tensor | Packed | Tiled | Quantized


def quantize(weight: Tensor, bias: Tensor | None = None, small_batches: bool = False) -> Quantized:
    """A float32 weight [out, in], also `in_half`, and bias [out] on a CPU -> integers from -127 to
    127, rounded.

    small_batches: it is also used with few rows.

    `linear` then rounds its input too: to 8 bits, or with few rows to 16, with a factor for each
    row. With AMX, which oneDNN's products use, or without the functions in C, it rounds to 8 bits
    with one factor for the whole input; with AMX and few rows, and on processors other than x86,
    not at all.
    """
    weight = weight.float()
    factors = weight.abs().amax(dim=1).clamp_(min=1e-30) / 127
    integers = (weight / factors[:, None]).round_().to(torch.int8)
    compiled = library()
    usable = compiled is not None and compiled.has_integers and not INT8_AMX
    if usable and weight.shape[1] % 16 == 0:
        sums = integers.sum(1, dtype=torch.int32)
        padded = F.pad(integers, (0, 0, 0, -len(integers) % 16))
        blocks = padded.view(-1, 16, weight.shape[1] // 4, 4).transpose(1, 2)
        return Quantized(factors, bias, blocks.contiguous(), sums)
    packed = torch.ops.onednn.qlinear_prepack(integers, None) if INT8_PRODUCTS else None
    unpacked = integers if not INT8_PRODUCTS or (small_batches and library()) else None
    return Quantized(factors, bias, packed=packed, unpacked=unpacked)


def _multiply_integers(x: Tensor, weight: Quantized, gelu: bool) -> Tensor:
    """x W^T + b of integers, then GELU if `gelu`: x [..., in] float32 -> [..., out] float32.

    x is rounded to whole numbers from 0 to 255 times a factor, so that its least and its greatest
    value, and 0, are among them.
    """
    least, greatest = (t.item() for t in torch.aminmax(x))
    least, greatest = min(least, 0.0), max(greatest, 0.0)
    factor = max((greatest - least) / (127 if SEVEN_BIT_INPUT else 255), 1e-30)
    if not math.isfinite(factor):
        return x.new_full((*x.shape[:-1], len(weight.factors)), math.nan)
    zero = round(-least / factor)
    rounded = torch.mul(x, 1 / factor).add_(zero + 0.5).to(torch.uint8)
    activation, algorithm = ("gelu", "none") if gelu else ("none", "")
    zeros = torch.zeros(len(weight.factors), dtype=torch.int32)
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(rounded, factor, zero, weight.packed, weight.factors, zeros, weight.bias),
        *(1.0, 0, torch.float32, activation, [], algorithm),
    )
    return product


def _multiply_blocks(x: Tensor, weight: Quantized, gelu: bool, addend: Tensor | None) -> Tensor:
    """`linear` with a weight that has blocks: x [..., in] float32 -> [..., out]."""
    compiled, y = library(), None
    assert weight.blocks is not None and weight.sums is not None
    if compiled is not None:
        operands = weight.blocks, weight.sums, weight.factors, weight.bias
        y = compiled.integers(x, *operands, addend, gelu)
    if y is not None:
        return y
    y = F.linear(x, weight.dequantized(), weight.bias)  # under a mode that watches operators
    y = y if addend is None else y + addend
    return F.gelu(y) if gelu else y


def half_on_gpu(tensor: Tensor) -> bool:
    """Whether cuBLAS multiplies it in half precision: it adds to a tensor, and applies GELU, for
    nothing.
    """
    return tensor.device.type == "cuda" and tensor.dtype in (torch.float16, torch.bfloat16)


def pack(weight: Tensor, small_batches: bool = False) -> Weight:
    """A weight [out, in] in the form fastest for `linear`: packed on a CPU in float32, and in
    bfloat16 where the processor multiplies it; else as is.

    small_batches: it is also used with few rows, as a decoder's is. Where the products in C are
    compiled, they read it `in_half` if they can, or as it is.

    oneDNN's products with packed weights are two to three times faster than `F.linear`
    (docs/performance.md), but they are summed one after the other, which rounds more: twice as much
    for sums of 1,280. Split into parts they keep well within the rule of docs/numerics.md. In
    bfloat16 sums are wider, and there is one part.
    """
    width = packed_width(weight, small_batches)
    if width is None:
        return in_half(weight) if small_batches else weight.contiguous()
    # Private, as is the product in `linear`: PyTorch has no public operator with packed float32
    # weights. These two names are used in this file alone; a test says if a release drops them.
    reorder = torch.ops.mkldnn._reorder_linear_weight
    return Packed(tuple(reorder(p.contiguous(), None) for p in weight.split(width, dim=1)))


def in_half(weight: Tensor) -> Tensor:
    """A weight [..., out, in] in float16 if all its numbers are, and C widens them as it reads
    them; else as it is.

    The products are the same, bit for bit, and a step with few rows, which takes as long as reading
    the weights, takes half of it. OpenAI's checkpoints are in float16.
    """
    weight = weight.contiguous()
    in_c = weight.device.type == "cpu" and weight.dtype == torch.float32 and library() is not None
    if not in_c or weight.shape[-1] % DEPTHS[torch.float32]:
        return weight
    half = torch.empty_like(weight, dtype=torch.float16)
    for narrow, wide in zip(half.split(1024), weight.split(1024), strict=True):
        if not torch.equal(narrow.copy_(wide).float(), wide):
            return weight  # after the first part, at little cost
    return half


def packed_width(weight: Tensor, small_batches: bool = False) -> int | None:
    """How many inputs of a weight [out, in] each part takes that `pack` makes; None: it is not
    packed.
    """
    onednn = torch.backends.mkldnn.is_available() and platform.machine() in X86
    if weight.device.type != "cpu" or not onednn:
        return None
    if weight.dtype == torch.bfloat16 and BFLOAT16_PRODUCTS and not small_batches:
        return weight.shape[1]
    if weight.dtype != torch.float32:
        return None
    if small_batches and library() is not None and weight.shape[1] % DEPTHS[torch.float32] == 0:
        return None
    count = -(-weight.shape[1] // PACKED_DEPTH)
    return -(-weight.shape[1] // count)


def linear(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    gelu: bool = False,
    addend: Tensor | None = None,
    unrounded: bool = False,
) -> Tensor:
    """x W^T + b, added to `addend` [..., out], then GELU if `gelu`: x [..., in] -> [..., out].

    unrounded: the result may be float32 where x is bfloat16.
    """
    if isinstance(weight, Quantized):
        assert bias is None  # it is in the weight
        if weight.blocks is not None:
            return _multiply_blocks(x, weight, gelu, addend)
        fused = gelu and addend is None
        y = _in_c(
            x, weight.unpacked, weight.bias, addend, weight.factors, weight.packed is not None
        )
        if y is None and weight.packed is None:
            y = F.linear(x, weight.dequantized(), weight.bias)
            y = y if addend is None else y + addend
        elif y is None:
            y = _multiply_integers(x, weight, fused)
            if fused:
                return y
            y = y if addend is None else y + addend
        return F.gelu(y) if gelu else y
    if isinstance(weight, Tiled):
        weight = weight.matrix()
    if isinstance(weight, Tensor):
        if gelu and addend is None and bias is not None and half_on_gpu(x):
            return _with_gelu(x, weight.to(x.dtype), bias)
        y = _in_c(x, weight, bias, addend, unrounded=unrounded)
        if y is None:
            y = F.linear(x, weight.to(x.dtype), bias)
            y = y if addend is None else y + addend
        return F.gelu(y) if gelu else y
    multiply = torch.ops.mkldnn._linear_pointwise
    fused = gelu and addend is None and len(weight.parts) == 1
    total = addend
    for part, matrix in zip(x.split(weight.width, dim=-1), weight.parts, strict=True):
        if total is None:
            activation, algorithm = ("gelu", "none") if fused else ("none", "")
            total = multiply(part, matrix, bias, activation, [], algorithm)
        else:
            first_bias = bias if total is addend else None
            total = multiply.binary(part, total, matrix, first_bias, "add")
    assert total is not None
    return F.gelu(total) if gelu and not fused else total


def _with_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x W^T + b) on a GPU, in half precision: x [..., in] -> [..., out].

    cuBLAS applies GELU to sums that are not rounded yet, by the formula with tanh, which differs
    from GELU by at most 0.0005. The error is that of the other order, which rounds the sums first
    (docs/numerics.md), in three quarters of the time. PyTorch has no public operator for it.
    """
    flat = x.flatten(0, -2)
    product: Tensor = torch.ops.aten._addmm_activation(bias, flat, weight.T, use_gelu=True)
    return product.unflatten(0, x.shape[:-1])


def _in_c(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    factors: Tensor | None = None,
    small_batches: bool = True,
    unrounded: bool = False,
) -> Tensor | None:
    """`Library.linear`, where there is a library and a weight."""
    compiled = library(x.dtype) if x.device.type == "cpu" else None
    if compiled is None or weight is None:
        return None
    return compiled.linear(x, weight, bias, addend, factors, small_batches, unrounded)
