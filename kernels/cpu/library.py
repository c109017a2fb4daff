"""The functions in C, where they were compiled: a decoder's products, and its attention.

PyTorch's products are made for many rows. With a few, all that takes time is to read the weights
once, and these read them as fast as memory gives them; with more, they are as fast as oneDNN's, and
need no packed weights. Everything here has a slower equal in PyTorch: without a compiler at
installation, or on a processor without AVX2, that is used. SLIMWHISPER_KERNELS=torch turns them
off.

They run on the threads of PyTorch's own OpenMP, whose symbols PyTorch makes known to all libraries.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.kernels.reads import ALL, Reads

DEPTH = 16  # what depths of products and widths of latents are multiples of
# Rows that int8 weights serve here: with more, oneDNN's products of integers are faster. The large
# ones, such as for logits, and the others.
FEW, SOME = 4, 8
LARGE = 2**22  # numbers
TOGETHER = 64  # positions that attention reads together: pages divide them

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
# a function whose arguments change gets another name: an older library does not load then
_SIGNATURES = {
    "multiply": (*[_POINTER] * 6, *[_LONG] * 3, _INT),
    "multiply_heads": (*[_POINTER] * 3, *[_LONG] * 4, _INT),
    "multiply_heads_turned": (*[_POINTER] * 3, *[_LONG] * 4, _INT),
    "paged_attention": (*[_POINTER] * 9, *[_LONG] * 11, _FLOAT, _INT),
}
_WIDE = ("multiply", "multiply_heads", "paged_attention")  # there is one for AVX-512, too


def _pointer(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()


def _watched() -> bool:
    """Whether operators are recorded, or run on tensors without numbers: C would not be seen."""
    return torch._C._len_torch_dispatch_stack() > 0


def _flat(t: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether C can read it as it is."""
    return t.dtype == dtype and t.device.type == "cpu" and t.is_contiguous()


class Library:
    """The compiled functions; every tensor is on the CPU, contiguous, and float32 where not said
    otherwise.
    """

    def __init__(self, path: Path, wide: bool = True) -> None:
        """wide: with AVX-512, where the processor has it. Raises OSError if it does not load."""
        library = ctypes.CDLL(str(path))
        usable = library.usable()
        if not usable:
            raise OSError("the processor has no AVX2")
        for name, types in _SIGNATURES.items():
            chosen = f"{name}_wide" if wide and usable > 1 and name in _WIDE else name
            function = getattr(library, chosen)
            function.argtypes, function.restype = types, None
            setattr(self, name, function)

    multiply: Callable[..., None]
    multiply_heads: Callable[..., None]
    multiply_heads_turned: Callable[..., None]
    paged_attention: Callable[..., None]

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        onto: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> Tensor | None:
        """x W^T * factors + bias + onto: x [..., in], weight [out, in], which is int8 if there are
        factors [out], and then serves few rows -> [..., out]; None: PyTorch has to.
        """
        width, depth = weight.shape
        rows = x.numel() // depth
        if not rows or depth % DEPTH or _watched():
            return None
        if factors is not None and rows > (SOME if weight.numel() < LARGE else FEW):
            return None
        x, onto = x.contiguous(), None if onto is None else onto.contiguous()
        if not (_flat(x) and _flat(weight, torch.float32 if factors is None else torch.int8)):
            return None
        out = x.new_empty((*x.shape[:-1], width))
        self.multiply(
            *map(_pointer, (out, x, weight, factors, bias, onto)),
            *(rows, width, depth, torch.get_num_threads()),
        )
        return out

    def by_head(self, x: Tensor, maps: Tensor, turned: bool = False) -> Tensor | None:
        """x_i M_i of every head i: x [N, h, in], maps [h, in, out] -> [N, h, out]; turned:
        x_i M_i^T, maps [h, out, in]. None: PyTorch has to.
        """
        (rows, heads, depth), width = x.shape, maps.shape[1 if turned else 2]
        if not rows or (depth | width) % DEPTH or _watched():
            return None
        x = x.contiguous()
        if not (_flat(x) and _flat(maps)):
            return None
        out = x.new_empty((rows, heads, width))
        function = self.multiply_heads if turned else self.multiply_heads_turned
        function(
            *map(_pointer, (out, x, maps)), *(rows, heads, width, depth, torch.get_num_threads())
        )
        return out

    def latent(
        self, queries: Tensor, latent: Tensor, scale: float, reads: Reads = ALL
    ) -> Tensor | None:
        """softmax(Q Z^T * scale + bias) Z: queries [B, Q, d], latent [S, T, d] -> [B, Q, d];
        `reads` as in `heads`, with a bias for each position; None: PyTorch has to.
        """
        kept = latent[:, None]
        found = self.heads(queries[:, None], kept, kept, scale, reads)
        return None if found is None else found[:, 0]

    def heads(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, reads: Reads = ALL
    ) -> Tensor | None:
        """softmax(q_i K_i^T * scale + bias) V_i of every head i: queries [B, h, Q, d_k], keys and
        values [S, h, T, d_k], or [pages, h, page, d_k] with a table -> [B, h, Q, d_k]; None:
        PyTorch has to. reads: with at most one length for each window.
        """
        (windows, heads, count, d), page = queries.shape, keys.shape[2]
        table, bias = reads.table, reads.position_bias
        queries = queries.contiguous()
        if not windows or d % DEPTH or keys.stride() != values.stride() or _watched():
            return None
        if not (_flat(queries) and _flat(keys[:1, :1]) and _flat(values[:1, :1])):
            return None
        if any(t is not None and not _flat(t, torch.int64) for t in (reads.slots, reads.lengths)):
            return None
        if table is not None and (table.dtype != torch.int64 or table.stride(1) != 1):
            return None
        if bias is not None and (bias.dtype != torch.float32 or bias.stride(-1) != 1):
            return None
        if table is not None and TOGETHER % page and page < reads.extent:
            return None
        threads = torch.get_num_threads()
        parts = -(-threads // (windows * heads))
        out = queries.new_empty((windows, heads, parts, count, d))
        room = queries.new_empty((windows, heads, parts, 2, count))
        self.paged_attention(
            *map(_pointer, (out, room, queries, keys, values)),
            *map(_pointer, (reads.slots, reads.lengths, bias, table)),
            *(windows, heads, parts, count, reads.positions(page), d),
            *(keys.stride(0), keys.stride(1), 0 if bias is None else bias.stride(0)),
            *(page, 0 if table is None else table.stride(0), scale, threads),
        )
        return out[:, :, 0]


@cache
def library() -> Library | None:
    """The library, if it was compiled and runs here, and SLIMWHISPER_KERNELS is not torch."""
    if os.environ.get("SLIMWHISPER_KERNELS") == "torch":
        return None
    for path in Path(__file__).parent.glob("_native*.so"):
        try:
            return Library(path)
        except (OSError, AttributeError):  # another processor, or PyTorch's OpenMP is not there
            continue
    return None
