"""Forms `x`, `e`, `k`, `v`, `hybrid`, `x8` and `e8`: one latent per token, and folded queries.

The store has d values per token, for each layer (`x`, `k`, `v`) or once for all layers (`e`,
`hybrid`). See `slimwhisper.cache.forms` for the maps A_i and B_i.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slimwhisper.cache.base import (
    CrossLayer,
    CrossStore,
    DecodeStep,
    PagedLayer,
    Rows,
    SelfLayer,
    Shape,
    StoreShape,
)
from slimwhisper.cache.fold import Folded
from slimwhisper.kernels.attention import CacheWrite, Latent, Reads, head_attention, scale_columns
from slimwhisper.kernels.blocks import DecoderLayers, LatentBlock, MLPBlock, Pair
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import linear


class LatentAttention:
    """The projections of one block, and attention to a latent in two equivalent orders."""

    def __init__(self, weights: Folded, kernels: Kernels) -> None:
        self.weights, self.kernels = weights, kernels
        self.heads = weights.heads
        self.scale = (weights.width // weights.heads) ** -0.5
        bias = weights.query_bias
        # not `torch.eye`, which imports PyTorch's compiler for a device without memory
        self.identity = bias.new_zeros(self.heads, self.heads).fill_diagonal_(1)[:, :, None]
        maps = weights.key_integers or weights.key_map, weights.value_integers or weights.value_map
        matrices = weights.query, *maps, weights.out
        self.block = LatentBlock.of(kernels.library, *matrices, bias, weights.out_bias)

    def attend(self, x: Tensor, latent: Latent, reads: Reads) -> Tensor:
        """The block in the order of the latent: x [R, T, d] -> [R, T, d]; `reads` as in
        `Kernels.latent`.
        """
        whole = self.kernels.latent_block(self.block, x, latent, reads)
        if whole is not None:
            return whole
        q = self.queries(x)
        return self.output(self.by_latent(q.flatten(0, 1), latent, reads).view_as(q))

    def queries(self, x: Tensor) -> Tensor:
        """[R, T, d] -> [R, T, h, d_k]."""
        q = linear(x, self.weights.query, self.weights.query_bias)
        return q.unflatten(-1, (self.heads, -1))

    def fold_queries(self, q: Tensor) -> Tensor:
        """q_i A_i: [N, h, d_k] -> [N, h, d]."""
        if self.weights.key_map is None:  # head i reads its own columns of the latent
            return (self.identity * q.unsqueeze(2)).flatten(2)
        return self.kernels.multiply_heads(q, self.weights.key_map)

    def by_latent(self, q: Tensor, latent: Latent, reads: Reads) -> Tensor:
        """q [N, h, d_k] -> [N, h, d_k]; `reads` as in `Kernels.latent`."""
        folded, maps = self.fold_queries(q), self.weights.value_map
        mixed = self.kernels.latent(folded, latent, self.scale, reads, maps)
        if maps is not None:
            return mixed
        # head i's values are its own columns of the latent
        return mixed.unflatten(-1, (self.heads, -1)).diagonal(dim1=1, dim2=2).transpose(1, 2)

    def by_heads(
        self, q: Tensor, latent: Tensor, bias: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """The same through temporary K and V: q [B, Q, h, d_k], latent [B, T, d] -> like q.

        bias: [B, T], added to the scores of each position; not together with `causal`.
        """
        weights = self.weights
        keys, values = (self.mapped(latent, m) for m in (weights.key_map, weights.value_map))
        mask = None if bias is None else bias[:, None, None].to(q.dtype)
        mixed = head_attention(q.transpose(1, 2), keys, values, mask, is_causal=causal)
        return mixed.transpose(1, 2)

    def mapped(self, latent: Tensor, maps: Tensor | None) -> Tensor:
        """K of a latent, by the key maps, or V, by the value maps: [B, T, d] -> [B, h, T, d_k]."""
        mapped = latent if maps is None else linear(latent, maps.flatten(0, 1))
        return mapped.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def output(self, heads: Tensor) -> Tensor:
        """[R, T, h, d_k] -> [R, T, d], the value bias included."""
        return linear(heads.flatten(2), self.weights.out, self.weights.out_bias)


def latent_of(weights: Folded, x: Tensor) -> Tensor:
    """The latent of x, x P or (x - B) / S, before it is rounded: [..., d] -> [..., d]."""
    if weights.column_scales is not None:
        return scale_columns(x, weights.column_scales, weights.offset)
    return x if weights.project is None else linear(x, weights.project)


class LatentStore(CrossStore):
    """The latent of the audio, [slots, p, d], of one layer or shared by several."""

    # [slots, positions] at least float32, added to the scores of each position
    position_bias: Tensor | None = None

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.weights = weights
        size, float8 = (shape.count, shape.length, weights.width), weights.column_scales is not None
        dtype = weights.stored or shape.dtype
        self.latent = Latent.allocate(size, shape.device, dtype, float8)
        super().__init__(*self.latent.tensors())

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, q, d] -> latents [G, q, d], the first q positions of `slots` [G] int64."""
        self.latent.write((slots, slice(features.shape[1])), latent_of(self.weights, features))


