"""The rows of a decoder call: which texts it works on, and what they read; the shape of stores, and
the classes that every cache form implements.

A SLOT holds one window's audio; a ROW is one text in progress. Adjacent rows (beams, samples) may
share a slot. A text's cache lies in PAGES of `PAGE` tokens, which a block table lists for each row,
as in vLLM (arXiv 2309.06180, section 4.2); neither audio nor text moves. A cache layer holds its
block's projections too, because forms move weights between the query, the latent and the output;
the decoder is independent of the forms.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from slimwhisper.kernels.attention import CacheWrite, Latent, Reads
from slimwhisper.kernels.dispatch import Kernels

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

    The R rows of a call are W windows of `group` texts; the rows of a window are adjacent.
    """

    ids: Tensor  # [R] int64: the index of each row's text in the stores without pages
    slots: Tensor  # [W] int64
    group: int = 1
    table: Tensor | None = None  # [R, pages] int64; None: text i has the i-th pages
    lengths: Tensor | None = None  # [R] int64: of padded prompts
    audio: Tensor | None = None  # [W] int64: encoder positions of each window; None: all of them
    # the first id, the first slot, if they are consecutive: they are then read without a copy
    first_row: int | None = None
    first_slot: int | None = None
    # page, and index within it, of each prompt token, [R, T] int64
    locations: tuple[Tensor, Tensor] | None = None
    _copy: _Copy = field(default_factory=_Copy)

    @staticmethod
    def block(slots: int, group: int = 1, device: torch.device | str = "cpu") -> "Rows":
        """The first `slots` slots with `group` rows each, which are the first R = slots * group."""
        ids, slot_ids = (torch.arange(n, device=device) for n in (slots * group, slots))
        return Rows(ids, slot_ids, group, first_row=0, first_slot=0)

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
        """What to read of a store [rows, ...] by text: a view [R, ...] and None, or all of it
        and the texts' ids [R] int64.
        """
        if self.first_row is None:
            return store, self.ids
        return store[self.first_row : self.first_row + len(self.ids)], None


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
            pages, indices = _located(rows.table, positions[:, None])
            locations = pages.flatten(), indices.flatten()
        if full:
            return DecodeStep(rows, positions, extent, None, None, locations)

        lengths = positions + 1
        bias = cache(lambda: _bias(lengths, extent, dtype).unsqueeze(1))
        return DecodeStep(rows, positions, extent, lengths, bias, locations)


Shape = tuple[tuple[int, ...], torch.dtype]  # of one tensor of a page


@dataclass(frozen=True, slots=True)
class StoreShape:
    """The sizes to allocate a store with. A store is allocated once and never grows."""

    count: int  # slots of a `CrossStore`, rows of a `SelfLayer`
    length: int  # tokens of each: p encoder positions, or n_text_ctx
    device: torch.device  # "meta" has the right sizes and takes no memory
    dtype: torch.dtype
    kernels: Kernels
    pages: Sequence[Tensor] = ()  # the tensors of a `PagedLayer`, [pages, ...]


class Buffers:
    """Tensors [slots, ...], [rows, ...] or [pages, ...]."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def nbytes(self) -> int:
        """Bytes of all slots, rows or pages."""
        return sum(t.nbytes for t in self.tensors)


class CrossStore(Buffers, ABC):
    """The cache of the audio, of one layer or shared by several."""

    @abstractmethod
    def put(self, slots: Tensor, features: Tensor) -> None:
        """Store `features` [G, q, d], the encoder's output, as the first q positions of `slots`
        [G] int64.
        """


class CrossLayer(ABC):
    """One layer's attention to the audio of the slots.

    Constructed as `CrossLayer(weights, shape, store)`. store: of another layer of the same form, to
    share; None: the layer allocates one.
    """

    store: CrossStore

    @abstractmethod
    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], output projection included; T = 1 in a step."""

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """`attend` in a step, x [R, 1, d]; for forms that treat a prompt, which may have one token,
        differently.
        """
        return self.attend(x, rows)

    @abstractmethod
    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p]: scaled scores before the softmax. No rows
        share a window.
        """

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads: its whole slot, unless overridden."""
        return sum(t[slot].nbytes for t in self.store.tensors)


