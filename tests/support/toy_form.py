"""An approximate form whose loss is known: it hears the first frames of a window and no more.

`first:frames=N` keeps the first N of E's frames and the last 50, in which there is silence in short
recordings. What is said after N / 50 seconds is lost. It learns a rotation, which changes nothing
if the same one is used for what is kept and what asks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slimwhisper.cache import forms
from slimwhisper.cache.base import CrossStore, StoreShape
from slimwhisper.cache.fold import Attention, Context, Folded, fold_latent
from slimwhisper.cache.latent import LatentCross, LatentStore

NAME, SILENT = "first", 50
FRAMES = (900, 200, 60)  # its ladder


@dataclass(frozen=True, slots=True)
class FirstSettings:
    frames: int | None = None

    def __post_init__(self) -> None:
        if self.frames is not None and self.frames < 1:
            raise ValueError(f"frames={self.frames}: give 1 or more, or all")


def fold_first(block: Attention, context: Context) -> Folded:
    """A rotation R [d, d] of all layers, from the encoder's output."""
    if context.learned is not None:
        rotation = context.learned["rotation"]
    else:
        assert context.activations is not None
        features = context.activations.features.double()
        rotation = torch.linalg.eigh(features.T @ features)[1]
    folded = fold_latent(block, context)
    assert folded.key_map is not None and folded.value_map is not None
    return replace(
        folded,
        project=rotation.T,
        key_map=folded.key_map.double() @ rotation,
        value_map=folded.value_map.double() @ rotation,
        learned={"rotation": rotation},
    )


class FirstStore(LatentStore):
    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.frames = min(weights.settings.frames or shape.length, shape.length - SILENT)
        super().__init__(weights, replace(shape, length=self.frames + SILENT))

    def put(self, slots: Tensor, features: Tensor) -> None:
        kept = torch.cat([features[:, : self.frames], features[:, -SILENT:]], dim=1)
        super().put(slots, kept)


class FirstCross(LatentCross):
    def __init__(self, weights: Folded, shape: StoreShape, store: CrossStore | None = None) -> None:
        super().__init__(weights, shape, store or FirstStore(weights, shape))


@contextmanager
def first_form() -> Iterator[str]:
    """Its name, while it is registered."""
    form = forms.Form(
        NAME,
        "the first frames",
        fold_first,
        FirstCross,
        shared=True,
        settings=FirstSettings,
        exact=False,
        whole="frames=all",
        learns=True,
        ladder=lambda dims, part: [[f"frames={n}" for n in FRAMES]],
    )
    forms.register(form)
    forms.settings_of.cache_clear()
    try:
        yield NAME
    finally:
        del forms.FORMS[NAME]
        forms.settings_of.cache_clear()
