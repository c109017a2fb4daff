"""Latent attention: every head's query against one shared latent that is both keys and values.

    softmax(Q~ Z^T * scale) Z          Q~ [Q, d], Z [T, d]

Z is the encoder output (cache form `e`), the layer-normed input (`x`), or K, V or the first layer's
K (`k`, `v`, `hybrid`); Q~ holds the folded queries q_i W_K,i^T of all heads. One pass over Z serves
the scores and the weighted sum.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
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


def latent_attention(
    queries: Tensor, latent: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Attend with Q query rows of full width to a shared latent.

    Arguments:
        queries: [B, Q, d], the folded queries of all heads (and of all rows that share a slot).
        latent: [B, T, d], same dtype; any strides with a contiguous last dimension.
        scale: factor on the scores, 1 / sqrt(head width).
        bias: [B, 1, T] or [B, Q, T] in the same dtype, added to the scores; -inf hides a position.
            The latent must be finite in hidden positions too.
    Returns:
        [B, Q, d], the probability-weighted sums of the latent.

    The Q queries go through `scaled_dot_product_attention` as the queries of ONE head, so that the
    latent is read once; per-head products would read it h times.
    """
    shared = latent.unsqueeze(1)
    mask = None if bias is None else bias.unsqueeze(1)
    return F.scaled_dot_product_attention(
        queries.unsqueeze(1), shared, shared, attn_mask=mask, scale=scale
    ).squeeze(1)


def latent_attention_reference(
    queries: Tensor, latent: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """The same from the definition, in at least float32: [B, Q, d], [B, T, d] -> [B, Q, d]."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    scores = queries.to(wide) @ latent.to(wide).transpose(1, 2) * scale
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(dim=-1) @ latent.to(wide)).to(queries.dtype)
