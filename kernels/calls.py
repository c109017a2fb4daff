"""The attention calls of a decode step, and what a back end of one is."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from slimwhisper.kernels.cpu.library import Library
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.reads import Reads

Call = TypeVar("Call", contravariant=True)


class BackEnd(Protocol[Call]):
    """One way of computing an operation."""

    path: str  # "c", "cuda", "triton" or "torch"

    def supports(self, call: Call) -> bool:
        """Whether `run` may be tried."""

    def run(self, call: Call) -> Tensor | None:
        """The operation's result; None: this back end cannot run the call after all."""


@dataclass(frozen=True, slots=True)
class LatentCall:
    """The arguments of `Kernels.latent`."""

    queries: Tensor
    latent: Latent
    scale: float
    reads: Reads
    maps: Tensor | None

    operation = "latent"  # the kernel's name in the table of configurations

    @property
    def windows(self) -> int:
        """B."""
        return self.reads.windows(len(self.latent))

    @property
    def queries_per_window(self) -> int:
        """The queries of all heads of a window's rows."""
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
    def rows_per_window(self) -> int:
        """Rows of a window."""
        return len(self.queries) // self.windows

    def grouped(self, groups: int) -> Tensor:
        """The queries [N, h, d_k] with adjacent rows in a group: [groups, h, N / groups, d_k]."""
        return self.queries.unflatten(0, (groups, -1)).transpose(1, 2)

    def ungrouped(self, output: Tensor) -> Tensor:
        """The inverse, for results: [groups, h, N / groups, d_k] -> [N, h, d_k]."""
        return output.transpose(1, 2).reshape(self.queries.shape)


def multiply_heads(
    library: Library | None, x: Tensor, maps: Tensor, transpose: bool = False
) -> Tensor:
    """As `Kernels.multiply_heads`."""
    if library is not None:
        product = library.multiply_heads(x, maps, transpose)
        if product is not None:
            return product
    maps = maps.to(x.dtype)
    return torch.bmm(x.transpose(0, 1), maps.mT if transpose else maps).transpose(0, 1)
