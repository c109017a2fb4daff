"""The rows of a decoder call: which texts it works on, and what they read."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from slimwhisper.kernels.attention import Latent, Reads

PAGE = 16  # tokens


def pages_of(tokens: int) -> int:
    """How many pages a text of this many tokens takes."""
    return -(-tokens // PAGE)


class PagePool:
    """Free pages 0 .. count - 1; the lowest are taken first, so that little memory is touched."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self.peak = 0  # most pages in use at a time

    @property
    def free(self) -> int:
        """How many pages are free."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many pages are in use."""
        return self.count - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Allocate free pages; there must be enough."""
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self.peak = max(self.peak, self.used)
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Free allocated pages."""
        for page in pages:
            heapq.heappush(self._free, page)


Store = TypeVar("Store", Tensor, Latent)  # [slots or rows, ...]


def _located(table: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Page, and index within it, of the tokens at positions [texts, n]: table [texts, pages]."""
    return table.gather(1, positions // PAGE), positions % PAGE


def _bias(lengths: Tensor, positions: int, dtype: torch.dtype) -> Tensor:
    """[R, positions]: -inf from each length on, [R] int64, else 0."""
    hidden = torch.arange(positions, device=lengths.device) >= lengths[:, None]
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, float("-inf"))


@dataclass(slots=True)
class _Copy:
    """What a call copied last of a store: the layers that share the store read the same copy."""

    source: Latent | None = None
    values: Tensor | None = None  # [W, T, d]


@dataclass(frozen=True, slots=True)
class Rows:
    """Which texts a call works on, and which slot each one reads.

    The R rows of a call are W windows of `group` texts with `tokens` rows each; the rows of a
    window are adjacent. A step of several tokens per text has one row for each token.
    """

    ids: Tensor  # [R] int64: the index of each row's text in the stores without pages
    slots: Tensor  # [W] int64
    group: int = 1
    table: Tensor | None = None  # [W * group, pages] int64; None: text i has the i-th pages
    lengths: Tensor | None = None  # [R] int64: of padded prompts
    tokens: int = 1  # of each text
    audio: Tensor | None = None  # [W] int64: encoder positions of each window; None: all of them
    # the first id, the first slot, if they are consecutive: they are then read without a copy
    first_row: int | None = None
    first_slot: int | None = None
    # page, and index within it, of each prompt token, [R, T] int64
    locations: tuple[Tensor, Tensor] | None = None
    _copy: _Copy = field(default_factory=_Copy)

    @staticmethod
    def block(
        slots: int, group: int = 1, *, pages: int | None = None, device: torch.device | str = "cpu"
    ) -> "Rows":
        """The first `slots` slots with `group` rows each, which are the first R = slots * group.
        pages: of each text; the table is then made once, not in every layer.
        """
        ids, slot_ids = (torch.arange(n, device=device) for n in (slots * group, slots))
        table = None
        if pages is not None:
            table = ids[:, None] * pages + torch.arange(pages, device=device)
        return Rows(ids, slot_ids, group, table, first_row=0, first_slot=0)

    @staticmethod
    def of(ids: Tensor, slots: Tensor | None = None, lengths: Tensor | None = None) -> "Rows":
        """Any rows, ids [R] int64; row r reads slot r unless `slots` [R] int64 says otherwise."""
        return Rows(ids, ids if slots is None else slots, lengths=lengths)

    def spread(self, tokens: int) -> "Rows":
        """The same texts with `tokens` rows each, one for each token of a step."""
        return replace(self, ids=self.ids.repeat_interleave(tokens), tokens=tokens)

    def with_prompts(self, tokens: int) -> "Rows":
        """The rows with the locations of their prompts' tokens, found once for all layers."""
        if self.table is None:
            return self
        positions = torch.arange(tokens, device=self.ids.device).repeat(len(self.ids), 1)
        return replace(self, locations=_located(self.table, positions))

    def prompt_lengths(self, tokens: int) -> Tensor:
        """[R] int64: lengths of prompts [R, tokens] without their padding."""
        return torch.full_like(self.ids, tokens) if self.lengths is None else self.lengths

    def audio_bias(self, positions: int, dtype: torch.dtype) -> Tensor | None:
        """[W, positions]: -inf where a window has no audio; None: all windows are whole."""
        return None if self.audio is None else _bias(self.audio, positions, dtype)

    def audio_reads(self, slots: Tensor | None, positions: int, dtype: torch.dtype) -> Reads:
        """What cross-attention reads of stores with `positions` positions a slot, for queries in
        `dtype`. slots: as `of_slots` returns them.
        """
        if (audio := self.audio) is None:
            return Reads(slots)
        return Reads(slots, audio, lambda: _bias(audio, positions, dtype).unsqueeze(1))

    def of_slots(self, store: Store) -> tuple[Store, Tensor | None]:
        """What to read of a store [S, ...] by slot: a view [W, ...] and None, or all of the store
        and the slot of each window, [W] int64.
        """
        if self.first_slot is None:
            return store, self.slots
        return store[self.first_slot : self.first_slot + len(self.slots)], None

    def copied(self, latent: Latent, dtype: torch.dtype) -> Tensor:
        """The windows' latents [W, T, d] in `dtype`; a view where they are consecutive and have it.
        Layers that share a store, one after the other, get the same tensor.
        """
        copy = self._copy
        if copy.source is not latent or copy.values is None:
            some, slots = self.of_slots(latent)
            some = some if slots is None else some[slots]
            copy.source, copy.values = latent, some.dequantized(dtype)
        return copy.values

    def of_rows(self, store: Store) -> tuple[Store, Tensor | None]:
        """What to read of a store [rows, ...] by text, once for all tokens of a text: a view
        [R / tokens, ...] and None, or all of the store and the texts' ids [R / tokens] int64.
        """
        if self.first_row is None:
            return store, self.ids[:: self.tokens].contiguous()
        return store[self.first_row : self.first_row + len(self.ids) // self.tokens], None


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token for each of R rows. The tokens of all rows are stored before any row attends."""

    rows: Rows
    positions: Tensor  # [R] int64: the position of each row's token, 0 .. n_text_ctx - 1
    extent: int  # tokens to read: the largest position + 1, known without a device sync
    # both None: all rows are full
    lengths: Tensor | None  # [R] int64: tokens of each row
    bias: Callable[[], Tensor] | None  # [R, 1, extent]: -inf where a row has no token yet
    locations: tuple[Tensor, Tensor] | None = None  # [R] int64: each token's page, index within it

    @staticmethod
    def at(
        rows: Rows, positions: Tensor, extent: int, full: bool, dtype: torch.dtype
    ) -> "DecodeStep":
        """The step at positions [R] int64, with a bias in `dtype`. full: every position is
        extent - 1, so the step needs no lengths and no bias.
        """
        locations = None
        if rows.table is not None:
            pages, indices = _located(rows.table, positions.view(-1, rows.tokens))
            locations = pages.flatten(), indices.flatten()
        if full:
            return DecodeStep(rows, positions, extent, None, None, locations)

        lengths = positions + 1
        bias = cache(lambda: _bias(lengths, extent, dtype).unsqueeze(1))
        return DecodeStep(rows, positions, extent, lengths, bias, locations)
