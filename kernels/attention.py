"""The back ends of each attention operation: what each can run, and how.

`dispatch` lists them in the order in which they are tried. C and Triton may also find out while
they run that they cannot; PyTorch supports every call.
"""

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from slimwhisper.kernels.configurations import Configuration, Processor, choose_splits, find
from slimwhisper.kernels.cpu.library import Library
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent, latent_attention
from slimwhisper.kernels.reads import Reads

MOST_ROWS = 32  # of a window in one call by heads; more, as in a prompt, go to flash-attention

Call = TypeVar("Call", contravariant=True)


class BackEnd(Protocol[Call]):
    """One way of computing an operation."""

    path: str  # "c", "triton" or "torch"

    def supports(self, call: Call) -> bool:
        """Whether `run` may be tried."""

    def run(self, call: Call) -> Tensor | None:
        """The operation's result; None: the next back end has to."""


@dataclass(frozen=True, slots=True)
class LatentCall:
    """The arguments of `Kernels.latent`."""

    queries: Tensor
    latent: Latent
    scale: float
    reads: Reads
    maps: Tensor | None

    @property
    def operation(self) -> str:
        """The kernel's name in the table of configurations."""
        return "latent" if self.latent.factors is None else "latent8"

    @property
    def windows(self) -> int:
        """B."""
        return self.reads.windows(len(self.latent))

    @property
    def queries_each(self) -> int:
        """Queries of a window: of all heads of its rows."""
        return len(self.queries) // self.windows * self.queries.shape[1]