class LatentCross(CrossLayer):
    """Cross-attention of one layer to a store's latent."""

    store: LatentStore

    def __init__(
        self, weights: Folded, shape: StoreShape, store: LatentStore | None = None
    ) -> None:
        self.attention = LatentAttention(weights, shape.kernels)
        self.store = store or LatentStore(weights, shape)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], in the cheaper of the two orders."""
        attention, (_, t, d) = self.attention, x.shape
        tokens = rows.group * t
        latent, slots = rows.of_slots(self.store.latent)
        bias = self.store.position_bias
        prompt_on_gpu = t > 1 and x.device.type == "cuda"
        if prefers_latent(tokens, attention.heads, d, GPU_COST if prompt_on_gpu else 1):
            reads = rows.audio_reads(slots, latent.values.shape[1], x.dtype)
            bias = None if bias is None else rows.of_slots(bias)[0]
            return attention.attend(x, latent, replace(reads, position_bias=bias))
        bias = None if bias is None else bias[rows.slots]
        plain = rows.copied(self.store.latent, x.dtype)
        if (hidden := rows.audio_bias(plain.shape[1], x.dtype)) is not None:
            bias = hidden if bias is None else bias + hidden
        q = attention.queries(x)  # [R, T, h, d_k]
        queries = q.reshape(len(plain), tokens, *q.shape[2:])
        return attention.output(attention.by_heads(queries, plain, bias).reshape(q.shape))

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax."""
        attention, latent = self.attention, self.store.latent[rows.slots].dequantized(x.dtype)
        queries = attention.queries(x).transpose(1, 2)[:, heads] * attention.scale
        keys = attention.mapped(latent, attention.weights.key_map)[:, heads]
        return queries @ keys.transpose(2, 3)


# Of an operation with the latent, in those with K and V: on an H100, 60 tokens of large-v3 took the
# latent 33 ms, where products of cuBLAS do 8 times as many operations.
GPU_COST = 8


def prefers_latent(tokens: int, heads: int, d: int, cost: int = 1) -> bool:
    """Whether l = `tokens` queries per slot are cheaper on the latent than on temporary K and V.

    Operations per position of the slot: 4 l h d against 4 d^2 + 4 l d. `k` and `v` need as many,
    because their queries are padded to d. cost: of an operation with the latent.
    """
    return tokens * heads * cost < d + tokens


