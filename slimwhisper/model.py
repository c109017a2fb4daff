"""A checkpoint made ready: encoder, decoder, and a plan of caches that the guard has passed."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.alignment import default_heads
from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.plan import CachePlan, CrossCache, DecoderCache, SelfCache
from slimwhisper.checkpoint import Checkpoint
from slimwhisper.decoder import Decoder
from slimwhisper.encoder import Encoder
from slimwhisper.errors import CacheError
from slimwhisper.fold import Attention, Folded, fold
from slimwhisper.guard import INVERSE_FREE, Inspection, inspect_layer
from slimwhisper.mel import calibration_mel
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper.cache")

CALIBRATION_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Activations:
    """What one window's decoding feeds the attention blocks' keys and values; float32."""

    features: Tensor  # [p, d]: the encoder's output
    own: Sequence[Tensor]  # a layer: [T, d], the layer-normed input of its self-attention

    def of(self, attention: str, layer: int) -> Tensor:
        """[n, d]: the source of a layer's "cross" or "self" attention."""
        return self.features if attention == "cross" else self.own[layer]


def exact_plan(
    state: Mapping[str, Tensor], dims: Dims, cross: str = "e", own: str = "x"
) -> CachePlan:
    """Fold every layer for two forms that need no guard; weights not yet rounded."""

    def folded(layer: int, name: str, form: str) -> Folded:
        block = f"decoder.blocks.{layer}."
        norm = "encoder.ln_post." if name == "cross_attn" else f"{block}attn_ln."
        attention = Attention.from_state(state, f"{block}{name}.", dims.n_text_head)
        return fold(attention, form, norm=(state[f"{norm}weight"], state[f"{norm}bias"]))

    layers = range(dims.n_text_layer)
    return CachePlan(
        [folded(i, "cross_attn", cross) for i in layers], [folded(i, "attn", own) for i in layers]
    )


@torch.inference_mode()
def record_activations(checkpoint: Checkpoint, mel: Tensor | None = None) -> Activations:
    """Decode some tokens of one window greedily in float32 and keep every block's input.

    `mel` [n_mels, 3000] is real speech where there is some to hand: it is harder on `k` than noise.
    """
    dims, cpu = checkpoint.dims, torch.device("cpu")
    encoder = Encoder(checkpoint.state, dims, cpu, torch.float32)
    decoder = Decoder(checkpoint.state, dims, cpu, torch.float32)
    plan = exact_plan(checkpoint.state, dims).to(cpu, torch.float32)
    cache = DecoderCache.allocate(plan, 1, dims.n_audio_ctx, dims.n_text_ctx)
    features = encoder((calibration_mel(dims.n_mels) if mel is None else mel).unsqueeze(0))
    rows = Rows.block(1)
    cache.cross.put(rows.slots, features)

    tokens = [dims.end_of_text + 1]  # <|startoftranscript|>
    logits = decoder.logits(decoder.prefill(torch.tensor([tokens]), rows, cache)[:, -1])
    for position in range(1, min(CALIBRATION_TOKENS, dims.n_text_ctx)):
        tokens.append(int(logits[0, : dims.end_of_text].argmax()))
        step = Step.at(rows, torch.tensor([position]), position + 1, True, torch.float32)
        logits = decoder.step(torch.tensor(tokens[-1:]), step, cache)

    # each layer's X-cache holds what its self-attention was fed
    fed = [layer.tensors[0][0, : len(tokens)] for layer in cache.own.layers]
    return Activations(features[0], fed)


def inspect_form(
    checkpoint: Checkpoint,
    attention: str,
    form: str,
    dtype: torch.dtype,
    activations: Activations,
) -> tuple[list[Folded], list[Inspection]]:
    """Fold and measure every layer's "cross" or "self" attention for one form."""
    dims = checkpoint.dims
    pairs = [
        inspect_layer(
            checkpoint.state,
            layer,
            attention,
            form,
            dims.n_text_head,
            activations.of(attention, layer),
            dtype,
        )
        for layer in range(dims.n_text_layer)
    ]
    return [folded for folded, _ in pairs], [record for _, record in pairs]


