"""Whole blocks in one call of C: of a decoder, attention to a latent with all its projections, an
MLP, and all layers of a step (blocks.c); of an encoder, its attention, and what it computes between
two of them (encoder_rows.c).

Each returns None where it cannot run, as `Library` does, and the caller computes it in parts.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from slimwhisper.kernels.attention import Latent, Reads, head_attention
from slimwhisper.kernels.cpu.library import (
    FLOAT,
    INT,
    LONG,
    MAX_HEAD,
    PART_DEPTH,
    POINTER,
    Library,
    intercepted,
    library,
    processor_has,
)
from slimwhisper.kernels.linear import Matrix, QuantizedInC, Tiled

SHORTS = torch.int16  # whole numbers of a latent
_ATTENTION = {SHORTS: "attend_pages_integers", torch.float16: "attend_pages_half"}


def _pointers(names: str) -> list[tuple[str, Any]]:
    """Fields of a struct."""
    return [(name, POINTER) for name in names.split()]


class _LatentWeights(ctypes.Structure):
    """`struct latent_weights`."""

    _fields_ = (
        *_pointers("query key_map value_map out query_bias out_bias"),
        *_pointers("query_sums key_sums value_sums out_sums"),
        *_pointers("query_factors key_factors value_factors out_factors multiply multiply_heads"),
        *(("heads", LONG), ("d", LONG), ("scale", FLOAT), ("half", INT)),
    )


class _MLPWeights(ctypes.Structure):
    """`struct mlp_weights`."""

    _fields_ = (
        *_pointers("up down up_bias down_bias up_sums down_sums up_factors down_factors multiply"),
        *(("d", LONG), ("wide", LONG), ("half", INT)),
    )


class _Reads(ctypes.Structure):
    """`struct reads`."""

    _fields_ = (
        *_pointers("attend factors slots lengths table bias"),
        *((n, LONG) for n in ("windows", "parts", "positions", "page", "slot_stride")),
        *(("table_stride", LONG), ("bias_stride", LONG)),
    )

    @staticmethod
    def of(library: Library, latent: Latent, reads: Reads) -> "_Reads | None":
        """What is read of a latent [S, T, d] or [pages, page, d]; None where C cannot."""
        windows = reads.windows(len(latent))
        values, page, whole = latent.values, latent.values.shape[1], latent.values.dtype == SHORTS
        if latent.factors is not None and not whole:  # float8
            return None
        readable = library.multiplies(values[:1], SHORTS if whole else None)
        if not (readable and library.reads_in_place(reads, page)):
            return None
        name = _ATTENTION.get(values.dtype, "attend_pages")
        table, bias = reads.block_table, reads.position_bias
        tensors = latent.factors, reads.slots, reads.lengths, table, bias
        pointers = (None if t is None else t.data_ptr() for t in tensors)
        sizes = windows, -(-torch.get_num_threads() // windows), reads.positions(page), page
        strides = (0 if t is None else t.stride(0) for t in (values, table, bias))
        return _Reads(library.addresses[name], *pointers, *sizes, *strides)


class _Block(ABC):
    """Weights that C reads in place: matrices of one dtype, then biases, and of matrices in int8
    what else they have.
    """

    struct_type: ClassVar[type[ctypes.Structure]]
    functions: ClassVar[Sequence[str]]  # fields: they multiply by matrices in int8

    def __init__(self, library: Library, weights: Sequence[Tensor], **fields: object) -> None:
        """weights: the struct's first pointers. fields: others, without `half`."""
        self.library, self.weights = library, weights  # kept, as C has their addresses
        if weights[0].dtype == torch.int8:
            fields |= {name: library.addresses[f"{name}_integers"] for name in self.functions}
        half = int(weights[0].dtype == torch.float16)
        self.struct = self.struct_type(*(t.data_ptr() for t in weights), half=half, **fields)
        self.address = ctypes.addressof(self.struct)

    @classmethod
    def of(cls, library: Library | None, *weights: object) -> Self | None:
        """Of tensors, or matrices that C reads in place (`Compiled`, `QuantizedInC`); None where it
        cannot read one, or there is no library.
        """
        integers = [w for w in weights if isinstance(w, QuantizedInC)]
        found = [
            w.integers if isinstance(w, QuantizedInC) else getattr(w, "matrix", w) for w in weights
        ]
        tensors = tuple(w for w in found if isinstance(w, Tensor))
        if library is None or len(tensors) < len(weights):
            return None
        matrices, biases = (([t for t in tensors if (t.ndim == 1) == one]) for one in (False, True))
        if len({t.dtype for t in matrices}) > 1 or not all(map(library.readable, biases)):
            return None
        if len(integers) == len(matrices):
            more = *(w.sums for w in integers), *(w.factors for w in integers)
            return cls(library, (*tensors, *more))
        if not all(map(library.multiplies, matrices)) or not cls.fits(library, tensors):
            return None
        return cls(library, tensors)

    @staticmethod
    @abstractmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """Whether C has code for the weights' shapes."""

    def runs(self, x: Tensor) -> bool:
        """Whether C can compute with x [..., d]."""
        rows, most = x.numel() // x.shape[-1], self.library.most_rows
        return 0 < rows <= most and self.library.readable(x) and not intercepted()


