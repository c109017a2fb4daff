"""A decoder's products and attention in C, if they were compiled.

PyTorch's products are made for many rows. With a few rows, only reading the weights takes time, and
these functions read them once, at the speed of memory; with more rows they are as fast as oneDNN's,
and need no packed weights. Everything here has a slower equivalent in PyTorch, which is used if
there was no compiler at installation, on a processor without AVX2, or with
SLIMWHISPER_KERNELS=torch.

In bfloat16 they need a processor with AVX512-BF16.

The functions run on threads of their own (threads.c), as many as PyTorch uses.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.kernels.attention import ALL, MAX_ROWS, CacheWrite, Latent, Reads

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
VERSION = 8  # when a function's arguments change, raise it, and in usable.c, too
_SIGNATURES: dict[str, Sequence[Any]] = {
    "multiply_rows": (*[POINTER] * 7, *[LONG] * 3, *[INT] * 3),
    "multiply_head_rows": (*[POINTER] * 4, *[LONG] * 4, INT, INT),
    "multiply_heads_transposed": (*[POINTER] * 3, *[LONG] * 4, INT, INT),
    "attend_pages": (*[POINTER] * 10, *[LONG] * 11, FLOAT, INT),
    "latent_block": (*[POINTER] * 7, LONG, INT),
    "mlp": (*[POINTER] * 5, LONG, INT),
    "decoder_layers": (*[POINTER] * 15, LONG, LONG, INT),
    "add_norm": (*[POINTER] * 9, *[LONG] * 4, INT),
}
# of float32, for both dtypes; with bfloat16 there is AVX-512
_FLOATS = {"attend_pages_half": _SIGNATURES["attend_pages"]}  # keys and values in float16
_FLOATS["choose_token"] = (*[POINTER] * 12, *[LONG] * 8, INT, INT)
_ENCODER_ATTENTION = {"encoder_attention": (*[POINTER] * 5, *[LONG] * 6, FLOAT, INT, INT)}
_ENCODER_ROWS = (*[POINTER] * 7, LONG, LONG, INT)
_INTEGERS = {
    "multiply_integers": (*[POINTER] * 9, *[LONG] * 4, INT, INT),
    "multiply_heads_integers": (*[POINTER] * 7, *[LONG] * 4, INT),
    "encoder_rows_integers": _ENCODER_ROWS,
    "attend_pages_integers": _SIGNATURES["attend_pages"],
}
_X86 = _ENCODER_ATTENTION | {"encoder_rows": _ENCODER_ROWS} | _INTEGERS  # of float32
_X86 |= {"encoder_attention_integers": _ENCODER_ATTENTION["encoder_attention"]}
# of one variant in float32
NARROW = ("multiply_heads_transposed", "encoder_attention_integers")
_AVX512, _AVX512_VNNI, _AVX512_BF16 = 2, 3, 4  # what `usable` returns


NATIVE = Path(__file__).with_name("_native.so")
# depths of products and widths of latents must be multiples of it
DEPTHS = {torch.float32: 16, torch.bfloat16: 32}  # the dtypes that there are functions for
PART_DEPTH = 1536  # products of bfloat16 that are summed at a time, as in products.c
MAX_HEAD = 128  # columns of a head: of an encoder's, and of maps in bfloat16
POSITIONS = 64  # an encoder's keys and values are padded to a multiple of it
FINE_ROWS = 8  # rows at most that products of integers round to 16 bits; attention's, any number
BFLOAT16_ROWS = 32  # rows at most of products in bfloat16
AVX2_ROWS = 128  # rows of products with AVX2: with as many, PyTorch's are faster
BLOCK = 64  # positions that attention reads at a time; a multiple of pages


def intercepted() -> bool:
    """Whether a dispatch mode sees all operators, to record them or to run without values: it would
    not see calls of C.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def processor_has(feature: str) -> bool:
    """Whether the processor has it, such as "avx512_bf16". All but the C (usable.c) asks here."""
    return bool(torch.cpu.get_capabilities().get(feature, False))


def rounds_to_bytes() -> bool:
    """Whether products with weights in int8 round many rows to 8 bits, or to fewer."""
    return processor_has("avx512_vnni") or library() is None


