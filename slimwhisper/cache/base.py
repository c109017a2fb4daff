"""What every cache shares: the rows of a call, the protocols, and the attention of one block.

A SLOT holds one window's audio; a ROW is one text that is being decoded. Adjacent rows (beams,
samples) may read one slot. What is kept of a text lies in PAGES of `PAGE` tokens, which a block
table lists for each row, as in vLLM (arXiv 2309.06180, section 4.2); neither audio nor text moves.
A cache owns its block's projections, because the forms move weights between the query, the kept
latent and the output; the decoder never knows which form it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from slimwhisper.cache.pool import PAGE
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.norm import Place
from slimwhisper.kernels.reads import Reads

Kept = TypeVar("Kept", Tensor, Latent)  # [slots or rows, ...]
Shape = tuple[tuple[int, ...], torch.dtype]  # of what a page holds


@dataclass(frozen=True, slots=True)
class Rows:
    """Which texts a call works on, and which slot each one reads.

    The R rows of a call are W windows of `group` texts with `tokens` rows each; a window's are
    adjacent. In a step of several tokens a text, each of them is a row of the call.
    """

    ids: Tensor  # [R] int64: of each row's text; where the forms that have no pages keep it
    slots: Tensor  # [W] int64
    group: int = 1
    table: Tensor | None = None  # [W * group, pages] int64; None: text i has the i-th pages
    lengths: Tensor | None = None  # [R] int64: of prompts that are padded
    tokens: int = 1  # of each text
    # where the ids, or the slots, begin, if they are consecutive: then they are read without a copy
    first_row: int | None = None
    first_slot: int | None = None

    @staticmethod
    def block(
        slots: int,
        group: int = 1,
        *,
        first_slot: int = 0,
        first_row: int = 0,
        pages: int | None = None,
        device: torch.device | str = "cpu",
    ) -> "Rows":
        """`slots` consecutive slots with `group` consecutive rows each; R = slots * group. pages:
        of each text; with it, the table is made once, not in every layer.
        """
        ids = first_row + torch.arange(slots * group, device=device)
        every = first_slot + torch.arange(slots, device=device)
        table = None
        if pages is not None:
            table = ids[:, None] * pages + torch.arange(pages, device=device)
        return Rows(ids, every, group, table, first_row=first_row, first_slot=first_slot)

    @staticmethod
    def of(ids: Tensor, slots: Tensor | None = None, lengths: Tensor | None = None) -> "Rows":
        """Any rows, ids [R] int64; row r reads slot r unless `slots` [R] int64 says otherwise."""
        return Rows(ids, ids if slots is None else slots, lengths=lengths)

    def spread(self, tokens: int) -> "Rows":
        """The same texts with `tokens` rows each, one for each of a step's tokens."""
        return replace(self, ids=self.ids.repeat_interleave(tokens), tokens=tokens)

    def first_of_each(self, lengths: Tensor) -> "Rows":
        """The first row of each window, for prompts of `lengths` [W] int64."""
        table = None if self.table is None else self.table[:: self.group]
        return Rows(self.ids[:: self.group], self.slots, table=table, lengths=lengths)

    @property
    def together(self) -> int:
        """How many adjacent rows read a slot in one pass."""
        return self.group * self.tokens

    def prompt_lengths(self, tokens: int) -> Tensor:
        """[R] int64: of prompts [R, tokens], without their padding."""
        return torch.full_like(self.ids, tokens) if self.lengths is None else self.lengths

    def of_slots(self, kept: Kept) -> tuple[Kept, Tensor | None]:
        """What to read of `kept` [S, ...], which is held by slot: a view [W, ...] and None, or all
        of it and the slot that each window reads, [W] int64.
        """
        if self.first_slot is None:
            return kept, self.slots
        return kept[self.first_slot : self.first_slot + len(self.slots)], None

    def of_rows(self, kept: Kept) -> tuple[Kept, Tensor | None]:
        """The same for `kept` [rows, ...], which is held by text, and read once by all its tokens:
        a view [R / tokens, ...] and None, or all of it and the texts' ids [R / tokens] int64.
        """
        if self.first_row is None:
            return kept, self.ids[:: self.tokens].contiguous()
        return kept[self.first_row : self.first_row + len(self.ids) // self.tokens], None


@dataclass(frozen=True, slots=True)
class Step:
    """One token for each of R rows. All rows of a text keep theirs before any of them attends."""

    rows: Rows
    positions: Tensor  # [R] int64: the position of each row's token, 0 .. n_text_ctx - 1
    extent: int  # tokens to read: the largest position + 1, known without a device sync
    # both None: all rows are full
    lengths: Tensor | None  # [R] int64: how many tokens each row has
    bias: Callable[[], Tensor] | None  # [R, 1, extent]: -inf where a row has no token yet
    places: tuple[Tensor, Tensor] | None = None  # [R] int64: page and place of each row's token

    @staticmethod
    def at(rows: Rows, positions: Tensor, extent: int, full: bool, dtype: torch.dtype) -> "Step":
        """positions [R] int64 -> the step; its bias is in `dtype`.

        full: every row's position is extent - 1, so neither is needed.
        """
        places = None
        if rows.table is not None:
            pages = rows.table.gather(1, positions.view(-1, rows.tokens) // PAGE)
            places = pages.flatten(), positions % PAGE
        if full:
            return Step(rows, positions, extent, None, None, places)

        @cache
        def bias() -> Tensor:
            """[R, 1, extent]."""
            unseen = torch.arange(extent, device=positions.device) > positions[:, None]
            zeros = torch.zeros(unseen.shape, dtype=dtype, device=positions.device)
            return zeros.masked_fill_(unseen, float("-inf")).unsqueeze(1)

        return Step(rows, positions, extent, positions + 1, bias, places)


@dataclass(frozen=True, slots=True)
class Room:
    """What a store is allocated for. A store is allocated once and never grows."""

    count: int  # slots of a `CrossStore`, rows of a `SelfLayer`
    length: int  # tokens of each: p encoder positions, or n_text_ctx
    device: torch.device  # "meta" takes no memory, but the sizes are right
    dtype: torch.dtype
    kernels: Kernels
    # of a `SelfLayer` with pages, [pages, ...]: its tensors, as its `page` says
    pages: Sequence[Tensor] = ()


class Buffers:
    """Tensors [slots, ...], [rows, ...] or [pages, ...], allocated once for all of them."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def nbytes(self) -> int:
        """Bytes of all slots or rows together."""
        return sum(t.nbytes for t in self.tensors)


class CrossStore(Buffers, ABC):
    """What is kept of the audio, for one layer or shared by several."""

    @abstractmethod
    def put(self, slots: Tensor, features: Tensor) -> None:
        """Store `features` [G, p, d], the encoder's output, in `slots` [G] int64."""


class CrossLayer(ABC):
    """One layer's attention to the audio of the slots.

    Constructed as `CrossLayer(weights, room, store)`. `store` belongs to another layer of the same
    form, which this one shares; None: this layer allocates its own.
    """

    store: CrossStore

    @abstractmethod
    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], output projection included; T = 1 in a step."""

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """`attend` in a step, x [R, 1, d]; for forms that attend otherwise to a prompt, of which
        one token may be all.
        """
        return self.attend(x, rows)

    @abstractmethod
    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p]: scaled scores before the softmax. Each
        row has a window to itself.
        """

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads; here, all of its slot."""
        return sum(t[slot].nbytes for t in self.store.tensors)


class SelfLayer(Buffers, ABC):
    """One layer's attention to the text so far, and what is kept of that text.

    Constructed as `SelfLayer(weights, room)`, by rows; a `PagedLayer` by pages.
    """

    length: int  # tokens that a row has room for

    @abstractmethod
    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """Start new texts in `rows`, T tokens at positions 0 .. T-1: x [R, T, d] -> [R, T, d].

        Rows shorter than T are padded on the right; their padding is overwritten by later steps.
        """

    def place(self, step: Step) -> Place | None:
        """Where the norm before `step` keeps the step's tokens; None: `step` keeps them itself."""
        return None

    @abstractmethod
    def step(self, x: Tensor, step: Step) -> Tensor:
        """Append one token per row, unless its `place` has it, then attend: x [R, 1, d] -> same."""

    def copy_rows(self, rows: Tensor, sources: Tensor) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64."""
        for t in self.tensors:
            t[rows] = t[sources]

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row reads with `tokens` tokens; here, of all of them."""
        return sum(t[row].nbytes for t in self.tensors) * tokens / self.length


class PagedLayer(SelfLayer):
    """A layer that keeps texts in pages. With `page` = n_text_ctx, each row is one page."""

    page: int  # tokens

    @staticmethod
    @abstractmethod
    def shapes(weights: Any, page: int, dtype: torch.dtype) -> list[Shape]:
        """What a page of `page` tokens is made of, for folded `weights`."""

    def paged(self, weights: Any, room: Room) -> Sequence[Tensor]:
        """Its tensors [pages, ...]: the room's, or for each row a page of its own."""
        pages, self.length, self.page = room.pages, room.length, PAGE
        if not pages:
            self.page = room.length
            pages = [
                torch.zeros((room.count, *shape), device=room.device, dtype=dtype)
                for shape, dtype in self.shapes(weights, room.length, room.dtype)
            ]
        return pages

    def table(self, rows: Rows) -> Tensor:
        """The pages of each text, [R / tokens, pages] int64."""
        if rows.table is not None and self.page == PAGE:
            return rows.table
        each = -(-self.length // self.page)
        firsts = rows.ids[:: rows.tokens, None] * each
        return firsts + torch.arange(each, device=firsts.device)

    def places(self, rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Page and place of the tokens at positions [R] or [R, T] int64 of each row."""
        table = self.table(rows).repeat_interleave(rows.tokens, dim=0)
        pages = table.gather(1, (positions // self.page).view(len(table), -1))
        return pages.view_as(positions), positions % self.page

    def step_places(self, step: Step) -> tuple[Tensor, Tensor]:
        """Page and place of each row's token, [R] int64."""
        if step.places is not None and self.page == PAGE:
            return step.places
        return self.places(step.rows, step.positions)

    def begin(self, rows: Rows, tokens: int) -> tuple[Tensor, Tensor]:
        """Start new texts: page and place of every token of prompts, [R, tokens] int64."""
        if self.page != PAGE:  # a NaN of the previous text would pass the mask of some forms
            for t in self.tensors:
                t[rows.ids] = 0
        every = torch.arange(tokens, device=rows.ids.device).expand(len(rows.ids), tokens)
        return self.places(rows, every)

    def read_bytes(self, row: int, tokens: int) -> float:
        """Of its tokens alone; any page is as large."""
        return sum(t[:1].nbytes for t in self.tensors) * tokens / self.page

    def reads(self, step: Step) -> Reads:
        """What an attention call reads of the step's texts."""
        table = self.table(step.rows)
        return Reads(lengths=step.lengths, bias=step.bias, table=table, extent=step.extent)
