"""Which form each layer's caches have, and the allocation of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slimwhisper.cache.base import CrossLayer, CrossStore, Room, SelfLayer, Step
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.forms import form_of
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

    def move(self, source: int, target: int) -> None:
        """Copy one slot over another."""
        for store in self.stores:
            store.move(source, target)

    def swap(self, one: int, other: int) -> None:
        """Exchange two slots."""
        for store in self.stores:
            store.swap(one, other)

    def nbytes(self) -> int:
        """Bytes that the buffers hold, all slots together."""
        return sum(store.nbytes() for store in self.stores)


class SelfCache:
    """What all layers keep of `rows` texts. Allocated once; it never grows."""

    def __init__(
        self,
        plan: CachePlan,
        rows: int,
        length: int,
        device: torch.device | None = None,
        shared: bool = False,
    ) -> None:
        """length: n_text_ctx. device: as in `CrossCache`. shared: a row that becomes a copy of
        another reads the other's tokens in place, where the kernels can, instead of copying them.
        """
        room = plan.room(rows, length, device)
        forms = [form_of(weights.form) for weights in plan.self_]
        self.layers: list[SelfLayer] = [
            form.use("self_")(weights, room)
            for form, weights in zip(forms, plan.self_, strict=True)
        ]
        can = plan.kernels.processor is not None and all(form.sources for form in forms)
        self.sources: Tensor | None = None  # [rows, length] int64: the row that holds each token
        if shared and can:
            every = torch.arange(rows, device=room.device)
            self.sources = every[:, None].expand(rows, length).contiguous()

    def begin(self, ids: Tensor) -> None:
        """Start new texts in rows `ids` [R] int64."""
        if self.sources is not None:
            self.sources[ids] = ids[:, None]

    def append(self, step: Step) -> Step:
        """Record that each row of `step` holds one more token; returns it with `sources` set."""
        if self.sources is None:
            return step
        ids = step.rows.ids
        self.sources[ids, step.positions] = ids
        held, chosen = step.rows.of_rows(self.sources)
        held = held if chosen is None else held[chosen]
        return replace(step, sources=held[:, : step.extent])

    def move(self, source: int, target: int, count: int = 1) -> None:
        """Copy `count` contiguous rows, from `source` on, over those from `target` on. They must
        include every row that one of them reads.
        """
        if self.sources is not None:
            moved = self.sources[source : source + count] + (target - source)
            self.sources[target : target + count] = moved
        for layer in self.layers:
            layer.move(source, target, count)

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        assert self.sources is None
        for layer in self.layers:
            layer.swap(one, other)

    def reorder(self, rows: Tensor, sources: Tensor, extent: int, ask: bool = False) -> None:
        """Row rows[i] becomes a copy of row sources[i], both [R] int64; the first `extent` tokens.
        Afterwards the two may share tokens, so neither is restarted or moved without the other.

        ask: first find the rows that do not change, and skip them; on a GPU this is a sync.
        """
        if self.sources is not None:
            self.sources[rows, :extent] = self.sources[sources, :extent]
            return
        if ask:
            moved = rows != sources
            rows, sources = rows[moved], sources[moved]
            if not len(rows):
                return
        for layer in self.layers:
            layer.reorder(rows, sources, extent)

    def nbytes(self) -> int:
        """Bytes that the buffers hold, all rows together."""
        sources = 0 if self.sources is None else self.sources.nbytes
        return sources + sum(layer.nbytes() for layer in self.layers)


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
