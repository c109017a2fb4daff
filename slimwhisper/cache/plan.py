"""Which form each layer's caches have, and the allocation of all of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from slimwhisper.cache.base import (
    CrossLayer,
    CrossStore,
    PagedLayer,
    Room,
    Rows,
    SelfLayer,
    Shape,
)
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.forms import form_of
from slimwhisper.cache.pool import PAGE, pages_of
from slimwhisper.kernels.dispatch import Kernels


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The folded weights of every decoder layer's cross- and self-attention."""

    cross: Sequence[Folded]
    self_: Sequence[Folded]
    kernels: Kernels = field(
        default_factory=lambda: Kernels(torch.device("cpu"), torch.float64, "torch")
    )

    def to(self, device: torch.device, dtype: torch.dtype) -> "CachePlan":
        """The same on a device, rounded once to a dtype."""
        return CachePlan(
            [f.to(device, dtype) for f in self.cross],
            [f.to(device, dtype) for f in self.self_],
            Kernels(device, dtype),
        )

    def packed(self) -> "CachePlan":
        """The same with its matrices in the fastest layout here; see `kernels.linear.pack`."""
        return CachePlan(
            [f.packed() for f in self.cross], [f.packed() for f in self.self_], self.kernels
        )

    def room(self, count: int, length: int, device: torch.device | None) -> Room:
        """For `count` slots or rows of `length` tokens; device None: the weights' own."""
        weight = self.cross[0].query_bias
        return Room(count, length, device or weight.device, weight.dtype, self.kernels)


class CrossCache:
    """What all layers keep of the audio of `slots` windows. Allocated once; it never grows."""

    def __init__(
        self,
        plan: CachePlan,
        slots: int,
        frames: int,
        device: torch.device | None = None,
        held: Mapping[str, CrossStore] | None = None,
    ) -> None:
        """frames: p, encoder positions per window. device: None: the weights' own; "meta" takes
        no memory, but `nbytes` is right. held: stores of another cache, by form, to read.
        """
        self.slots, self.frames = slots, frames
        room = plan.room(slots, frames, device)
        self.device = room.device
        self.stores: list[CrossStore] = []
        self.layers: list[CrossLayer] = []
        self.shared = shared = dict(held or {})
        for weights in plan.cross:
            form = form_of(weights.form)
            layer: CrossLayer = form.use("cross")(weights, room, shared.get(weights.form))
            self.layers.append(layer)
            if weights.form not in shared:
                self.stores.append(layer.store)
            if form.shared:
                shared[weights.form] = layer.store

    def read_by(self, plan: CachePlan) -> "CrossCache":
        """The same audio for the layers of another decoder. They read these stores, where their
        form shares one; what they keep of their own is put, moved and counted here.
        """
        other = CrossCache(plan, self.slots, self.frames, self.device, held=self.shared)
        self.stores += other.stores
        return other

    def put(self, slots: Tensor, features: Tensor) -> None:
        """Store encoder outputs `features` [G, p, d] in `slots` [G] int64."""
        for store in self.stores:
            store.put(slots, features)

    def nbytes(self) -> int:
        """Bytes that the buffers hold, all slots together."""
        return sum(store.nbytes() for store in self.stores)


class Pages:
    """The pages of all layers' texts. Page i of every layer belongs to the same tokens.

    One tensor holds all that has one shape, so that a copy of a page is one operation for all
    layers. The last page belongs to nobody: what is padding is written there.
    """

    def __init__(self, plan: CachePlan, count: int, device: torch.device | None = None) -> None:
        """count: pages, one more is added. The memory is not touched before it is used, and a
        system that gives memory as it is touched gives no more than that.
        """
        self.count, room = count, plan.room(0, 0, device)
        wanted = [_shapes(weights, room.dtype) for weights in plan.self_]
        held = {
            shape: torch.empty((n, count + 1, *shape[0]), device=room.device, dtype=shape[1])
            for shape, n in Counter(s for shapes in wanted for s in shapes).items()
        }
        self._of_all = list(held.values())  # [n, pages, ...], of each shape
        next_of = {shape: iter(t.unbind()) for shape, t in held.items()}
        self.of_layer = [[next(next_of[shape]) for shape in shapes] for shapes in wanted]
        self.page_bytes = sum(t[:1].nbytes for layer in self.of_layer for t in layer)

    @property
    def nobody(self) -> int:
        """The page that belongs to nobody."""
        return self.count

    def copy(self, pages: Tensor, sources: Tensor) -> None:
        """Page pages[i] becomes a copy of page sources[i], both [n] int64."""
        for t in self._of_all:
            t[:, pages] = t[:, sources]


