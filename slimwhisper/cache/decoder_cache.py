"""The caches of all layers: their forms, allocation and pages."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimwhisper.cache.base import (
    PAGE,
    CrossLayer,
    CrossStore,
    Rows,
    SelfLayer,
    StoreShape,
    pages_of,
)
from slimwhisper.cache.fold import Folded, blocks_of, fold
from slimwhisper.cache.forms import Form
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from slimwhisper.cache.latent import LatentSteps


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The folded weights of every decoder layer's cross- and self-attention."""

    cross: list[Folded]
    self_: list[Folded]
    kernels: Kernels = field(
        default_factory=lambda: Kernels(torch.device("cpu"), torch.float64, "torch")
    )
    # the guard's: what it measured, layer by layer, and a line for each form that it replaced
    inspections: Sequence[Any] = ()
    fallbacks: Sequence[str] = ()

    @staticmethod
    def of(
        state: Mapping[str, Tensor], dims: Dims, cross: str | Form = "e", self_: str | Form = "x"
    ) -> "CachePlan":
        """Fold every layer for two forms; weights not yet rounded.

        state: OpenAI's names; matrices [out, in]. Forms that need the guard are not measured:
        `slimwhisper.guard.guarded_plan` does.
        """
        crossing, inner = (
            [fold(block, form, context) for block, context in blocks_of(state, dims, attention)]
            for attention, form in (("cross", cross), ("self", self_))
        )
        return CachePlan(crossing, inner)

    def to(self, device: torch.device, dtype: torch.dtype) -> "CachePlan":
        """The same on a device, rounded once to a dtype."""
        cross, self_ = ([f.to(device, dtype) for f in each] for each in (self.cross, self.self_))
        return replace(self, cross=cross, self_=self_, kernels=Kernels(device, dtype))

    def packed(self, int8: bool = False) -> "CachePlan":
        """The same with its matrices in the fastest layout here; see `Folded.packed`."""
        compiled, stored = self.kernels.library if int8 else None, None
        if compiled is not None:
            stored = torch.int16 if compiled.has_integers else torch.float16
        cross, self_ = ([f.packed(stored) for f in each] for each in (self.cross, self.self_))
        return replace(self, cross=cross, self_=self_)

    @property
    def exact_cross(self) -> bool:
        """Whether the forms of the audio's cache are exact."""
        return all(weights.form.exact for weights in self.cross)

    @property
    def exact_self(self) -> bool:
        """Whether the forms of the text's cache are exact."""
        return all(weights.form.exact for weights in self.self_)

    @property
    def may_draft(self) -> bool:
        """Whether rejected tokens can be removed from the cache of the text. They cannot where a
        form drops tokens, sums over them, or rounds them to float8 after a prompt has read them.
        """
        return self.exact_self and all(w.column_scales is None for w in self.self_)

    def store_shape(self, count: int, length: int, device: torch.device | None) -> StoreShape:
        """For `count` slots or rows of `length` tokens. device None: that of the weights."""
        weight = self.cross[0].query_bias
        return StoreShape(count, length, device or weight.device, weight.dtype, self.kernels)


class CrossCache:
    """The audio of `slots` windows, for all layers. Allocated once; it never grows."""

    def __init__(
        self, plan: CachePlan, slots: int, frames: int, device: torch.device | None = None
    ) -> None:
        """frames: p, encoder positions per window. device: None: that of the weights; "meta" takes
        no memory, but `nbytes` is right.
        """
        self.slots, self.frames = slots, frames
        shape = plan.store_shape(slots, frames, device)
        # encoder positions with audio in each slot
        self.lengths = torch.full((slots,), frames, dtype=torch.int64, device=shape.device)
        self.all_whole = True  # no window was shorter so far
        self.stores: list[CrossStore] = []
        self.layers: list[CrossLayer] = []
        shared: dict[Form, CrossStore] = {}
        for weights in plan.cross:
            make: Callable[..., CrossLayer] = weights.form.cross
            layer = make(weights, shape, shared.get(weights.form))
            self.layers.append(layer)
            if weights.form not in shared:
                self.stores.append(layer.store)
            if weights.form.shared:
                shared[weights.form] = layer.store

    def with_lengths(self, rows: Rows) -> Rows:
        """The rows with the lengths of their windows' audio, unless all windows are whole."""
        return rows if self.all_whole else replace(rows, audio=self.lengths[rows.slots])

    def put(self, slots: Tensor, features: Tensor) -> bool:
        """Store encoder outputs `features` [G, q, d], q up to p, in `slots` [G] int64; returns
        whether they are the first of windows shorter than p.
        """
        positions = features.shape[1]
        short = positions < self.frames
        for store in self.stores:
            for t in store.tensors if short else ():  # an earlier NaN would pass some forms' masks
                t[slots] = 0
            store.put(slots, features)
        first, self.all_whole = short and self.all_whole, self.all_whole and not short
        self.lengths.index_fill_(0, slots, positions)
        return first

    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(store.nbytes() for store in self.stores)


