"""What a decoder's attention blocks see: recorded once, for the guard and for forms that learn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Activations:
    """Of one window, or of several one after the other; float32."""

    features: Tensor  # [p, d]: the encoder's output
    self_: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of its self-attention
    asking: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of its cross-attention

    def of(self, attention: str, layer: int) -> Tensor:
        """[n, d]: what a layer's "cross" or "self" attention makes keys and values of."""
        return self.features if attention == "cross" else self.self_[layer]

    def queries(self, attention: str, layer: int) -> Tensor:
        """[T, d]: what a layer's "cross" or "self" attention makes queries of."""
        return self.asking[layer] if attention == "cross" else self.self_[layer]

    @staticmethod
    def joined(several: Sequence["Activations"]) -> "Activations":
        """One window after the other."""

        def layers(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
            return [torch.cat(of_a_layer) for of_a_layer in zip(*lists, strict=True)]

        return Activations(
            torch.cat([a.features for a in several]),
            layers([a.self_ for a in several]),
            layers([a.asking for a in several]),
        )
