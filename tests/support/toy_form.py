"""An approximate form whose loss is known: it hears the first frames of a window and no more.

`first:frames=N` keeps the first N of E's frames and the last 50, in which there is silence in short
recordings. What is said after N / 50 seconds is lost. It learns a rotation, which changes nothing
if the same one is used for what is kept and what asks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pytest
import torch
from torch import Tensor

from slimwhisper.cache import forms
from slimwhisper.cache.base import CrossStore, StoreShape
from slimwhisper.cache.fold import Activations, Attention, Context, Folded
from slimwhisper.cache.latent import LatentCross, LatentStore
from slimwhisper.types import Dims

NAME, SILENT = "first", 50
FRAMES = (900, 200, 60)  # its ladder


class FirstStore(LatentStore):
    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        assert isinstance(weights.form, First)
        self.frames = min(weights.form.frames or shape.length, shape.length - SILENT)
        super().__init__(weights, replace(shape, length=self.frames + SILENT))

    def put(self, slots: Tensor, features: Tensor) -> None:
        kept = torch.cat([features[:, : self.frames], features[:, -SILENT:]], dim=1)
        super().put(slots, kept)


class FirstCross(LatentCross):
    def __init__(self, weights: Folded, shape: StoreShape, store: CrossStore | None = None) -> None:
        super().__init__(weights, shape, store or FirstStore(weights, shape))


@dataclass(frozen=True)
class First(forms.Form):
    name, attentions, shared, exact = NAME, ("cross",), True, False
    tensors, cross = ("rotation",), FirstCross
    frames: int | None = None

    def __post_init__(self) -> None:
        self.require(self.frames is None or self.frames >= 1, "frames", "1 or more, or all")

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        return [[f"frames={n}" for n in FRAMES]]

    def learn(self, attention: str, blocks: Sequence[Attention], activations: Activations) -> Self:
        """A rotation R [d, d] of all layers, from the encoder's output."""
        features = activations.features.double()
        rotation = torch.linalg.eigh(features.T @ features)[1]
        return replace(self, learned=[{"rotation": rotation} for _ in blocks])

    def fold(self, block: Attention, context: Context) -> Folded:
        assert self.learned is not None
        rotation = self.learned[context.layer]["rotation"]
        return block.folded(
            self,
            project=rotation.T,
            key_map=block.by_head(block.key).double() @ rotation,
            value_map=block.by_head(block.value).double() @ rotation,
        )


@pytest.fixture(scope="module")
def first() -> Iterator[str]:
    """Its name, while it is registered."""
    forms.register(First)
    yield NAME
    del forms.FORMS[NAME]
