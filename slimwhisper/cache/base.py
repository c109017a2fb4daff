"""The shape of stores, and the classes that every cache form implements.

A SLOT holds one window's audio; a ROW is one text in progress. Adjacent rows (beams, samples) may
share a slot. A text's cache lies in PAGES of `PAGE` tokens, which a block table lists for each row,
as in vLLM (arXiv 2309.06180, section 4.2); neither audio nor text moves. A cache layer holds its
block's projections too, because forms move weights between the query, the latent and the output;
the decoder is independent of the forms.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slimwhisper.cache.rows import PAGE, DecodeStep, Rows
from slimwhisper.kernels.attention import CacheWrite, Reads
from slimwhisper.kernels.dispatch import Kernels

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
        """The pages of each text, [R / tokens, pages] int64."""
        if rows.table is not None and self.page == PAGE:
            return rows.table
        count = -(-self.length // self.page)
        first_pages = rows.ids[:: rows.tokens, None] * count
        return first_pages + torch.arange(count, device=first_pages.device)

    def locations(self, rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Page, and index within it, of the tokens at positions [R] or [R, T] int64 of each row."""
        table = self.table(rows).repeat_interleave(rows.tokens, dim=0)
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
