"""The inputs of a decoder's attention blocks, recorded for the guard and for forms that learn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Activations:
    """Of one window, or of several in a row; float32."""

    features: Tensor  # [p, d]: the encoder's output
    self_inputs: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of self-attention
    cross_inputs: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of cross-attention

    def source(self, attention: str, layer: int) -> Tensor:
        """[n, d]: from which a layer's "cross" or "self" attention makes keys and values."""
        return self.features if attention == "cross" else self.self_inputs[layer]

    def query_inputs(self, attention: str, layer: int) -> Tensor:
        """[T, d]: from which a layer's "cross" or "self" attention makes queries."""
        return (self.cross_inputs if attention == "cross" else self.self_inputs)[layer]

    @staticmethod
    def joined(windows: Sequence["Activations"]) -> "Activations":
        """Those of several windows as one."""
        parts = [(a.features, *a.self_inputs, *a.cross_inputs) for a in windows]
        features, *inputs = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        return Activations(features, inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :])
