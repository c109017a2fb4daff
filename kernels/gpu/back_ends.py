"""The back ends of `Kernels` on a GPU. What one cannot run it returns None for."""

from typing import Any

import torch
from torch import Tensor

from slimwhisper.kernels.attention import MAX_ROWS, Latent, Reads
from slimwhisper.kernels.configurations import (
    Configuration,
    TritonDevice,
    choose_splits,
    find_configuration,
)
from slimwhisper.kernels.gpu import choose_token, heads, hopper, latent, norm


class OnHopper:
    """CUDA, on compute capability 9.0."""

    path = "cuda"

    def __init__(self, device: TritonDevice) -> None:
        self.device = device

    def latent(
        self, queries: Tensor, latent: Latent, scale: float, reads: Reads, maps: Tensor | None
    ) -> Tensor | None:
        """As `Kernels.latent`."""
        # float8 becomes float16, whatever the model's dtype
        half = queries if latent.factors is None else queries.half()
        variant = hopper.variant_of(half, latent, reads)
        if variant is None:
            return None
        windows, values = reads.windows(len(latent)), latent.values
        tiles = -(-reads.positions(values.shape[1]) // hopper.TILE)
        count = len(queries) // windows * queries.shape[1]
        part = _part_cost(count, values.itemsize, hopper.TILE)
        splits = choose_splits(windows, tiles, self.device.multiprocessors, part)
        output = hopper.attend(variant, half, latent, scale, splits, reads, maps)
        return output.to(queries.dtype)


class ByTriton:
    """Triton, for the widths, dtypes and numbers of queries in the table of configurations."""

    path = "triton"
    add_norm = staticmethod(norm.add_norm_by_triton)

    def __init__(self, device: TritonDevice, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, str(dtype).removeprefix("torch.")

    def latent(
        self, queries: Tensor, stored: Latent, scale: float, reads: Reads, maps: Tensor | None
    ) -> Tensor | None:
        """As `Kernels.latent`."""
        if stored.factors is not None:
            return None
        values, windows = stored.values, reads.windows(len(stored))
        count = len(queries) // windows * queries.shape[1]
        c = find_configuration("latent", self.dtype, queries.shape[-1], count, self.device)
        if c is None:
            return None
        positions = reads.positions(values.shape[1])
        splits = self.splits(c, windows, count, positions, values.itemsize)
        return latent.split_latent(queries, values, scale, c, splits, reads, maps)

    def heads(self, queries: Tensor, keys: Tensor, values: Tensor, reads: Reads) -> Tensor | None:
        """As `Kernels.heads`."""
        windows = reads.windows(len(keys))
        count = len(queries) // windows
        c = find_configuration("heads", self.dtype, queries.shape[-1], count, self.device)
        if c is None or count > MAX_ROWS:
            return None
        windows, positions = windows * queries.shape[1], reads.positions(keys.shape[2])
        splits = self.splits(c, windows, count, positions, 2 * keys.itemsize)
        return heads.split_heads(queries, keys, values, c, splits, reads)

    def splits(self, c: Configuration, windows: int, count: int, positions: int, width: int) -> int:
        """How many parts to split the positions into: `count` queries of each of the windows, or of
        each of their heads; width: bytes of the cache in a position, for each column.
        """
        programs = windows * -(-count // c.block_q)
        concurrent = self.device.multiprocessors * self.device.programs(c)
        part = _part_cost(min(count, c.block_q), width, c.block_t)
        return choose_splits(programs, -(-positions // c.block_t), concurrent, part)

    def choose_token(self, logits: Tensor, *others: Any) -> tuple[Tensor, Tensor] | None:
        """As `Kernels.choose_token`: the most likely one."""
        *inputs, count, draws, _ = others
        if logits.dtype != torch.float32 or count > 1 or draws:
            return None
        tokens, logprobs = choose_token.choose_token(logits, *inputs)
        return tokens[:, None], logprobs[:, None]


def _part_cost(queries: int, width: int, tile: int) -> float:
    """What writing and reading a program's partial sums, in float32, costs, in tiles of `tile`
    positions.
    """
    return 2 * 4 * queries / (width * tile)