class LatentBlock(_Block):
    """Latent attention from the normed input to the output: query [d, d], key_map and value_map
    [h, d_k, d], out [d, d]; query_bias and out_bias [d]. In int8, the maps are [h d, d_k] and
    [h d_k, d].
    """

    struct_type, functions = _LatentWeights, ("multiply", "multiply_heads")

    def __init__(self, library: Library, weights: Sequence[Tensor]) -> None:
        self.width, keys = len(weights[4]), weights[1]
        size = keys.shape[1] * (4 if keys.dtype == torch.int8 else 1)
        self.heads = self.width // size
        super().__init__(library, weights, heads=self.heads, d=self.width, scale=size**-0.5)

    @staticmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """Heads of a multiple of `library.depth`, and a sum in one part in bfloat16."""
        _, size, width = weights[1].shape
        fits = weights[0].shape == (width, width) and not size % library.depth
        narrow = size <= MAX_HEAD and width <= PART_DEPTH
        return fits and (library.dtype != torch.bfloat16 or narrow)

    def workspace(self, x: Tensor, *reads: _Reads) -> tuple[Tensor, Tensor]:
        """For x [..., d] that reads one after the other of some."""
        rows, parts = x.numel() // self.width, max(r.parts for r in reads)
        numbers = x.new_empty(rows * (1 + self.heads) * self.width)
        return numbers, torch.empty(parts * rows * self.heads * (self.width * 3 // 2 + 3))

    def __call__(self, x: Tensor, latent: Latent, reads: Reads) -> Tensor | None:
        """x [..., d], latent [S, T, d] or [pages, page, d] -> [..., d]; the rows of a window are
        adjacent.
        """
        found = _Reads.of(self.library, latent, reads) if self.runs(x) else None
        if found is None:
            return None
        out, rows, at = torch.empty_like(x), x.numel() // self.width, ctypes.addressof(found)
        block = *self.workspace(x, found), x, self.address
        self.library.call("latent_block", out, *block, latent.values, at, rows)
        return out


class MLPBlock(_Block):
    """gelu(x W_up^T + b_up) W_down^T + b_down: up [wide, d], down [d, wide], up_bias [wide],
    down_bias [d]; matrices in int8 as `QuantizedInC` multiplies by them by default.
    """

    struct_type, functions = _MLPWeights, ("multiply",)

    def __init__(self, library: Library, weights: Sequence[Tensor]) -> None:
        self.wide, self.width = (len(bias) for bias in weights[2:4])
        super().__init__(library, weights, d=self.width, wide=self.wide)

    @staticmethod
    def fits(library: Library, weights: tuple[Tensor, ...]) -> bool:
        """A first sum in one part in bfloat16."""
        return library.dtype != torch.bfloat16 or weights[0].shape[1] <= PART_DEPTH

    def workspace(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For x [..., d]."""
        rows = x.numel() // self.width
        return x.new_empty(rows * self.wide), torch.empty(rows * (self.wide + 2))

    def __call__(self, x: Tensor) -> Tensor | None:
        """x [..., d] -> [..., d]."""
        if not self.runs(x):
            return None
        out, rows = torch.empty_like(x), x.numel() // self.width
        self.library.call("mlp", out, *self.workspace(x), x, self.address, rows)
        return out


Pair = tuple[Tensor, Tensor]  # weight and bias of a norm, [d] each, in float32


class _DecoderLayer(ctypes.Structure):
    """`struct decoder_layer`."""

    _fields_ = (
        *_pointers("norm_weight norm_bias cross_norm_weight cross_norm_bias mlp_norm_weight"),
        *_pointers("mlp_norm_bias self cross mlp text"),
    )


# of a decoder: the norms before attention to the text, to the audio and before the MLP, these three
# blocks, and the cache of the text
DecoderLayer = tuple[Sequence[Pair], LatentBlock, LatentBlock, MLPBlock, Latent]


class DecoderLayers:
    """All layers of a decoder's step, and the norm behind them, in one call."""

    def __init__(self, layers: Sequence[DecoderLayer], last: Pair, audio: Latent) -> None:
        """The latents of all layers' texts have one shape; that of the audio serves all layers."""
        self.layers, self.last, self.audio = layers, last, audio  # C has their addresses
        self._structs = (_DecoderLayer * len(layers))()
        for i, (norms, *blocks, text) in enumerate(layers):
            addresses = (
                *(t.data_ptr() for pair in norms for t in pair),
                *(b.address for b in blocks),
            )
            self._structs[i] = _DecoderLayer(*addresses, text.values.data_ptr())

    def __call__(
        self, x: Tensor, stored: tuple[Tensor, Tensor], text: Reads, audio: Reads
    ) -> Tensor | None:
        """x [R, d], the embeddings, which are overwritten -> [R, d]; None: layer by layer.

        stored: page, and index within it, of each row's token, [R] int64. text, audio: what is
        read of them.
        """
        _, _, block, mlp, stored_text = self.layers[0]
        library, structs = block.library, ctypes.addressof(self._structs)
        if not block.runs(x) or not all(library.readable(t, torch.int64) for t in stored):
            return None
        texts = _Reads.of(library, stored_text, text)
        sounds = _Reads.of(library, self.audio, audio)
        if texts is None or sounds is None:
            return None
        normed, out = torch.empty_like(x), torch.empty_like(x)
        workspace = *block.workspace(x, texts, sounds), *mlp.workspace(x)
        latents = self.audio.values, ctypes.addressof(texts), ctypes.addressof(sounds)
        operands = *self.last, *stored, *latents, len(self.layers), len(x)
        library.call("decoder_layers", normed, x, out, *workspace, structs, *operands)
        return normed


ROWS, PART = 96, 1536  # that a thread takes at a time, and hidden values in int8: as in C
LINE = 16  # divides the widths

Layer = tuple[Matrix, Tensor | None]  # weight [out, in] and bias [out]


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Of one block: query, key, value and out [d, d], up [wide, d], down [d, wide]."""

    norm: Pair
    mlp_norm: Pair
    query: Layer
    key: Layer
    value: Layer
    out: Layer
    up: Layer
    down: Layer

    def in_c(self) -> bool:
        """Whether the matrices are laid out for C."""
        layers = self.query, self.key, self.value, self.out, self.up, self.down
        return all(isinstance(weight, Tiled | QuantizedInC) for weight, _ in layers)


class _Linear(ctypes.Structure):
    """`struct linear`."""

    _fields_ = _pointers("w sums factors bias")


class _EncoderWeights(ctypes.Structure):
    """`struct encoder_weights`."""

    _fields_ = (
        *((name, _Linear) for name in ("out", "up", "down", "query", "key", "value")),
        *_pointers("mlp_weight mlp_bias norm_weight norm_bias"),
        *(("d", LONG), ("wide", LONG)),
    )


class EncoderRows:
    """From one attention to the next: the output's projection and the MLP of one block, and the
    norm and the projections of the next.
    """

    def __init__(self, before: BlockWeights | None, after: BlockWeights | None, last: Pair) -> None:
        """before: None at the first block. after: None behind the last, before the norm `last`."""
        self._results = 3 if after else 1
        self._kept: list[Tensor] = []  # C has their addresses
        self._name = "encoder_rows"
        self._struct = struct = _EncoderWeights(d=len(last[0]))
        struct.norm_weight, struct.norm_bias = self._addresses(*(after.norm if after else last))
        if before is not None:
            struct.mlp_weight, struct.mlp_bias = self._addresses(*before.mlp_norm)
            struct.out = self._linear(*before.out)
            struct.up, struct.down = self._linear(*before.up), self._linear(*before.down)
            assert before.up[1] is not None
            struct.wide = len(before.up[1])
        if after is not None:
            struct.query, struct.key = self._linear(*after.query), self._linear(*after.key)
            struct.value = self._linear(*after.value)

    def __call__(self, x: Tensor, attended: Tensor | None) -> list[Tensor]:
        """x, to which the block before is added, and attended, its attention -> query, key and
        value of the block after, or the norm: [B, p, d] float32 each.
        """
        compiled, width = library(), x.shape[-1]
        assert compiled is not None
        results = [torch.empty_like(x) for _ in range(self._results)]
        size = ROWS * (width + PART + 2 + PART // 2)
        workspace = torch.empty(torch.get_num_threads() * size)
        slots = *results, *[None] * (3 - len(results))
        struct, rows = ctypes.addressof(self._struct), x.numel() // width
        compiled.call(self._name, x, *slots, attended, struct, workspace, size, rows)
        return results

    def _addresses(self, *tensors: Tensor | None) -> list[int | None]:
        """Of tensors, which are kept."""
        kept = [None if t is None else t.contiguous() for t in tensors]
        self._kept += [t for t in kept if t is not None]
        return [None if t is None else t.data_ptr() for t in kept]

    def _linear(self, weight: Matrix, bias: Tensor | None) -> _Linear:
        if isinstance(weight, Tiled):
            return _Linear(*self._addresses(weight.blocks, None, None, bias))
        assert isinstance(weight, QuantizedInC)
        self._name, sums = "encoder_rows_integers", weight.sums
        parts = weight.integers.split(PART // 4, dim=1)
        if len(parts) > 1:
            sums = torch.stack([p.sum((1, 3), dtype=torch.int32).flatten() for p in parts])
        return _Linear(*self._addresses(weight.integers, sums, weight.factors, bias))


def encoder_rows(blocks: Sequence[BlockWeights], last: Pair) -> list[EncoderRows]:
    """Before, between and after the blocks, whose output goes through the norm `last`; [] where C
    cannot read their weights.
    """
    if len(last[0]) > PART or not all(block.in_c() for block in blocks):
        return []
    return [EncoderRows(a, b, last) for a, b in pairwise([None, *blocks, None])]


def reads_tiles(width: int, dtype: torch.dtype) -> bool:
    """Whether C can run an encoder of this width and dtype on a CPU, its matrices in tiles. In
    bfloat16, oneDNN's products are as fast.
    """
    compiled = library() if dtype == torch.float32 else None
    fits = width % LINE == 0 and width <= PART
    return fits and compiled is not None and "encoder_rows" in compiled.functions


def encoder_attention(
    queries: Tensor, keys: Tensor, values: Tensor, rounded: bool = False
) -> Tensor:
    """`head_attention` of all positions of windows: in C on x86 CPUs, except in bfloat16 on those
    with AMX, for which PyTorch's is made.

    Arguments:
        queries, keys, values: [B, p, h, d_k], one dtype.
        rounded: if they are float32, C may compute in bfloat16, or in whole numbers.
    Returns:
        [B, p, h, d_k], their dtype.
    """
    by_pytorch = queries.dtype == torch.bfloat16 and processor_has("amx_bf16")
    if queries.device.type == "cpu" and not by_pytorch:
        compiled = (library(torch.bfloat16) if rounded else None) or library(queries.dtype)
        if compiled is not None:
            mixed = compiled.encoder_attention(queries, keys, values, rounded)
            if mixed is not None:
                return mixed
    q, k, v = (t.transpose(1, 2) for t in (queries, keys, values))
    return head_attention(q, k, v).transpose(1, 2)