def _shapes(weights: Folded, dtype: torch.dtype) -> Sequence[Shape]:
    """What a page of a layer is made of; nothing, if its form keeps rows."""
    form = form_of(weights.form)
    if not form.paged:
        return ()
    return cast(type[PagedLayer], form.use("self_")).shapes(weights, PAGE, dtype)


class SelfCache:
    """What all layers keep of texts: their pages, and, in forms without pages, `rows` rows."""

    def __init__(
        self,
        plan: CachePlan,
        rows: int,
        length: int,
        device: torch.device | None = None,
        pages: Pages | None = None,
    ) -> None:
        """length: n_text_ctx. device: as in `CrossCache`. pages: None: enough for all rows, which
        the rows own in their order.
        """
        self.pages = pages or Pages(plan, rows * pages_of(length), device)
        room = plan.room(rows, length, device)
        self.layers: list[SelfLayer] = [
            form_of(weights.form).use("self_")(weights, replace(room, pages=own))
            for weights, own in zip(plan.self_, self.pages.of_layer, strict=True)
        ]
        self.by_row = [
            layer for layer, own in zip(self.layers, self.pages.of_layer, strict=True) if not own
        ]

    def follow(self, rows: Rows, sources: Tensor, held: Tensor, ask: bool = False) -> None:
        """Row i of `rows` becomes a copy of their row sources[i], [R] int64, which has held[i]
        tokens [R] int64. Whole pages are shared; of the last one it gets a copy, in the page of its
        own that its table has there.

        ask: first find the rows that do not change, and skip them; on a GPU this is a sync.
        """
        every = torch.arange(len(sources), device=sources.device)
        if ask:
            every = every[sources != every]
            if not len(every):
                return
            sources, held = sources[every], held[every]
        for layer in self.by_row:
            layer.copy_rows(rows.ids[every], rows.ids[sources])
        if rows.table is None:
            return
        table, last = rows.table, rows.table.shape[1] - 1
        theirs, whole = table[sources], held[:, None] // PAGE
        own = table[every].gather(1, whole.clamp(max=last))
        own = own.masked_fill(whole > last, self.pages.nobody).squeeze(1)
        self.pages.copy(own, theirs.gather(1, whole.clamp(max=last)).squeeze(1))
        index = torch.arange(last + 1, device=table.device)
        table[every] = torch.where(index < whole, theirs, table[every])

    def nbytes(self) -> int:
        """Bytes that the buffers hold, all pages and rows together."""
        by_row = sum(layer.nbytes() for layer in self.by_row)
        return by_row + self.pages.count * self.pages.page_bytes


@dataclass(frozen=True, slots=True)
class DecoderCache:
    """What a decoder call reads: the audio of the slots and the text of the rows."""

    cross: CrossCache
    self_: SelfCache

    @staticmethod
    def allocate(
        plan: CachePlan,
        slots: int,
        frames: int,
        length: int,
        group: int = 1,
        device: torch.device | None = None,
    ) -> "DecoderCache":
        """Caches for `slots` windows with `group` rows each; see `CrossCache`, `SelfCache`."""
        return DecoderCache(
            CrossCache(plan, slots, frames, device),
            SelfCache(plan, slots * group, length, device),
        )
