"""Tokens and caches -> logits. Independent of the cache forms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.latent import LatentSteps
from slimwhisper.checkpoint.files import OUTPUT
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import at_least_float32, in_half
from slimwhisper.model.layers import MLP, LayerNorm, Residual, Source
from slimwhisper.types import Dims

ROWS = 64  # Whisper's 51,866 tokens would misalign the rows of the logits on a GPU


def padding(tokens: int, device: torch.device) -> int:
    """How many rows of zeros to add to the embedding [tokens, d]."""
    return -tokens % ROWS if device.type == "cuda" else 0


@dataclass(frozen=True, slots=True)
class _DecoderBlock:
    self_norm: LayerNorm
    cross_norm: LayerNorm
    mlp: MLP


@dataclass(frozen=True, slots=True)
class ScoreRecorder:
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
        kernels: Kernels | None = None,
    ) -> None:
        """state: OpenAI's names; matrices [out, in]. int8: the weights of the MLPs and of the
        logits; kernels: the model's; both as in `Encoder`.
        """
        self.kernels = kernels or Kernels(device, dtype)
        source = Source(state, "decoder.", device, dtype, small_batches=True, int8=int8)
        self.dims, self.device, self.dtype = dims, device, dtype
        self.size = dims.n_vocab
        self.embedding = in_half(self._padded(source.tensor("token_embedding.weight")))  # [V, d]
        tied = OUTPUT not in state  # the embedding serves the logits too
        output = self.embedding if tied else self._padded(state[OUTPUT].to(device, dtype))
        self.head = source.prepared(output)
        self.positions = source.tensor("positional_embedding", at_least_float32(dtype))
        self.blocks = []
        for i in range(dims.n_text_layer):
            block = source / "blocks" / str(i)
            self_norm = LayerNorm.read(block / "attn_ln")
            cross_norm = LayerNorm.read(block / "cross_attn_ln")
            self.blocks.append(_DecoderBlock(self_norm, cross_norm, MLP.read(block)))
        self.norm = LayerNorm.read(source / "ln")

    def _padded(self, matrix: Tensor) -> Tensor:
        """matrix [V, d] -> [V + padding, d], with rows of zeros."""
        missing = padding(self.size, self.device)
        return F.pad(matrix, (0, 0, 0, missing)) if missing else matrix

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions: int64 of one shape [...] -> [..., d]."""
        sums = F.embedding(tokens, self.embedding) + F.embedding(positions, self.positions)
        return sums.to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., d] after the last norm -> [..., V] in at least float32."""
        return self.head.unrounded(hidden).to(at_least_float32(self.dtype))[..., : self.size]

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Tensor,
        rows: Rows,
        cache: DecoderCache,
        recorder: ScoreRecorder | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Start new texts in `rows`: tokens [R, T], padded on the right -> hidden [R, n, d],
        after the last norm, at positions [R, n] int64; None: at all T.

        Pass what you need of it to `logits`. `recorder` records cross-attention scores, and takes
        no positions. Where `rows` has no lengths, no text is padded.
        """
        assert recorder is None or positions is None
        count = tokens.shape[1]
        rows = cache.cross.with_lengths(rows).with_prompts(count)
        every = torch.arange(count, device=tokens.device).expand_as(tokens)
        x = Residual(self.embed(tokens, every), self.kernels)
        for layer, block in enumerate(self.blocks):
            self_ = cache.self_.layers[layer]
            write = self_.prompt_write(rows, count)
            normed = x.normed(block.self_norm, write)
            x.add(self_.prefill(normed, rows) if write is None else self_.attend_prompt(normed))
            if positions is not None and layer == len(self.blocks) - 1:
                x.keep(positions)  # the caches have all of the others
            normed = x.normed(block.cross_norm)
            if recorder is not None and layer in recorder.heads:
                heads = torch.tensor(recorder.heads[layer], device=tokens.device)
                recorder.scores.append(cache.cross.layers[layer].scores(normed, rows, heads))
            x.add(cache.cross.layers[layer].attend(normed, rows))
            x.add(block.mlp(x.normed(block.mlp.norm)))
        return x.normed(self.norm)

    def _steps_in_c(self, cache: DecoderCache) -> LatentSteps | None:
        norms = [(block.self_norm, block.cross_norm, block.mlp.norm) for block in self.blocks]
        mlps = [block.mlp.block for block in self.blocks]
        return LatentSteps.of((cache.self_.layers, cache.cross.layers), norms, mlps, self.norm)

    @torch.inference_mode()
    def step(self, tokens: Tensor, step: DecodeStep, cache: DecoderCache) -> Tensor:
        """One token per row: tokens [R] int64 at step.positions -> logits [R, V]."""
        rows, embedded = cache.cross.with_lengths(step.rows), self.embed(tokens, step.positions)
        if cache.of is not self:
            cache.of, cache.in_c = self, self._steps_in_c(cache)
        if cache.in_c is not None and (hidden := cache.in_c(embedded, step, rows)) is not None:
            return self.logits(hidden)
        x = Residual(embedded, self.kernels)  # [R, d]
        for layer, block in enumerate(self.blocks):
            self_, cross = cache.self_.layers[layer], cache.cross.layers[layer]
            normed = x.normed(block.self_norm, self_.cache_write(step))
            x.add(self_.step(normed.unsqueeze(1), step).squeeze(1))
            normed = x.normed(block.cross_norm)
            x.add(cross.step(normed.unsqueeze(1), rows).squeeze(1))
            x.add(block.mlp(x.normed(block.mlp.norm)))
        return self.logits(x.normed(self.norm))
