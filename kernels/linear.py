"""x W^T + b: in C (`kernels.cpu`), packed for a CPU, in int8, or PyTorch's own."""

import platform
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import DEPTHS, library, processor_has

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
    `blocks`, or `packed`, or `unpacked`.
    """

    factors: Tensor  # [out] float32
    bias: Tensor | None  # [out] float32
    sums: Tensor  # [out] int32, of the rows
    blocks: Tensor | None = None  # for `Library.integers`
    packed: Tensor | None = None  # opaque, of oneDNN
    unpacked: Tensor | None = None  # [out, in] int8

    @property
    def width(self) -> int:
        """How many outputs it has."""
        return len(self.factors)

    def dequantized(self) -> Tensor:
        """[out, in] float32; not of a weight that is packed."""
        integers = self.unpacked
        if integers is None:
            assert self.blocks is not None
            integers = self.blocks.transpose(1, 2).flatten(2).flatten(0, 1)[: len(self.factors)]
        return integers * self.factors[:, None]


Weight = Tensor | Packed | Tiled | Quantized


def quantize(weight: Tensor, bias: Tensor | None = None) -> Quantized:
    """A float32 weight [out, in], also `in_half`, and bias [out] on a CPU -> integers from -127 to
    127, rounded.

    `linear` then rounds its input too, with a factor for each row: in C to 8 bits, or with few rows
    to 16; without the functions in C to 8 or 7 bits, and on processors other than x86 not at all.
    """
    weight = weight.float()
    factors = weight.abs().amax(dim=1).clamp_(min=1e-30) / 127
    integers = (weight / factors[:, None]).round_().to(torch.int8)
    sums, compiled = integers.sum(1, dtype=torch.int32), library()
    if compiled is not None and compiled.has_integers and weight.shape[1] % 16 == 0:
        padded = F.pad(integers, (0, 0, 0, -len(integers) % 16))
        blocks = padded.view(-1, 16, weight.shape[1] // 4, 4).transpose(1, 2)
        return Quantized(factors, bias, sums, blocks=blocks.contiguous())
    if INT8_PRODUCTS:
        packed = torch.ops.onednn.qlinear_prepack(integers, None)
        return Quantized(factors, bias, sums, packed=packed)
    return Quantized(factors, bias, sums, unpacked=integers)


def _multiply_quantized(x: Tensor, weight: Quantized, gelu: bool, addend: Tensor | None) -> Tensor:
    """`linear` with a weight in int8: x [..., in] float32 -> [..., out]."""
    y: Tensor | None = None
    if weight.blocks is not None:
        if (compiled := library()) is not None:
            operands = weight.blocks, weight.sums, weight.factors, weight.bias
            y = compiled.integers(x, *operands, addend, gelu)
        if y is not None:
            return y
    elif weight.packed is not None:
        y = _by_onednn(x, weight)
    else:
        y = _in_c(x, weight.unpacked, weight.bias, factors=weight.factors)
    if y is None:  # a mode watches operators, or C does not read the weight
        y = F.linear(x, weight.dequantized(), weight.bias)
    y = y if addend is None else y + addend
    return F.gelu(y) if gelu else y


def _by_onednn(x: Tensor, weight: Quantized) -> Tensor:
    """x W^T + b of integers, in two products: x [..., in] float32 -> [..., out] float32.

    Every row is rounded to whole numbers from 0 to 255 times its step, so that its least and its
    greatest value, and 0, are among them. Without AVX512-VNNI, sums of two products of 8 bits
    overflow, and they are from 0 to 127.
    """
    most = 255 if processor_has("avx512_vnni") else 127
    least, greatest = torch.aminmax(x, dim=-1, keepdim=True)
    least, greatest = least.clamp_(max=0), greatest.clamp_(min=0)
    steps = ((greatest - least) / most).clamp_(min=1e-30)
    steps.masked_fill_(~steps.isfinite(), torch.nan)
    zeros = (-least / steps).round_()
    rounded = torch.div(x, steps).add_(zeros).round_().clamp_(max=most).to(torch.uint8)
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(rounded, 1.0, 0, weight.packed, weight.factors, torch.zeros_like(weight.sums), None),
        *(1.0, 0, torch.float32, "none", [], ""),
    )
    product.addcmul_(zeros, weight.sums * weight.factors, value=-1).mul_(steps)
    return product if weight.bias is None else product.add_(weight.bias)


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
    """How many inputs of a weight [out, in] `pack` puts in each part; None: it packs none."""
    onednn = torch.backends.mkldnn.is_available() and platform.machine() in X86
    if weight.device.type != "cpu" or not onednn:
        return None
    if weight.dtype == torch.bfloat16 and processor_has("avx512_bf16") and not small_batches:
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

    unrounded: may be float32 where x is bfloat16. A float32 x is rounded for a bfloat16 weight.
    """
    if isinstance(weight, Quantized):
        assert bias is None  # it is in the weight
        return _multiply_quantized(x, weight, gelu, addend)
    if isinstance(weight, Tiled):
        weight = weight.matrix()
    matrix = weight if isinstance(weight, Tensor) else weight.parts[0]
    if x.dtype == torch.float32 and matrix.dtype == torch.bfloat16:
        product = linear(x.bfloat16(), weight, bias, gelu and addend is None).float()
        if addend is None:
            return product
        return F.gelu(product.add_(addend)) if gelu else product.add_(addend)
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
    unrounded: bool = False,
) -> Tensor | None:
    """`Library.linear`, where there is a library and a weight."""
    compiled = library(x.dtype) if x.device.type == "cpu" else None
    if compiled is None or weight is None:
        return None
    return compiled.linear(x, weight, bias, addend, factors, unrounded)