class Library:
    """The compiled functions of one dtype, and the back end of `Kernels` in C. Every tensor is on
    the CPU, contiguous, and of that dtype unless stated otherwise. A function that cannot run
    returns None, and the caller uses PyTorch.
    """

    def __init__(self, path: Path, wide: bool = True, dtype: torch.dtype = torch.float32) -> None:
        """wide: with AVX-512, if the processor has it. dtype: float32 or bfloat16. Raises OSError
        if it does not load, or the processor cannot run it; AttributeError for an older library.
        """
        self.path, self.dtype, self.depth = "c", dtype, DEPTHS[dtype]
        self.functions: dict[str, Callable[..., None]] = {}
        self.addresses: dict[str, int | None] = {}  # of the functions, for others that call them
        library, bfloat16 = ctypes.CDLL(str(path)), dtype == torch.bfloat16
        if (version := library.version()) != VERSION:
            raise AttributeError(f"functions of version {version}, not {VERSION}")
        usable = library.usable()
        if not usable or (bfloat16 and usable < _AVX512_BF16):
            raise OSError(f"the processor has no {'AVX512-BF16' if bfloat16 else 'AVX2'}")
        signatures, x86 = _SIGNATURES | _FLOATS, hasattr(library, "encoder_rows")
        if bfloat16:
            signatures |= _ENCODER_ATTENTION
        elif x86:
            signatures |= _X86
        for name, types in signatures.items():
            least = _AVX512_VNNI if name in _INTEGERS else _AVX512
            suffix = "_wide" if wide and usable >= least and name not in NARROW else ""
            if bfloat16 and name not in _FLOATS:
                suffix = "_bf16"
            function = self.functions[name] = getattr(library, name + suffix)
            function.argtypes, function.restype = types, None
            self.addresses[name] = ctypes.cast(function, POINTER).value
        # with more rows in bfloat16, oneDNN's products are faster
        self.most_rows = BFLOAT16_ROWS if bfloat16 else 2**31
        self.is_avx2 = x86 and not (wide and usable >= _AVX512)
        self.has_integers = "multiply_integers" in self.functions
        self.has_encoder_attention = "encoder_attention" in self.functions

    def call(self, name: str, *arguments: Tensor | float | None) -> None:
        """Run a function: tensors become their addresses, and the threads' number comes last."""
        values = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        self.functions[name](*values, torch.get_num_threads())

    def readable(self, t: Tensor, dtype: torch.dtype | None = None) -> bool:
        """Whether C can read the tensor in place. dtype: None: the library's."""
        return t.dtype == (dtype or self.dtype) and t.device.type == "cpu" and t.is_contiguous()

    def multiplies(self, weight: Tensor, dtype: torch.dtype | None = None) -> bool:
        """Whether C can multiply by a tensor [..., n, in] where it lies, a weight, keys or values:
        of this dtype or, where that is float32, in float16, which it widens.
        """
        if dtype is None and self.dtype == torch.float32 and weight.dtype == torch.float16:
            dtype = torch.float16
        return weight.shape[-1] % self.depth == 0 and self.readable(weight, dtype)

    def reads_in_place(self, reads: Reads, page: int) -> bool:
        """Whether attention in C can read so, from slots or pages of `page` positions."""
        table, bias = reads.block_table, reads.position_bias
        if not all(
            t is None or self.readable(t, torch.int64) for t in (reads.slots, reads.lengths)
        ):
            return False
        if bias is not None and (bias.dtype != torch.float32 or bias.stride(-1) != 1):
            return False
        if table is None:
            return True
        in_place = table.dtype == torch.int64 and table.stride(1) == 1
        return in_place and (not BLOCK % page or page >= reads.extent)

    def _workspace(self, out: Tensor, depth: int) -> Tensor:
        """For the sums of a part of the depth: float32, like `out`; `out` itself where it serves or
        where there is one part.
        """
        if out.dtype == torch.float32 or depth <= PART_DEPTH:
            return out
        return torch.empty_like(out, dtype=torch.float32)

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        addend: Tensor | None = None,
        factors: Tensor | None = None,
        unrounded: bool = False,
    ) -> Tensor | None:
        """x W^T * factors + bias + addend: x [..., in] -> [..., out]. weight: [out, in], one that
        it `multiplies`; in int8 with factors [out], and only so. unrounded: the result is float32.
        """
        width, depth = weight.shape
        rows = x.numel() // depth
        if not 0 < rows <= self.most_rows or intercepted():
            return None
        if self.is_avx2 and factors is None and rows >= AVX2_ROWS:
            return None
        x, addend = x.contiguous(), None if addend is None else addend.contiguous()
        if not self.readable(x):
            return None
        out = torch.empty((*x.shape[:-1], width), dtype=torch.float32 if unrounded else self.dtype)
        operands = x, weight, factors, bias, addend
        sizes = rows, width, depth, int(weight.dtype == torch.float16), int(unrounded)
        self.call("multiply_rows", out, self._workspace(out, depth), *operands, *sizes)
        return out

    def multiply_heads(self, x: Tensor, maps: Tensor, transpose: bool = False) -> Tensor | None:
        """x_i M_i of every head i: x [N, h, in], maps [h, in, out] -> [N, h, out]; transpose:
        x_i M_i^T, maps [h, out, in]. With x in float32 the maps may be float16.
        """
        (rows, heads, depth), width = x.shape, maps.shape[1 if transpose else 2]
        if not rows or (depth | width) % self.depth or intercepted():
            return None
        x = x.contiguous()
        if not (self.readable(x) and self.multiplies(maps)):
            return None
        out = x.new_empty((rows, heads, width))
        sizes = rows, heads, width, depth, int(maps.dtype == torch.float16)
        if transpose:
            self.call("multiply_head_rows", out, self._workspace(out, depth), x, maps, *sizes)
        elif self.dtype == torch.bfloat16 and depth > MAX_HEAD:
            return None
        else:
            self.call("multiply_heads_transposed", out, x, maps, *sizes)
        return out

    def latent(
        self, queries: Tensor, latent: Latent, scale: float, reads: Reads, maps: Tensor | None
    ) -> Tensor | None:
        """As `Kernels.latent`."""
        if latent.factors is not None:
            return None
        windows, values = reads.windows(len(latent)), latent.values[:, None]
        grouped = queries.reshape(windows, 1, -1, queries.shape[-1])
        output = self.attend(grouped, values, values, scale, reads)
        if output is None:
            return None
        output = output.view(queries.shape)
        return output if maps is None else multiply_heads(self, output, maps, transpose=True)

    def heads(
        self, queries: Tensor, keys: Tensor, values: Tensor, reads: Reads = ALL
    ) -> Tensor | None:
        """As `Kernels.heads`."""
        windows = reads.windows(len(keys))
        if len(queries) // windows > MAX_ROWS:
            return None
        grouped = queries.unflatten(0, (windows, -1)).transpose(1, 2)
        output = self.attend(grouped, keys, values, queries.shape[-1] ** -0.5, reads)
        return None if output is None else output.transpose(1, 2).reshape(queries.shape)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, reads: Reads = ALL
    ) -> Tensor | None:
        """softmax(q_i K_i^T * scale + bias) V_i of every head i: queries [B, h, Q, d_k], keys and
        values [S, h, T, d_k], or [pages, h, page, d_k] with a block table -> [B, h, Q, d_k].
        """
        (windows, heads, count, d), page = queries.shape, keys.shape[2]
        table, bias = reads.block_table, reads.position_bias
        queries = queries.contiguous()
        if not windows or keys.stride() != values.stride() or intercepted():
            return None
        if not all(map(self.multiplies, (keys[:1, :1], values[:1, :1]))):
            return None
        if not (self.readable(queries) and self.reads_in_place(reads, page)):
            return None
        parts = -(-torch.get_num_threads() // (windows * heads))
        out = torch.empty((windows, heads, parts, count, d))
        workspace = torch.empty((windows, heads, parts, 2, count))
        whole = parts == 1 and out.dtype == self.dtype
        result = out[:, :, 0] if whole else torch.empty_like(queries)
        operands = queries, keys, values, reads.slots, reads.lengths, bias, table
        sizes = windows, heads, parts, count, reads.positions(page), d
        bias_stride = 0 if bias is None else bias.stride(0)
        strides = *keys.stride()[:2], bias_stride, page, 0 if table is None else table.stride(0)
        name = "attend_pages_half" if keys.dtype == torch.float16 else "attend_pages"
        self.call(name, result, out, workspace, *operands, *sizes, *strides, scale)
        return result

    def add_norm(
        self,
        x: Tensor,
        addend: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        write: CacheWrite | None = None,
        shift: Tensor | None = None,
    ) -> tuple[Tensor, Tensor] | None:
        """As `kernels.norm.add_norm`."""
        total, width = x if addend is None else addend, x.shape[-1]
        if shift is not None or width % 16 or intercepted():
            return None
        if not (self.readable(x) and self.readable(total)):
            return None
        cache = ids = positions = None
        if write is not None:
            cache, ids, positions = write.latent.values, write.ids, write.positions
            if write.column_scales is not None or cache.dtype != x.dtype or cache.stride(2) != 1:
                return None
            if not all(self.readable(t, torch.int64) for t in (ids, positions)):
                return None
        strides = (0, 0) if cache is None else cache.stride()[:2]
        normed, where = torch.empty_like(x), (cache, ids, positions)
        sizes = x.numel() // width, width, *strides
        self.call("add_norm", total, normed, x, addend, weight, bias, *where, *sizes)
        return total, normed

    def choose_token(
        self,
        logits: Tensor,
        state: Sequence[Tensor],
        boundaries: tuple[int, int, int, int],
        rules: bool,
        count: int,
        draws: Sequence[Tensor],
        ranking: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        """As `Kernels.choose_token`."""
        rows, size = logits.shape
        eot, begin, _, no_timestamps = boundaries
        if logits.dtype != torch.float32 or logits.stride(1) != 1 or intercepted():
            return None
        if not all(t.is_contiguous() for t in (*state, *draws)):
            return None
        if ranking is not None and not self.readable(ranking, torch.float32):
            return None
        if rules and not eot <= no_timestamps < begin:
            return None
        tokens, logprobs = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
        tensors = logits, *state, *(draws or (None, None)), ranking, tokens, logprobs
        numbers = rows, logits.stride(0), size, *boundaries, count, int(rules)
        self.call("choose_token", *tensors, *numbers)
        return tokens, logprobs

    def encoder_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, rounded: bool = False
    ) -> Tensor | None:
        """softmax(q_i K_i^T / sqrt(d_k)) V_i of every head i: all [B, p, h, d_k], of one dtype,
        with heads side by side -> [B, p, h, d_k]. In bfloat16 sums are wider, and the operands may
        be float32. rounded: with AVX2, the products are of whole numbers of 12 to 15 bits, which
        takes half as long. Only with `has_encoder_attention`.
        """
        windows, positions, heads, d = queries.shape
        dtype, strides = queries.dtype, queries.stride()
        if not self.has_encoder_attention or not positions or d % 16 or d > MAX_HEAD:
            return None
        if strides[2:] != (d, 1) or dtype not in (torch.float32, self.dtype) or intercepted():
            return None
        if any(
            (t.dtype, t.shape, t.stride(), t.device.type) != (dtype, queries.shape, strides, "cpu")
            for t in (queries, keys, values)
        ):
            return None
        out = queries.new_empty(queries.shape)
        padded = -(-positions // POSITIONS) * POSITIONS
        packed = queries.new_empty((windows, heads, 2, padded, d), dtype=self.dtype)
        integers = rounded and self.is_avx2 and self.dtype == torch.float32
        name = "encoder_attention_integers" if integers else "encoder_attention"
        sizes, half = (windows, heads, positions, d, *strides[:2]), int(dtype == torch.bfloat16)
        self.call(name, out, packed, queries, keys, values, *sizes, d**-0.5, half)
        return out


def multiply_heads(
    compiled: Library | None, x: Tensor, maps: Tensor, transpose: bool = False
) -> Tensor:
    """As `Kernels.multiply_heads`: in C where it can, else by PyTorch."""
    product = None if compiled is None else compiled.multiply_heads(x, maps, transpose)
    if product is not None:
        return product
    maps = maps.to(x.dtype)
    return torch.bmm(x.transpose(0, 1), maps.mT if transpose else maps).transpose(0, 1)


@cache
def library(dtype: torch.dtype = torch.float32) -> Library | None:
    """The library of a dtype, if it was compiled and runs here, and SLIMWHISPER_KERNELS is not
    torch.
    """
    if os.environ.get("SLIMWHISPER_KERNELS") == "torch" or dtype not in DEPTHS:
        return None
    return _load(NATIVE, dtype)[0]


def why_not_compiled() -> str:
    """Why `library` returns None, on one line; "" if it does not."""
    if os.environ.get("SLIMWHISPER_KERNELS") == "torch":
        return "turned off by SLIMWHISPER_KERNELS=torch"
    return _load(NATIVE, torch.float32)[1]


@cache
def _load(path: Path, dtype: torch.dtype) -> tuple[Library | None, str]:
    """The library in a file, or why there is none."""
    log = path.with_name("native.txt")  # written by setup.py when a compiler fails
    if not path.exists():
        error = log.read_text(encoding="utf-8") if log.exists() else "no compiled file"
        return None, f"not compiled when slimwhisper was installed: {' '.join(error.split())[:300]}"
    try:
        return Library(path, dtype=dtype), ""
    except (OSError, AttributeError) as error:  # another processor, or an older library
        return None, f"does not load: {error}"