class LatentSelf(PagedLayer):
    """Self-attention of one layer over a stored latent, [pages, page, d]."""

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        self.attention = LatentAttention(weights, shape.kernels)
        self.latent = Latent(*self.allocate_pages(weights, shape))
        super().__init__(*self.latent.tensors())
        self.stores_norm = weights.project is None  # or that in float8

    @staticmethod
    def shapes(weights: Folded, page: int, dtype: torch.dtype) -> list[Shape]:
        """[page, d]; in float8, also factors [page]."""
        return Latent.shapes((page, weights.width), dtype, weights.column_scales is not None)

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]; stores latents [R, T, d]."""
        latent = latent_of(self.attention.weights, x)
        self.latent.write(self.begin(rows, x.shape[1]), latent)
        return self.attend_prompt(x, latent)

    def attend_prompt(self, x: Tensor, latent: Tensor | None = None) -> Tensor:
        """x [R, T, d] -> [R, T, d]. latent [R, T, d]: of x, if it is there already."""
        if latent is None:
            latent = latent_of(self.attention.weights, x)
        # always by heads: K and V cost 4 l d^2, little next to cross-attention's 4 p d^2
        mixed = self.attention.by_heads(self.attention.queries(x), latent, causal=True)
        return self.attention.output(mixed)

    def cache_write(self, step: DecodeStep) -> CacheWrite | None:
        """Of forms that store the normed token itself, or in float8."""
        return self._write_at(*self.step_locations(step)) if self.stores_norm else None

    def prompt_write(self, rows: Rows, tokens: int) -> CacheWrite | None:
        """Of the same forms."""
        if not self.stores_norm:
            return None
        pages, indices = self.begin(rows, tokens)
        return self._write_at(pages.flatten(), indices.flatten())

    def _write_at(self, pages: Tensor, indices: Tensor) -> CacheWrite:
        weights = self.attention.weights
        return CacheWrite(self.latent, pages, indices, weights.column_scales, weights.offset)

    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; stores the tokens' latents [R, d], reads step.extent a row."""
        if not self.stores_norm:
            self.latent.write(self.step_locations(step), latent_of(self.attention.weights, x[:, 0]))
        return self.attention.attend(x, self.latent, self.reads(step))


class LatentSteps:
    """Steps of a decoder whose caches are all latents: all layers in one call of C."""

    def __init__(self, layers: DecoderLayers, self_: LatentSelf, cross: LatentCross) -> None:
        """self_, cross: of one layer."""
        self.layers, self.self_, self.cross = layers, self_, cross

    @staticmethod
    def of(
        caches: tuple[Sequence[SelfLayer], Sequence[CrossLayer]],
        norms: Sequence[Sequence[Pair]],
        mlps: Sequence[MLPBlock | None],
        last: Pair,
    ) -> "LatentSteps | None":
        """caches: the layers of both; norms, mlps: of each layer, as in `DecoderLayer`; last: the
        norm behind all. None: C cannot read a weight or a cache.
        """
        texts = [t for t in caches[0] if isinstance(t, LatentSelf) and t.stores_norm]
        sounds = [s for s in caches[1] if isinstance(s, LatentCross)]
        steps = {type(t).step for t in texts} | {type(s).attend for s in sounds}
        if steps != {LatentSelf.step, LatentCross.attend}:  # a form's own, which C does not call
            return None
        if min(len(texts), len(sounds)) < len(norms) or len({s.store for s in sounds}) > 1:
            return None
        if len({(t.latent.values.shape, t.latent.values.dtype) for t in texts}) > 1:
            return None
        layers = [
            (pairs, t.attention.block, s.attention.block, mlp, t.latent)
            for pairs, t, s, mlp in zip(norms, texts, sounds, mlps, strict=True)
            if t.attention.block and s.attention.block and mlp
        ]
        store = sounds[0].store
        if len(layers) < len(norms) or store.position_bias is not None:
            return None
        return LatentSteps(DecoderLayers(layers, last, store.latent), texts[0], sounds[0])

    def __call__(self, x: Tensor, step: DecodeStep, rows: Rows) -> Tensor | None:
        """The embeddings x [R, d] -> [R, d], after the last norm; None: layer by layer."""
        attention, latent = self.cross.attention, self.cross.store.latent
        if not prefers_latent(rows.group, attention.heads, x.shape[1]):
            return None
        audio = rows.audio_reads(rows.slots, latent.values.shape[1], x.dtype)
        text = self.self_.reads(step)
        hidden = self.layers(x, self.self_.step_locations(step), text, audio)
        if hidden is not None:
            attention.kernels.used["latent", "c"] += 1
        return hidden
