"""A decoder's products and attention in C, if they were compiled.

PyTorch's products are made for many rows. With a few rows, only reading the weights takes time, and
these functions read them once, at the speed of memory; with more rows they are as fast as oneDNN's,
and need no packed weights. Everything here has a slower equivalent in PyTorch, which is used if
there was no compiler at installation, on a processor without AVX2, or with
SLIMWHISPER_KERNELS=torch.

The functions run on the threads of PyTorch's OpenMP, which the loader finds (threads.c), or on one
thread if it finds none.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.kernels.reads import ALL, Reads

NATIVE = Path(__file__).with_name("_native.so")
DEPTH = 16  # depths of products and widths of latents must be multiples of it
# rows at most of products with int8 weights: with more, oneDNN's are faster
INT8_ROWS = 8
INT8_ROWS_LARGE = 4  # with large weights, such as those of the logits
LARGE_WEIGHT = 2**22  # elements
BLOCK = 64  # positions that attention reads at a time; a multiple of pages

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
# rename a function when its arguments change, so that an older library does not load
_SIGNATURES = {
    "multiply": (*[_POINTER] * 6, *[_LONG] * 3, _INT),
    "multiply_heads": (*[_POINTER] * 3, *[_LONG] * 4, _INT),
    "multiply_heads_transposed": (*[_POINTER] * 3, *[_LONG] * 4, _INT),
    "paged_attention": (*[_POINTER] * 9, *[_LONG] * 11, _FLOAT, _INT),
}
_WIDE = ("multiply", "multiply_heads", "paged_attention")  # also compiled for AVX-512


def _pointer(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()


def _intercepted() -> bool:
    """Whether a dispatch mode sees all operators, to record them or to run without values: it would
    not see calls of C.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def _readable(t: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether C can read the tensor in place."""
    return t.dtype == dtype and t.device.type == "cpu" and t.is_contiguous()


class Library:
    """The compiled functions. Every tensor is on the CPU, contiguous, and float32 unless stated
    otherwise. A function that cannot run returns None, and the caller uses PyTorch.
    """

    def __init__(self, path: Path, wide: bool = True) -> None:
        """wide: with AVX-512, if the processor has it. Raises OSError if it does not load."""
        library = ctypes.CDLL(str(path))
        usable = library.usable()
        if not usable:
            raise OSError("the processor has no AVX2")
        self.has_threads = bool(library.has_threads())  # False: PyTorch has no OpenMP to share
        for name, types in _SIGNATURES.items():
            symbol = f"{name}_wide" if wide and usable > 1 and name in _WIDE else name
            function = getattr(library, symbol)
            function.argtypes, function.restype = types, None
            setattr(self, f"_{name}", function)

    _multiply: Callable[..., None]
    _multiply_heads: Callable[..., None]
    _multiply_heads_transposed: Callable[..., None]
    _paged_attention: Callable[..., None]

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        addend: Tensor | None = None,
        factors: Tensor | None = None,
        small_batches: bool = True,
    ) -> Tensor | None:
        """x W^T * factors + bias + addend: x [..., in], weight [out, in] -> [..., out]. With
        factors [out] the weight is int8, and rows must be few if `small_batches`.
        """
        width, depth = weight.shape
        rows = x.numel() // depth
        if not rows or depth % DEPTH or _intercepted():
            return None
        limit = INT8_ROWS if weight.numel() < LARGE_WEIGHT else INT8_ROWS_LARGE
        if factors is not None and small_batches and rows > limit:
            return None
        x, addend = x.contiguous(), None if addend is None else addend.contiguous()
        if not (
            _readable(x) and _readable(weight, torch.float32 if factors is None else torch.int8)
        ):
            return None
        out = x.new_empty((*x.shape[:-1], width))
        self._multiply(
            *map(_pointer, (out, x, weight, factors, bias, addend)),
            *(rows, width, depth, torch.get_num_threads()),
        )
        return out

    def multiply_heads(self, x: Tensor, maps: Tensor, transpose: bool = False) -> Tensor | None:
        """x_i M_i of every head i: x [N, h, in], maps [h, in, out] -> [N, h, out]; transpose:
        x_i M_i^T, maps [h, out, in].
        """
        (rows, heads, depth), width = x.shape, maps.shape[1 if transpose else 2]
        if not rows or (depth | width) % DEPTH or _intercepted():
            return None
        x = x.contiguous()
        if not (_readable(x) and _readable(maps)):
            return None
        out = x.new_empty((rows, heads, width))
        function = self._multiply_heads if transpose else self._multiply_heads_transposed
        function(
            *map(_pointer, (out, x, maps)), *(rows, heads, width, depth, torch.get_num_threads())
        )
        return out

    def latent(
        self, queries: Tensor, latent: Tensor, scale: float, reads: Reads = ALL
    ) -> Tensor | None:
        """softmax(Q Z^T * scale + bias) Z: queries [B, Q, d], latent [S, T, d] -> [B, Q, d];
        `reads` as in `heads`, with a bias for each position.
        """
        head = latent[:, None]
        output = self.heads(queries[:, None], head, head, scale, reads)
        return None if output is None else output[:, 0]

    def heads(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, reads: Reads = ALL
    ) -> Tensor | None:
        """softmax(q_i K_i^T * scale + bias) V_i of every head i: queries [B, h, Q, d_k], keys and
        values [S, h, T, d_k], or [pages, h, page, d_k] with a block table -> [B, h, Q, d_k].
        reads: at most one length for each window.
        """
        (windows, heads, count, d), page = queries.shape, keys.shape[2]
        table, bias = reads.block_table, reads.position_bias
        queries = queries.contiguous()
        if not windows or d % DEPTH or keys.stride() != values.stride() or _intercepted():
            return None
        if not (_readable(queries) and _readable(keys[:1, :1]) and _readable(values[:1, :1])):
            return None
        if any(
            t is not None and not _readable(t, torch.int64) for t in (reads.slots, reads.lengths)
        ):
            return None
        if table is not None and (table.dtype != torch.int64 or table.stride(1) != 1):
            return None
        if bias is not None and (bias.dtype != torch.float32 or bias.stride(-1) != 1):
            return None
        if table is not None and BLOCK % page and page < reads.extent:
            return None
        threads = torch.get_num_threads()
        parts = -(-threads // (windows * heads))
        out = queries.new_empty((windows, heads, parts, count, d))
        workspace = queries.new_empty((windows, heads, parts, 2, count))
        self._paged_attention(
            *map(_pointer, (out, workspace, queries, keys, values)),
            *map(_pointer, (reads.slots, reads.lengths, bias, table)),
            *(windows, heads, parts, count, reads.positions(page), d),
            *(keys.stride(0), keys.stride(1), 0 if bias is None else bias.stride(0)),
            *(page, 0 if table is None else table.stride(0), scale, threads),
        )
        return out[:, :, 0]


@cache
def library() -> Library | None:
    """The library, if it was compiled and runs here, and SLIMWHISPER_KERNELS is not torch."""
    return None if os.environ.get("SLIMWHISPER_KERNELS") == "torch" else _load(NATIVE)[0]


def why_not_compiled() -> str:
    """Why `library` returns None, on one line; "" if it does not."""
    if os.environ.get("SLIMWHISPER_KERNELS") == "torch":
        return "turned off by SLIMWHISPER_KERNELS=torch"
    return _load(NATIVE)[1]


@cache
def _load(path: Path) -> tuple[Library | None, str]:
    """The library in a file, or why there is none."""
    log = path.with_name("native.txt")  # written by setup.py when a compiler fails
    if not path.exists():
        error = log.read_text(encoding="utf-8") if log.exists() else "no compiled file"
        return None, f"not compiled when slimwhisper was installed: {' '.join(error.split())[:300]}"
    try:
        return Library(path), ""
    except (OSError, AttributeError) as error:  # another processor, or an older library
        return None, f"does not load: {error}"