@dataclass(frozen=True, slots=True)
class HeadsCall:
    """The arguments of `Kernels.heads`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    reads: Reads

    operation = "heads"

    @property
    def windows(self) -> int:
        """B."""
        return self.reads.windows(len(self.keys))

    @property
    def rows_each(self) -> int:
        """Rows of a window."""
        return len(self.queries) // self.windows

    def grouped(self, groups: int) -> Tensor:
        """The queries [N, h, d_k] of adjacent rows together: [groups, h, N / groups, d_k]."""
        return self.queries.unflatten(0, (groups, -1)).transpose(1, 2)

    def by_row(self, mixed: Tensor) -> Tensor:
        """The opposite, for results."""
        return mixed.transpose(1, 2).reshape(self.queries.shape)


def by_head(library: Library | None, x: Tensor, maps: Tensor, turned: bool = False) -> Tensor:
    """As `Kernels.by_head`."""
    if library is not None:
        found = library.by_head(x, maps, turned)
        if found is not None:
            return found
    return torch.bmm(x.transpose(0, 1), maps.mT if turned else maps).transpose(0, 1)


class LatentInC:
    path = "c"

    def __init__(self, library: Library | None) -> None:
        self.library = library

    def supports(self, call: LatentCall) -> bool:
        return self.library is not None and call.latent.factors is None

    def run(self, call: LatentCall) -> Tensor | None:
        assert self.library is not None
        queries, reads = call.queries, call.reads
        groups, reads = _groups(reads, call.windows, len(queries))
        together = queries.reshape(groups, -1, queries.shape[-1])
        mix = self.library.latent(together, call.latent.values, call.scale, reads)
        if mix is None:
            return None
        mix = mix.reshape(queries.shape)
        return mix if call.maps is None else by_head(self.library, mix, call.maps, turned=True)


class LatentByTriton:
    path = "triton"

    def __init__(self, processor: Processor | None, dtype: torch.dtype) -> None:
        self.processor, self.dtype = processor, dtype

    def supports(self, call: LatentCall) -> bool:
        return self.processor is not None

    def run(self, call: LatentCall) -> Tensor | None:
        p = self.processor
        assert p is not None
        queries, latent = call.queries, call.latent
        c = _find(call.operation, self.dtype, queries.shape[-1], call.queries_each, p)
        if c is None:
            return None
        programs = call.windows * -(-call.queries_each // c.block_q)
        splits = _splits(c, p, programs, call.reads.positions(latent.values.shape[1]))
        if latent.factors is None:
            from slimwhisper.kernels.gpu.latent import split_latent

            values = latent.values
            return split_latent(queries, values, call.scale, c, splits, call.reads, call.maps)
        from slimwhisper.kernels.gpu.latent8 import split_latent8

        # the kernel turns float8 into float16, whatever the model's dtype
        half = queries.half()
        found = split_latent8(half, latent, call.scale, c, splits, call.reads, call.maps)
        return found.to(queries.dtype)


class LatentByTorch:
    path = "torch"

    def __init__(self, library: Library | None) -> None:
        self.library = library  # for the maps of the heads

    def supports(self, call: LatentCall) -> bool:
        return True

    def run(self, call: LatentCall) -> Tensor:
        queries, latent, reads = call.queries, call.latent, call.reads
        windows, each = call.windows, call.queries_each
        if reads.table is not None:
            kept = Latent(*(reads.gathered(t, 1) for t in latent.tensors()))
        else:
            kept = latent if reads.slots is None else latent[reads.slots]
        plain = kept.plain(queries.dtype)
        bias = None if reads.bias is None else reads.bias().view(windows, -1, plain.shape[1])
        if bias is not None and bias.shape[1] > 1:  # of each row: for all its heads
            bias = bias.repeat_interleave(each // bias.shape[1], dim=1)
        if reads.position_bias is not None:
            slots = slice(None) if reads.slots is None else reads.slots
            added = reads.position_bias[slots].unsqueeze(1).to(queries.dtype)
            bias = added if bias is None else bias + added
        together = queries.reshape(windows, each, queries.shape[-1])
        mix = latent_attention(together, plain, call.scale, bias).view(queries.shape)
        return mix if call.maps is None else by_head(self.library, mix, call.maps, turned=True)


class HeadsInC:
    path = "c"

    def __init__(self, library: Library | None) -> None:
        self.library = library

    def supports(self, call: HeadsCall) -> bool:
        return self.library is not None and call.rows_each <= MOST_ROWS

    def run(self, call: HeadsCall) -> Tensor | None:
        assert self.library is not None
        groups, reads = _groups(call.reads, call.windows, len(call.queries))
        scale, queries = call.queries.shape[-1] ** -0.5, call.grouped(groups)
        found = self.library.heads(queries, call.keys, call.values, scale, reads)
        return None if found is None else call.by_row(found)


class HeadsByTriton:
    path = "triton"

    def __init__(self, processor: Processor | None, dtype: torch.dtype) -> None:
        self.processor, self.dtype = processor, dtype

    def supports(self, call: HeadsCall) -> bool:
        return self.processor is not None and call.rows_each <= MOST_ROWS

    def run(self, call: HeadsCall) -> Tensor | None:
        from slimwhisper.kernels.gpu.heads import split_heads

        p = self.processor
        assert p is not None
        c = _find("heads", self.dtype, call.queries.shape[-1], call.rows_each, p)
        if c is None:
            return None
        programs = call.windows * call.queries.shape[1] * -(-call.rows_each // c.block_q)
        splits = _splits(c, p, programs, call.reads.positions(call.keys.shape[2]))
        return split_heads(call.queries, call.keys, call.values, c, splits, call.reads)


class HeadsByTorch:
    path = "torch"

    def supports(self, call: HeadsCall) -> bool:
        return True

    def run(self, call: HeadsCall) -> Tensor:
        keys, values, reads = call.keys, call.values, call.reads
        if reads.slots is not None:
            keys, values = keys[reads.slots], values[reads.slots]
        if reads.table is not None:
            keys, values = reads.gathered(keys, 2), reads.gathered(values, 2)
        mask = None
        if reads.bias is not None:
            mask = reads.bias().view(call.windows, 1, -1, keys.shape[2])
        return call.by_row(head_attention(call.grouped(call.windows), keys, values, mask))


def _groups(reads: Reads, windows: int, count: int) -> tuple[int, Reads]:
    """How many groups of `count` rows read with one length each, and what they read: the windows,
    or, where the tokens of a text have lengths of their own, the rows.
    """
    if reads.lengths_each(windows) <= 1:
        return windows, reads
    each = count // windows
    if reads.table is not None:
        return count, replace(reads, table=reads.table.repeat_interleave(each, dim=0))
    slots = torch.arange(windows) if reads.slots is None else reads.slots
    return count, replace(reads, slots=slots.repeat_interleave(each))


def _find(
    kernel: str, dtype: torch.dtype, width: int, queries: int, processor: Processor
) -> Configuration | None:
    return find(kernel, str(dtype).removeprefix("torch."), width, queries, processor)


def _splits(c: Configuration, p: Processor, programs: int, positions: int) -> int:
    return choose_splits(programs, -(-positions // c.block_t), p.count * p.programs(c))
