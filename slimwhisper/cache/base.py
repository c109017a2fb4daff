"""What every cache shares: the rows of a call, the protocols, and the attention of one block.

A SLOT holds one window's audio; a ROW holds one text that is being decoded. Several rows (beams)
may read one slot. A cache owns its block's projections, because the forms move weights between
the query, the kept latent and the output; the decoder never knows which form it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.norm import Place
from slimwhisper.kernels.reads import Reads

Kept = TypeVar("Kept", Tensor, Latent)  # [slots or rows, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Which cache rows a call works on, and which slot each one reads.

    `group` is set when rows and slots are contiguous blocks, with `group` rows to a slot. In a step
    of several tokens a text, each of them is a row of the call: adjacent, with the id and the slot
    of its text.
    """

    ids: Tensor  # [R] int64
    slots: Tensor  # [R] int64
    group: int | None = None
    first_row: int = 0  # where the blocks begin; only with `group`
    first_slot: int = 0
    lengths: Tensor | None = None  # [R] int64: of prompts that are padded
    tokens: int = 1  # of each text

    @staticmethod
    def block(
        slots: int,
        group: int = 1,
        *,
        first_slot: int = 0,
        first_row: int = 0,
        device: torch.device | str = "cpu",
    ) -> "Rows":
        """`slots` contiguous slots with `group` contiguous rows each; R = slots * group."""
        every = torch.arange(slots * group, device=device)
        return Rows(first_row + every, first_slot + every // group, group, first_row, first_slot)

    @staticmethod
    def of(ids: Tensor, slots: Tensor | None = None, lengths: Tensor | None = None) -> "Rows":
        """Any rows, ids [R] int64; row r reads slot r unless `slots` [R] int64 says otherwise."""
        return Rows(ids, ids if slots is None else slots, lengths=lengths)

    def spread(self, tokens: int) -> "Rows":
        """The same texts with `tokens` rows each, one for each of a step's tokens."""
        ids, slots = (t.repeat_interleave(tokens) for t in (self.ids, self.slots))
        return replace(self, ids=ids, slots=slots, tokens=tokens)

    @property
    def together(self) -> int:
        """How many adjacent rows read a slot in one pass."""
        return 1 if self.group is None else self.group * self.tokens

    def prompt_lengths(self, tokens: int) -> Tensor:
        """[R] int64: of prompts [R, tokens], without their padding."""
        return torch.full_like(self.ids, tokens) if self.lengths is None else self.lengths

    def of_slots(self, kept: Kept) -> tuple[Kept, Tensor | None]:
        """What to read of `kept` [S, ...], which is held by slot: a view [R / together, ...] and
        None, or all of it and the slot that each row reads, [R] int64.
        """
        if self.group is None:
            return kept, self.slots
        return kept[self.first_slot : self.first_slot + len(self.ids) // self.together], None

    def of_rows(self, kept: Kept) -> tuple[Kept, Tensor | None]:
        """The same for `kept` [rows, ...], which is held by row, and read once by all tokens of a
        text: a view [R / tokens, ...] and None, or all of it and the texts' ids [R / tokens] int64.
        """
        if self.group is None:
            return kept, self.ids[:: self.tokens]
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
    sources: Tensor | None = None  # [R, extent] int64: the row that holds each token; None: its own

    def reads(self, slots: Tensor | None) -> Reads:
        """What an attention call reads of the rows; `slots` as `Rows.of_rows` gives them."""
        return Reads(slots, self.lengths, self.bias, self.sources)

    @staticmethod
    def at(rows: Rows, positions: Tensor, extent: int, full: bool, dtype: torch.dtype) -> "Step":
        """positions [R] int64 -> the step; its bias is in `dtype`.

        full: every row's position is extent - 1, so neither is needed.
        """
        if full:
            return Step(rows, positions, extent, None, None)

        @cache
        def bias() -> Tensor:
            """[R, 1, extent]."""
            unseen = torch.arange(extent, device=positions.device) > positions[:, None]
            zeros = torch.zeros(unseen.shape, dtype=dtype, device=positions.device)
            return zeros.masked_fill_(unseen, float("-inf")).unsqueeze(1)

        return Step(rows, positions, extent, positions + 1, bias)


@dataclass(frozen=True, slots=True)
class Room:
    """What a store is allocated for. A store is allocated once and never grows."""

    count: int  # slots of a `CrossStore`, rows of a `SelfLayer`
    length: int  # tokens of each: p encoder positions, or n_text_ctx
    device: torch.device  # "meta" takes no memory, but the sizes are right
    dtype: torch.dtype
    kernels: Kernels


class Buffers:
    """Tensors [slots, ...] or [rows, ...], allocated once for all slots or rows."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def nbytes(self) -> int:
        """Bytes of all slots or rows together."""
        return sum(t.nbytes for t in self.tensors)

    def move(self, source: int, target: int, count: int = 1) -> None:
        """Copy `count` contiguous slots or rows, from `source` on, over those from `target` on."""
        for t in self.tensors:
            t[target : target + count] = t[source : source + count]

    def swap(self, one: int, other: int) -> None:
        """Exchange two slots or rows."""
        for t in self.tensors:
            kept = t[one].clone()
            t[one] = t[other]
            t[other] = kept


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
        """x [R, T, d], heads [n] int64 -> [R, n, T, p]: scaled scores before the softmax."""

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads; here, all of its slot."""
        return sum(t[slot].nbytes for t in self.store.tensors)


class SelfLayer(Buffers, ABC):
    """One layer's attention to the text so far, and what is kept of that text.

    Constructed as `SelfLayer(weights, room)`.
    """

    length: int  # tokens that a row has room for

    @abstractmethod
    def reorder(self, rows: Tensor, sources: Tensor, extent: int) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64, up to `extent` tokens."""

    @abstractmethod
    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """Start new texts in `rows`, T tokens at positions 0 .. T-1: x [R, T, d] -> [R, T, d].

        Rows shorter than T are padded on the right; their padding is overwritten by later steps.
        """

    def place(self, step: Step) -> Place | None:
        """Where the norm before `step` keeps the step's tokens; None: `step` keeps them itself."""
        return None

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row reads with `tokens` tokens; here, of all of them."""
        return sum(t[row].nbytes for t in self.tensors) * tokens / self.length

    @abstractmethod
    def step(self, x: Tensor, step: Step) -> Tensor:
        """Append one token per row, unless its `place` has it, then attend: x [R, 1, d] -> same."""
