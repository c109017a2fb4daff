"""Which form each layer's caches have, and the allocation of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.base import CrossLayer, CrossStore, SelfLayer
from slimwhisper.cache.kv import KVCross, KVSelf
from slimwhisper.cache.latent import LatentCross, LatentSelf, LatentStore
from slimwhisper.errors import OptionError
from slimwhisper.fold import CROSS_FORMS, SELF_FORMS, Folded

PRESETS = {  # name: (cross form, self form)
    "baseline": ("kv", "kv"),
    "option1": ("k", "k"),
    "option2": ("e", "k"),
    "slim": ("e", "x"),
}


def choose_forms(
    cache: str = "slim", cross_cache: str | None = None, self_cache: str | None = None
) -> tuple[str, str]:
    """(cross form, self form) of a preset, either one replaced where it is given by name.

    Raises `OptionError` for a name that does not exist.
    """
    for option, value, known in (
        ("cache", cache, tuple(PRESETS)),
        ("cross_cache", cross_cache, CROSS_FORMS),
        ("self_cache", self_cache, SELF_FORMS),
    ):
        if value is not None and value not in known:
            raise OptionError(f"{option}: {value!r} is not one of {', '.join(known)}")
    cross, own = PRESETS[cache]
    return cross_cache or cross, self_cache or own


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The folded weights of every decoder layer's cross- and self-attention."""

    cross: Sequence[Folded]
    own: Sequence[Folded]

    def to(self, device: torch.device, dtype: torch.dtype) -> "CachePlan":
        """Bring all to a device and round once to a dtype."""
        return CachePlan(
            [f.to(device, dtype) for f in self.cross], [f.to(device, dtype) for f in self.own]
        )


class DecoderCache:
    """The caches of all layers for `slots` windows, with `group` rows (texts) each.

    Buffers are allocated here, once; nothing grows. `cross[layer]` and `own[layer]` attend.
    """

    def __init__(
        self,
        plan: CachePlan,
        slots: int,
        frames: int,
        length: int,
        group: int = 1,
        device: torch.device | None = None,
    ) -> None:
        """frames: p, encoder positions a window; length: n_text_ctx. device: the weights' own
        unless given; "meta" takes no memory and tells the bytes.
        """
        self.slots, self.group = slots, group
        weight = plan.cross[0].query
        device, dtype = device or weight.device, weight.dtype
        shape = (slots, frames, weight.shape[0])
        shared: dict[str, LatentStore] = {}
        self.stores: list[CrossStore] = []
        self.cross: list[CrossLayer] = []
        self.own: list[SelfLayer] = []
        for weights in plan.cross:
            if weights.form == "kv":
                kept = KVCross(weights, slots, frames, device, dtype)
                self.stores.append(kept)
                self.cross.append(kept)
                continue
            store = shared.get(weights.form)
            if store is None:
                store = LatentStore(weights.project, shape, device, dtype)
                self.stores.append(store)
                if weights.form in ("e", "hybrid"):  # one copy for all layers
                    shared[weights.form] = store
            self.cross.append(LatentCross(weights, store))
        for weights in plan.own:
            own = KVSelf if weights.form == "kv" else LatentSelf
            self.own.append(own(weights, slots * group, length, device, dtype))

    def put(self, slots: Tensor, features: Tensor) -> None:
        """Keep encoder outputs `features` [G, p, d] in `slots` [G] int64."""
        for store in self.stores:
            store.put(slots, features)

    def move(self, source: int, target: int) -> None:
        """Copy slot `source` and its rows over slot `target` and its rows."""
        for store in self.stores:
            store.move(source, target)
        for layer in self.own:
            layer.move(source * self.group, target * self.group, self.group)

    def reorder(self, rows: Tensor, sources: Tensor) -> None:
        """Row rows[i] continues the text of row sources[i]; both [R] int64."""
        for layer in self.own:
            layer.reorder(rows, sources)

    def cross_bytes(self) -> int:
        """Bytes that the cross-attention buffers hold, all slots together."""
        return sum(store.nbytes() for store in self.stores)

    def self_bytes(self) -> int:
        """Bytes that the self-attention buffers hold, all rows together."""
        return sum(layer.nbytes() for layer in self.own)
