"""Tokens and caches -> logits. Independent of the cache forms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.kernels.linear import at_least_float32, linear, pack, quantize
from slimwhisper.model.layers import MLP, LayerNorm, Source
from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class _Block:
    self_norm: LayerNorm
    cross_norm: LayerNorm
    mlp: MLP


@dataclass(frozen=True, slots=True)
class Watch:
    """Which heads' cross-attention scores to record, and the recorded scores."""

    heads: Mapping[int, Sequence[int]]  # layer: heads
    scores: list[Tensor] = field(default_factory=list)  # per layer, in order: [R, heads, T, p]


class Decoder:
    """Embeddings, norms and MLPs; the attention blocks belong to the cache that is passed in."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        dims: Dims,
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
    ) -> None:
        """state: OpenAI's names; matrices [out, in]. int8: the weights of the MLPs and of the
        logits, as in `Encoder`.
        """
        source = Source(state, "decoder.", device, dtype, int8)
        self.dims, self.device, self.dtype = dims, device, dtype
        self.embedding = source.tensor("token_embedding.weight")  # [V, d], input and output
        self.head = quantize(self.embedding) if int8 else pack(self.embedding)
        self.positions = source.tensor("positional_embedding", at_least_float32(dtype))
        self.blocks = []
        for i in range(dims.n_text_layer):
            block = source / "blocks" / str(i)
            self.blocks.append(
                _Block(
                    LayerNorm.read(block / "attn_ln"),
                    LayerNorm.read(block / "cross_attn_ln"),
                    MLP.read(block),
                )
            )
        self.norm = LayerNorm.read(source / "ln")

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions: int64 of one shape [...] -> [..., d]."""
        placed = F.embedding(tokens, self.embedding) + F.embedding(positions, self.positions)
        return placed.to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., d] after the last block -> [..., V] in at least float32."""
        logits = linear(self.norm(hidden), self.head)
        return logits.to(at_least_float32(self.dtype))

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, rows: Rows, cache: DecoderCache, watch: Watch | None = None
    ) -> Tensor:
        """Start new texts in `rows`: tokens [R, T], padded on the right -> hidden [R, T, d].

        Pass the positions that you need to `logits`. `watch` records cross-attention scores.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.embed(tokens, positions)
        cache.self_.begin(rows.ids)
        for layer, block in enumerate(self.blocks):
            x = x + cache.self_.layers[layer].prefill(block.self_norm(x), rows)
            normed = block.cross_norm(x)
            if watch is not None and layer in watch.heads:
                heads = torch.tensor(watch.heads[layer], device=x.device)
                watch.scores.append(cache.cross.layers[layer].scores(normed, rows, heads))
            x = x + cache.cross.layers[layer].attend(normed, rows)
            x = x + block.mlp(x)
        return x

    @torch.inference_mode()
    def step(self, tokens: Tensor, step: Step, cache: DecoderCache) -> Tensor:
        """One token per row: tokens [R] int64 at step.positions -> logits [R, V]."""
        x = self.embed(tokens, step.positions).unsqueeze(1)
        step = cache.self_.append(step)
        for layer, block in enumerate(self.blocks):
            x = x + cache.self_.layers[layer].step(block.self_norm(x), step)
            x = x + cache.cross.layers[layer].attend(block.cross_norm(x), step.rows)
            x = x + block.mlp(x)
        return self.logits(x[:, 0])