class SelfLayer(Buffers, ABC):
    """One layer's attention to the text so far, and the cache of that text.

    Constructed as `SelfLayer(weights, shape)`.
    """

    length: int  # most tokens of a row

    @classmethod
    def page_shapes(cls, weights: Any, dtype: torch.dtype) -> Sequence[Shape]:
        """The tensors of a page, for folded `weights`; none: the layer keeps rows."""
        return ()

    @abstractmethod
    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """Start new texts in `rows`, T tokens at positions 0 .. T-1: x [R, T, d] -> [R, T, d].

        Shorter texts are padded on the right; later steps overwrite the padding.
        """

    def prompt_write(self, rows: Rows, tokens: int) -> CacheWrite | None:
        """Where the norm before a prompt stores its tokens [R, T], which `attend_prompt` then
        reads; None: `prefill` stores them.
        """
        return None

    def attend_prompt(self, x: Tensor) -> Tensor:
        """`prefill` of tokens that the norm has stored: x [R, T, d] -> [R, T, d]."""
        raise NotImplementedError(f"{type(self).__name__} has no prompt_write")

    def cache_write(self, step: DecodeStep) -> CacheWrite | None:
        """Where the norm before `step` stores the step's tokens; None: `step` stores them."""
        return None

    @abstractmethod
    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """Append one token per row, unless the norm has, then attend: x [R, 1, d] -> [R, 1, d]."""

    def copy_rows(self, rows: Tensor, sources: Tensor) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        for t in self.tensors:
            t[rows] = t[sources]

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row with `tokens` tokens reads: all, unless overridden."""
        return sum(t[row].nbytes for t in self.tensors) * tokens / self.length


class PagedLayer(SelfLayer):
    """A layer that stores texts in pages. With `page` = n_text_ctx, each row is one page."""

    page: int  # tokens of a page

    @staticmethod
    @abstractmethod
    def shapes(weights: Any, page: int, dtype: torch.dtype) -> list[Shape]:
        """The tensors of a page of `page` tokens, for folded `weights`."""

    @classmethod
    def page_shapes(cls, weights: Any, dtype: torch.dtype) -> Sequence[Shape]:
        """The same for pages of `PAGE` tokens."""
        return cls.shapes(weights, PAGE, dtype)

    def allocate_pages(self, weights: Any, shape: StoreShape) -> Sequence[Tensor]:
        """The layer's tensors [pages, ...]: those of `shape`, or new ones with a page per row."""
        pages, self.length, self.page = shape.pages, shape.length, PAGE
        if not pages:
            self.page = shape.length
            pages = [
                torch.zeros((shape.count, *size), device=shape.device, dtype=dtype)
                for size, dtype in self.shapes(weights, shape.length, shape.dtype)
            ]
        return pages

    def table(self, rows: Rows) -> Tensor:
        """The pages of each text, [R, pages] int64."""
        if rows.table is not None and self.page == PAGE:
            return rows.table
        count = -(-self.length // self.page)
        return rows.ids[:, None] * count + torch.arange(count, device=rows.ids.device)

    def locations(self, rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Page, and index within it, of the tokens at positions [R] or [R, T] int64 of each row."""
        table = self.table(rows)
        pages = table.gather(1, (positions // self.page).view(len(table), -1))
        return pages.view_as(positions), positions % self.page

    def step_locations(self, step: DecodeStep) -> tuple[Tensor, Tensor]:
        """Page, and index within it, of each row's token, [R] int64."""
        if step.locations is not None and self.page == PAGE:
            return step.locations
        return self.locations(step.rows, step.positions)

    def begin(self, rows: Rows, tokens: int) -> tuple[Tensor, Tensor]:
        """Start new texts: page, and index within it, of each prompt token, [R, tokens] int64."""
        if self.page != PAGE:  # a NaN of the previous text would pass the mask of some forms
            for t in self.tensors:
                t[rows.ids] = 0
        elif rows.locations is not None:
            return rows.locations
        positions = torch.arange(tokens, device=rows.ids.device).expand(len(rows.ids), tokens)
        return self.locations(rows, positions)

    def read_bytes(self, row: int, tokens: int) -> float:
        """The same; all pages have one size."""
        return sum(t[:1].nbytes for t in self.tensors) * tokens / self.page

    def reads(self, step: DecodeStep) -> Reads:
        """What a step's attention reads of its texts."""
        table = self.table(step.rows)
        return Reads(lengths=step.lengths, bias=step.bias, block_table=table, extent=step.extent)
