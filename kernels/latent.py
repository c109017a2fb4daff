"""Latent attention: every head's query against one shared latent that is both keys and values.

    softmax(Q~ Z^T * scale) Z          Q~ [Q, d], Z [T, d]

Z is the encoder output (cache form `e`), the layer-normed input (`x`), or K, V or the first layer's
K (`k`, `v`, `hybrid`); Q~ holds the folded queries q_i W_K,i^T of all heads. One pass over Z serves
the scores and the weighted sum.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Latent:
    """A stored latent: in the model's dtype, or as float8 with a factor for each position."""

    values: Tensor  # [S, T, d], or [S, G, T, d] for G groups
    factors: Tensor | None = None  # [S, T] float32: position t is factors[s, t] * values[s, t]

    @staticmethod
    def allocate(
        shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, fp8: bool = False
    ) -> "Latent":
        """Zeros of shape [S, T, d]. fp8: in float8."""
        values = torch.zeros(shape, device=device, dtype=FP8 if fp8 else dtype)
        factors = torch.zeros(shape[:-1], device=device, dtype=torch.float32) if fp8 else None
        return Latent(values, factors)

    def tensors(self) -> tuple[Tensor, ...]:
        """values [S, T, d] and, in float8, factors [S, T]."""
        return (self.values,) if self.factors is None else (self.values, self.factors)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> "Latent":
        """Some slots, or some positions of some slots."""
        return Latent(self.values[index], None if self.factors is None else self.factors[index])

    def write(self, index: Any, x: Tensor) -> None:
        """Store x [..., d] at the positions `index`."""
        if self.factors is None:
            self.values[index] = x
            return
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        factors = wide.abs().amax(dim=-1).clamp_(min=1e-30) / torch.finfo(FP8).max
        self.values.view(torch.uint8)[index] = (wide / factors[..., None]).to(FP8).view(torch.uint8)
        self.factors[index] = factors.float()

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The values [S, T, d] in `dtype`, which is the model's."""
        if self.factors is None:
            return self.values
        return (self.values.to(torch.float32) * self.factors[..., None]).to(dtype)
