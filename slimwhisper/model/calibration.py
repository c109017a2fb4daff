"""What the guard measures on, and the plan of caches that it accepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from slimwhisper.audio.mel import calibration_mel
from slimwhisper.cache.activations import Activations
from slimwhisper.cache.base import CrossLayer, Rows, Step
from slimwhisper.cache.fold import Context, Folded, fold
from slimwhisper.cache.forms import EXACT, form_of
from slimwhisper.cache.guard import Inspection, Site, inspect_layer
from slimwhisper.cache.plan import CachePlan, DecoderCache
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.types import Dims

CALIBRATION_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Guard:
    """How the forms that need an inverse are checked."""

    strict: bool = False  # raise if one is not exact, instead of falling back
    mel: Tensor | None = None  # [n_mels, 3000] of real speech to measure on; None: noise


Learned = Mapping[str, Mapping[str, Tensor]]  # by site, as `site_name`; then by name


def site_name(attention: str, layer: int) -> str:
    """Such as "cross.0"."""
    return f"{attention}.{layer}"


def exact_plan(
    state: Mapping[str, Tensor],
    dims: Dims,
    cross: str = "e",
    self_: str = "x",
    activations: Activations | None = None,
    learned: Learned | None = None,
) -> CachePlan:
    """Fold every layer for two forms that need no guard; weights not yet rounded.

    state: OpenAI's names; matrices [out, in]. Forms that learn need `activations`, or what they
    have `learned` from others before.
    """

    def folded(attention: Literal["cross", "self"], form: str) -> list[Folded]:
        sites = [Site(i, attention, dims.n_text_head) for i in range(dims.n_text_layer)]
        shared = "encoder.ln_post." if attention == "cross" else None  # the norm before E
        blocks = [site.read(state) for site in sites]
        layers: list[Folded] = []
        made: dict[str, Any] = {}
        for site, block in zip(sites, blocks, strict=True):
            # layers that share a store share what was learned, which the first one holds
            sharing = attention == "cross" and form_of(form).shared
            first = layers[0].learned if layers and sharing else None
            context = Context(
                norm=norm(shared or f"{site.prefix[:-1]}_ln."),
                layer=site.layer,
                attention=attention,
                blocks=blocks,
                activations=activations,
                learned=first or (learned or {}).get(site_name(attention, site.layer)),
                shared=made,
            )
            found = fold(block, form, context)
            layers.append(replace(found, learned={}) if first else found)
        return layers

    def norm(prefix: str) -> tuple[Tensor, Tensor]:
        return state[f"{prefix}weight"], state[f"{prefix}bias"]

    return CachePlan(folded("cross", cross), folded("self", self_))


class _Listening(CrossLayer):
    """A layer that keeps what it is asked with, x [1, T, d]."""

    def __init__(self, layer: CrossLayer) -> None:
        self.layer, self.store = layer, layer.store
        self.heard: list[Tensor] = []

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        self.heard.append(x[0])
        return self.layer.attend(x, rows)

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        return self.layer.scores(x, rows, heads)


@torch.inference_mode()
def record_activations(checkpoint: Checkpoint, mel: Tensor | None = None) -> Activations:
    """Decode some tokens of one window greedily in float32 and keep every block's input.

    `mel` [n_mels, 3000]: real speech if available, which is harder on `k` than noise; None: noise.
    """
    dims, cpu = checkpoint.dims, torch.device("cpu")
    encoder = Encoder(checkpoint.state, dims, cpu, torch.float32)
    decoder = Decoder(checkpoint.state, dims, cpu, torch.float32)
    plan = exact_plan(checkpoint.state, dims).to(cpu, torch.float32)
    cache = DecoderCache.allocate(plan, 1, dims.n_audio_ctx, dims.n_text_ctx)
    features = encoder((calibration_mel(dims.n_mels) if mel is None else mel).unsqueeze(0))
    rows = Rows.block(1)
    cache.cross.put(rows.slots, features)
    listening = [_Listening(layer) for layer in cache.cross.layers]
    cache.cross.layers[:] = listening

    tokens = [dims.end_of_text + 1]  # <|startoftranscript|>
    logits = decoder.logits(decoder.prefill(torch.tensor([tokens]), rows, cache)[:, -1])
    for position in range(1, min(CALIBRATION_TOKENS, dims.n_text_ctx)):
        tokens.append(int(logits[0, : dims.end_of_text].argmax()))
        step = Step.at(rows, torch.tensor([position]), position + 1, True, torch.float32)
        logits = decoder.step(torch.tensor(tokens[-1:]), step, cache)

    # each layer's X-cache holds the input of its self-attention
    fed = [layer.tensors[0][0, : len(tokens)] for layer in cache.self_.layers]
    return Activations(features[0], fed, [torch.cat(layer.heard) for layer in listening])


def inspect_form(
    checkpoint: Checkpoint,
    attention: Literal["cross", "self"],
    form: str,
    dtype: torch.dtype,
    activations: Activations,
) -> tuple[list[Folded], list[Inspection]]:
    """Fold and measure every layer's "cross" or "self" attention for one form."""
    dims = checkpoint.dims
    pairs = [
        inspect_layer(
            checkpoint.state,
            Site(layer, attention, dims.n_text_head),
            form,
            activations.of(attention, layer),
            dtype,
        )
        for layer in range(dims.n_text_layer)
    ]
    return [folded for folded, _ in pairs], [record for _, record in pairs]


def guarded_plan(
    checkpoint: Checkpoint,
    cross: str,
    self_: str,
    dtype: torch.dtype,
    mel: Tensor | None = None,
    learned: Learned | None = None,
) -> tuple[CachePlan, list[Inspection]]:
    """Fold for the requested forms; layers that the guard rejects fall back to an exact form.

    `mel` [n_mels, 3000] as in `record_activations`; `learned` as in `exact_plan`.
    """
    asked: tuple[tuple[Literal["cross", "self"], str], ...] = (("cross", cross), ("self", self_))
    forms = [form_of(form) for _, form in asked]
    learns = learned is None and any(form.learns for form in forms)
    guarded = any(form.inverse is not None for form in forms)
    activations = record_activations(checkpoint, mel) if learns or guarded else None
    exact = exact_plan(
        checkpoint.state,
        checkpoint.dims,
        cross if form_of(cross).inverse is None else EXACT["cross"],
        self_ if form_of(self_).inverse is None else EXACT["self"],
        activations,
        learned,
    )
    weights = {"cross": exact.cross, "self": exact.self_}
    records: list[Inspection] = []
    for attention, form in asked:
        if form_of(form).inverse is not None:
            assert activations is not None
            weights[attention], seen = inspect_form(checkpoint, attention, form, dtype, activations)
            records += seen
    return CachePlan(weights["cross"], weights["self"]), records


def describe_fallbacks(records: Sequence[Inspection]) -> list[str]:
    """One line for each form that fell back in some layers."""
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
