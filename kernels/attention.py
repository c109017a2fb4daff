"""The back ends of each attention operation: what each can run, and how.

`dispatch` lists them in the order in which they are tried. All but PyTorch, which supports every
call, may still return None from `run`: the next one then runs it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from slimwhisper.kernels.calls import HeadsCall, LatentCall, multiply_heads
from slimwhisper.kernels.configurations import (
    Configuration,
    TritonDevice,
    choose_splits,
    find_configuration,
)
from slimwhisper.kernels.cpu.library import Library
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent, latent_attention
from slimwhisper.kernels.reads import Reads

MAX_ROWS = 32  # of a window in one call by heads; more, as in a prompt, go to flash-attention


class LatentInC:
    path = "c"

    def __init__(self, library: Library | None) -> None:
        self.library = library

    def supports(self, call: LatentCall) -> bool:
        return self.library is not None and call.latent.factors is None

    def run(self, call: LatentCall) -> Tensor | None:
        assert self.library is not None
        queries, reads = call.queries, call.reads
        groups, reads = groups_of(reads, call.windows, len(queries))
        grouped = queries.reshape(groups, -1, queries.shape[-1])
        output = self.library.latent(grouped, call.latent.values, call.scale, reads)
        if output is None:
            return None
        output = output.reshape(queries.shape)
        if call.maps is None:
            return output
        return multiply_heads(self.library, output, call.maps, transpose=True)


class LatentOnHopper:
    path = "cuda"

    def __init__(self, device: TritonDevice | None) -> None:
        """device: None where the kernel cannot be compiled or run."""
        self.device = device

    def supports(self, call: LatentCall) -> bool:
        return self.device is not None

    def run(self, call: LatentCall) -> Tensor | None:
        from slimwhisper.kernels.gpu.hopper import TILE, attend, variant_of

        assert self.device is not None
        latent, half = call.latent, call.queries
        if latent.factors is not None:  # float8 becomes float16, whatever the model's dtype
            half = half.half()
        variant = variant_of(half, latent, call.reads)
        if variant is None:
            return None
        tiles = -(-call.reads.positions(latent.values.shape[1]) // TILE)
        part = _part_cost(call.queries_per_window, latent.values.itemsize, TILE)
        splits = choose_splits(call.windows, tiles, self.device.multiprocessors, part)
        output = attend(variant, half, latent, call.scale, splits, call.reads, call.maps)
        return output.to(call.queries.dtype)


class LatentByTriton:
    path = "triton"

    def __init__(self, device: TritonDevice | None, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def supports(self, call: LatentCall) -> bool:
        return self.device is not None and call.latent.factors is None

    def run(self, call: LatentCall) -> Tensor | None:
        from slimwhisper.kernels.gpu.latent import split_latent

        device = self.device
        assert device is not None
        queries, values = call.queries, call.latent.values
        c = _configuration(
            call.operation, self.dtype, queries.shape[-1], call.queries_per_window, device
        )
        if c is None:
            return None
        programs = call.windows * -(-call.queries_per_window // c.block_q)
        positions = call.reads.positions(values.shape[1])
        sizes = min(call.queries_per_window, c.block_q), values.itemsize
        splits = _splits(c, device, programs, positions, *sizes)
        return split_latent(queries, values, call.scale, c, splits, call.reads, call.maps)


class LatentByTorch:
    path = "torch"

    def __init__(self, library: Library | None) -> None:
        self.library = library  # for the maps of the heads

    def supports(self, call: LatentCall) -> bool:
        return True

    def run(self, call: LatentCall) -> Tensor:
        queries, latent, reads = call.queries, call.latent, call.reads
        windows, per_window = call.windows, call.queries_per_window
        if reads.block_table is not None:
            latent = Latent(*(reads.gathered(t, 1) for t in latent.tensors()))
        elif reads.slots is not None:
            latent = latent[reads.slots]
        values = latent.dequantized(queries.dtype)
        bias = None if reads.bias is None else reads.bias().view(windows, -1, values.shape[1])
        if bias is not None and bias.shape[1] > 1:  # of each row: for all its heads
            bias = bias.repeat_interleave(per_window // bias.shape[1], dim=1)
        if reads.position_bias is not None:
            slots = slice(None) if reads.slots is None else reads.slots
            position_bias = reads.position_bias[slots].unsqueeze(1).to(queries.dtype)
            bias = position_bias if bias is None else bias + position_bias
        grouped = queries.reshape(windows, per_window, queries.shape[-1])
        output = latent_attention(grouped, values, call.scale, bias).view(queries.shape)
        if call.maps is None:
            return output
        return multiply_heads(self.library, output, call.maps, transpose=True)


class HeadsInC:
    path = "c"

    def __init__(self, library: Library | None) -> None:
        self.library = library

    def supports(self, call: HeadsCall) -> bool:
        return self.library is not None and call.rows_per_window <= MAX_ROWS

    def run(self, call: HeadsCall) -> Tensor | None:
        assert self.library is not None
        groups, reads = groups_of(call.reads, call.windows, len(call.queries))
        scale, queries = call.queries.shape[-1] ** -0.5, call.grouped(groups)
        output = self.library.heads(queries, call.keys, call.values, scale, reads)
        return None if output is None else call.ungrouped(output)


class HeadsByTriton:
    path = "triton"

    def __init__(self, device: TritonDevice | None, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def supports(self, call: HeadsCall) -> bool:
        return self.device is not None and call.rows_per_window <= MAX_ROWS

    def run(self, call: HeadsCall) -> Tensor | None:
        from slimwhisper.kernels.gpu.heads import split_heads

        device = self.device
        assert device is not None
        c = _configuration(
            "heads", self.dtype, call.queries.shape[-1], call.rows_per_window, device
        )
        if c is None:
            return None
        programs = call.windows * call.queries.shape[1] * -(-call.rows_per_window // c.block_q)
        positions = call.reads.positions(call.keys.shape[2])
        sizes = min(call.rows_per_window, c.block_q), 2 * call.keys.itemsize
        splits = _splits(c, device, programs, positions, *sizes)
        return split_heads(call.queries, call.keys, call.values, c, splits, call.reads)


class HeadsByTorch:
    path = "torch"

    def supports(self, call: HeadsCall) -> bool:
        return True

    def run(self, call: HeadsCall) -> Tensor:
        keys, values, reads = call.keys, call.values, call.reads
        if reads.slots is not None:
            keys, values = keys[reads.slots], values[reads.slots]
        if reads.block_table is not None:
            keys, values = reads.gathered(keys, 2), reads.gathered(values, 2)
        mask = None
        if reads.bias is not None:
            mask = reads.bias().view(call.windows, 1, -1, keys.shape[2])
        return call.ungrouped(head_attention(call.grouped(call.windows), keys, values, mask))


def groups_of(reads: Reads, windows: int, count: int) -> tuple[int, Reads]:
    """How many groups `count` rows form that each read with one length, and what they read: the
    groups are the windows, or the rows where each token of a text has its own length.
    """
    if reads.lengths_per_window(windows) <= 1:
        return windows, reads
    per_window = count // windows
    if reads.block_table is not None:
        return count, replace(
            reads, block_table=reads.block_table.repeat_interleave(per_window, dim=0)
        )
    slots = torch.arange(windows) if reads.slots is None else reads.slots
    return count, replace(reads, slots=slots.repeat_interleave(per_window))


def _configuration(
    kernel: str, dtype: torch.dtype, width: int, queries: int, device: TritonDevice
) -> Configuration | None:
    return find_configuration(kernel, str(dtype).removeprefix("torch."), width, queries, device)


def _splits(
    c: Configuration, device: TritonDevice, programs: int, positions: int, queries: int, width: int
) -> int:
    """queries: of a program; width: bytes of the cache in a position, for each column."""
    concurrent = device.multiprocessors * device.programs(c)
    tiles = -(-positions // c.block_t)
    return choose_splits(programs, tiles, concurrent, _part_cost(queries, width, c.block_t))


def _part_cost(queries: int, width: int, tile: int) -> float:
    """What writing and reading a program's partial sums, in float32, costs, in tiles of `tile`
    positions.
    """
    return 2 * 4 * queries / (width * tile)
