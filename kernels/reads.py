"""Which positions an attention call reads: the part of its arguments that every kernel shares."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reads:
    """For B windows over S slots of T positions; by default window b reads all of slot b."""

    slots: Tensor | None = None  # [B] int64: the slot that each window reads
    # to read only the first positions, both; L is B, or N for the tokens of a step's texts
    # [L] int64, 0 to T: later positions are never read; N are, in each window, n, n + 1, n + 2 ...
    # up to its last one
    lengths: Tensor | None = None
    # makes [L, 1, T] in the queries' dtype, -inf from there on; kernels that read lengths never ask
    bias: Callable[[], Tensor] | None = None
    # [B, >= T / page] int64, instead of `slots`: a block table. Position t of a window is position
    # t % page of page table[b, t // page]; what is kept is [pages, page, ..]
    table: Tensor | None = None
    extent: int = 0  # T, with a table
    # [S, T] float32, added to the scores of each position of a slot, whoever asks; for the latent
    # kernels alone, and not with a table
    position_bias: Tensor | None = None

    def windows(self, slots: int) -> int:
        """B, the number of windows, over `slots` slots."""
        chosen = self.table if self.slots is None else self.slots
        return slots if chosen is None else len(chosen)

    def positions(self, kept: int) -> int:
        """T, where what is kept has `kept` positions in a slot or a page."""
        return kept if self.table is None else self.extent

    def gathered(self, kept: Tensor, dim: int) -> Tensor:
        """The positions of every window's text, side by side: kept [pages, .., page, ..], whose
        positions are dimension `dim`, -> [B, .., T, ..]. Zeros where no row of a window has a
        token: what another text has left there may be a NaN, which would pass a mask.
        """
        assert self.table is not None
        page = kept.shape[dim]
        found = kept.view(torch.uint8) if kept.itemsize == 1 else kept
        found = found[self.table[:, : -(-self.extent // page)]]  # [B, n, .., page, ..]
        found = found.movedim(1, dim).flatten(dim, dim + 1).narrow(dim, 0, self.extent)
        if self.lengths is not None:
            longest = self.lengths.view(len(found), -1)[:, -1]
            unseen = torch.arange(self.extent, device=kept.device) >= longest[:, None]
            shape = [len(found), *[1] * (dim - 1), self.extent, *[1] * (found.ndim - dim - 1)]
            found = found.masked_fill(unseen.view(shape), 0)
        return found.view(kept.dtype) if kept.itemsize == 1 else found

    def lengths_each(self, windows: int) -> int:
        """How many lengths each of B windows has: 0, 1 or one for each row."""
        return 0 if self.lengths is None else len(self.lengths) // windows

    def longest(self, window: int, windows: int) -> int | None:
        """How many positions window `window` of B reads, for references; None: all of them."""
        each = self.lengths_each(windows)
        return None if self.lengths is None else int(self.lengths[(window + 1) * each - 1])

    def seen(self, scores: Tensor, window: int, windows: int) -> Tensor:
        """scores [N / B, h, longest] of a window, for references: -inf where a row has ended."""
        if self.lengths is None or self.lengths_each(windows) == 1:
            return scores
        ends = self.lengths.view(windows, -1)[window]
        places = torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill(places >= ends[:, None, None], float("-inf"))

    def tensors(self, beside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """slots, table and lengths for a kernel, on the device of `beside`.

        What is None is empty, but int64 too: for another type the kernel would be compiled again.
        """
        nothing = beside.new_empty(0, dtype=torch.int64)
        slots, table, lengths = self.slots, self.table, self.lengths
        return (
            nothing if slots is None else slots,
            nothing if table is None else table,
            nothing if lengths is None else lengths,
        )

    def bias_of_positions(self, beside: Tensor) -> Tensor:
        """position_bias for a kernel, on the device of `beside`; empty, but float32, for None."""
        bias = self.position_bias
        return beside.new_empty(0, dtype=torch.float32) if bias is None else bias


ALL = Reads()