def guarded_plan(
    checkpoint: Checkpoint, cross: str, own: str, dtype: torch.dtype, mel: Tensor | None = None
) -> tuple[CachePlan, list[Inspection]]:
    """Fold for the forms asked for; what the guard refuses falls back, layer by layer."""
    exact = exact_plan(
        checkpoint.state,
        checkpoint.dims,
        cross if cross in INVERSE_FREE else "e",
        own if own in INVERSE_FREE else "x",
    )
    weights = {"cross": exact.cross, "self": exact.own}
    records: list[Inspection] = []
    activations = None
    for attention, form in (("cross", cross), ("self", own)):
        if form not in INVERSE_FREE:
            activations = activations or record_activations(checkpoint, mel)
            weights[attention], seen = inspect_form(checkpoint, attention, form, dtype, activations)
            records += seen
    return CachePlan(weights["cross"], weights["self"]), records


def describe_fallbacks(records: Sequence[Inspection]) -> list[str]:
    """One line for each form that fell back somewhere."""
    lines = []
    for attention in ("cross", "self"):
        seen = [r for r in records if r.attention == attention]
        fallen = [r for r in seen if r.fell_back]
        if fallen:
            worst = max(fallen, key=lambda r: r.error)
            lines.append(
                f"{attention}-attention cache {worst.form!r} is not exact in {len(fallen)} of "
                f"{len(seen)} layers (error up to {worst.error:.1e}, baseline "
                f"{worst.baseline_error:.1e}); they use {worst.used!r}, no larger"
            )
    return lines


class Model:
    """Everything that does not change while windows are decoded."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        forms: tuple[str, str] = ("e", "x"),
        strict_cache: bool = False,
        guard_mel: Tensor | None = None,
        int8: bool = False,
    ) -> None:
        """forms: (cross, self) as `choose_forms` gives them. guard_mel: [n_mels, 3000] or None.
        int8: weights of the encoder, the MLPs and the logits; on a CPU, with float32.

        Raises `CacheError` when a form is not exact and `strict_cache` is set.
        """
        self.name, self.dims = checkpoint.name, checkpoint.dims
        self.device, self.dtype, self.forms, self.int8 = device, dtype, forms, int8
        self.alignment_heads = checkpoint.alignment_heads or default_heads(self.dims)
        plan, self.inspections = guarded_plan(checkpoint, *forms, dtype, guard_mel)
        self.fallbacks = describe_fallbacks(self.inspections)
        if self.fallbacks and strict_cache:
            first = self.fallbacks[0].partition(";")[0]
            raise CacheError(
                f"{self.name}: {first}; choose cache slim, always exact, or allow the fall-back"
            )
        for line in self.fallbacks:
            logger.warning("%s: %s", self.name, line)
        self.plan = plan.to(device, dtype).packed()
        self.encoder = Encoder(checkpoint.state, self.dims, device, dtype, int8)
        self.decoder = Decoder(checkpoint.state, self.dims, device, dtype, int8)

    @property
    def compute_type(self) -> str:
        """What it computes in, such as "float16"; "int8" stands for float32 with int8 products."""
        return "int8" if self.int8 else str(self.dtype).removeprefix("torch.")

    def allocate_cross(self, slots: int) -> CrossCache:
        """Room for the audio of `slots` windows."""
        return CrossCache(self.plan, slots, self.dims.n_audio_ctx)

    def allocate_self(self, rows: int, shared: bool = False) -> SelfCache:
        """Room for `rows` texts; `shared` as in `SelfCache`."""
        return SelfCache(self.plan, rows, self.dims.n_text_ctx, shared=shared)

    def bytes_per_window(self) -> int:
        """What one more slot of one row takes."""
        frames, length = self.dims.n_audio_ctx, self.dims.n_text_ctx
        cache = DecoderCache.allocate(self.plan, 1, frames, length, device=torch.device("meta"))
        return cache.cross.nbytes() + cache.own.nbytes()

    def baseline_bytes_per_window(self) -> int:
        """The same of keys and values for every layer and token: 2 (p + n) d L values."""
        dims = self.dims
        tokens = dims.n_audio_ctx + dims.n_text_ctx
        return 2 * tokens * dims.n_text_state * dims.n_text_layer * self.dtype.itemsize