class Pages:
    """The pages of all layers' texts. Page i of every layer belongs to the same tokens.

    All tensors of one shape are one buffer, so that copying a page is one operation for all layers.
    The last page belongs to no text: padding is written there.
    """

    def __init__(self, plan: CachePlan, count: int, device: torch.device | None = None) -> None:
        """count: pages; one more is added. The memory is not initialised, so that systems which
        allocate on first touch allocate only pages that are used.
        """
        self.count, shape = count, plan.store_shape(0, 0, device)
        self.scratch = count  # the page that belongs to no text
        by_layer = [w.form.self_.page_shapes(w, shape.dtype) for w in plan.self_]
        buffers = {
            size: torch.empty((n, count + 1, *size[0]), device=shape.device, dtype=size[1])
            for size, n in Counter(s for shapes in by_layer for s in shapes).items()
        }
        self._buffers = list(buffers.values())  # [n, pages, ...], of each shape
        unused = {size: iter(t.unbind()) for size, t in buffers.items()}
        self.by_layer = [[next(unused[size]) for size in shapes] for shapes in by_layer]
        self.page_bytes = sum(t[:1].nbytes for layer in self.by_layer for t in layer)

    def copy(self, pages: Tensor, sources: Tensor) -> None:
        """Page pages[i] becomes a copy of page sources[i], both [n] int64."""
        for t in self._buffers:
            if t.device.type == "cpu":  # PyTorch's threads would spin after it, beside those of C
                stored = t.view(torch.uint8).numpy()
                stored[:, pages.numpy()] = stored[:, sources.numpy()]
            else:
                t[:, pages] = t[:, sources]


class SelfCache:
    """The texts, for all layers: their pages, and `rows` rows in forms without pages."""

    def __init__(
        self,
        plan: CachePlan,
        rows: int,
        length: int,
        device: torch.device | None = None,
        pages: Pages | None = None,
    ) -> None:
        """length: n_text_ctx. device: as in `CrossCache`. pages: None: enough for all rows, in
        their order.
        """
        self.pages = pages or Pages(plan, rows * pages_of(length), device)
        shape = plan.store_shape(rows, length, device)
        self.layers: list[SelfLayer] = []
        self.by_row: list[SelfLayer] = []
        for weights, tensors in zip(plan.self_, self.pages.by_layer, strict=True):
            make: Callable[..., SelfLayer] = weights.form.self_
            self.layers.append(make(weights, replace(shape, pages=tensors)))
            if not tensors:
                self.by_row.append(self.layers[-1])

    def copy_rows(
        self, rows: Rows, sources: Tensor, lengths: Tensor, skip_same: bool = False
    ) -> None:
        """Row i of `rows` becomes a copy of their row sources[i], which has lengths[i] tokens; both
        [R] int64. Full pages are shared; the partial last one is copied to the page that the row's
        table has there.

        skip_same: skip rows that copy themselves, for which a GPU has to synchronise.
        """
        targets = torch.arange(len(sources), device=sources.device)
        if skip_same:
            targets = targets[sources != targets]
            if not len(targets):
                return
            sources, lengths = sources[targets], lengths[targets]
        for layer in self.by_row:
            layer.copy_rows(rows.ids[targets], rows.ids[sources])
        if rows.table is None:
            return
        table, last = rows.table, rows.table.shape[1] - 1
        shared, full = table[sources], lengths[:, None] // PAGE
        partial = table[targets].gather(1, full.clamp(max=last))
        partial = partial.masked_fill(full > last, self.pages.scratch).squeeze(1)
        self.pages.copy(partial, shared.gather(1, full.clamp(max=last)).squeeze(1))
        index = torch.arange(last + 1, device=table.device)
        table[targets] = torch.where(index < full, shared, table[targets])

    def nbytes(self) -> int:
        """Bytes of all pages and rows."""
        by_row = sum(layer.nbytes() for layer in self.by_row)
        return by_row + self.pages.count * self.pages.page_bytes


@dataclass(slots=True)
class DecoderCache:
    """The caches that a decoder call reads: the audio of the slots, the texts of the rows."""

    cross: CrossCache
    self_: SelfCache
    in_c: "LatentSteps | None" = None  # what takes the steps of the decoder `of`, if C can
    of: object = None
