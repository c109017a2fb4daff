"""The activations that the guard measures on, and the cache plan that it accepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.audio.mel import calibration_mel
from slimwhisper.cache.activations import Activations
from slimwhisper.cache.base import CrossLayer
from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache
from slimwhisper.cache.fold import Learned, blocks_of, fold
from slimwhisper.cache.forms import EXACT, Form, parse_form
from slimwhisper.cache.guard import Inspection, inspect_block
from slimwhisper.cache.rows import DecodeStep, Rows
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.errors import CacheError
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.text import error_line
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Dims

CALIBRATION_TOKENS = 48  # at most, of a window without a text


@dataclass(frozen=True, slots=True)
class Guard:
    """How to check the forms that need an inverse."""

    strict: bool = False  # raise if a form is not exact, instead of falling back
    mel: Tensor | None = None  # [n_mels, 3000] of real speech to measure on; None: noise


_REMEDY = "run slimwhisper calibrate again"
# what folding raises for tensors that do not fit the form
_FOLDING_ERRORS = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)


def fold_plan(
    state: Mapping[str, Tensor],
    dims: Dims,
    cross: str | Form = "e",
    self_: str | Form = "x",
    activations: Activations | None = None,
    learned: Learned | None = None,
    dtype: torch.dtype | None = None,
) -> CachePlan:
    """Fold every layer for two forms; weights not yet rounded.

    state: OpenAI's names; matrices [out, in]. `activations`: for forms that learn, unless they have
    `learned` before, and for the guard, which measures in `dtype`, and has an exact form take the
    place of another, layer by layer. dtype None: in place of forms that need the guard.
    """
    plan = CachePlan([], [])
    forms = ("cross", parse_form(cross), plan.cross), ("self", parse_form(self_), plan.self_)
    for attention, form, layers in forms:
        for block, context in blocks_of(state, dims, attention, activations, learned):
            if form.inverse is None or dtype is None:
                accepted = fold(block, EXACT[attention] if form.inverse else form, context)
            else:
                accepted, inspection = inspect_block(block, context, form, dtype)
                plan.inspections.append(inspection)
            layers.append(accepted)
    return plan


class RecordingLayer(CrossLayer):
    """A layer that records its inputs, x [1, T, d]."""

    def __init__(self, layer: CrossLayer) -> None:
        self.layer, self.store = layer, layer.store
        self.inputs: list[Tensor] = []

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        self.inputs.append(x[0])
        return self.layer.attend(x, rows)

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        return self.layer.scores(x, rows, heads)


@torch.inference_mode()
def record_activations(
    checkpoint: Checkpoint,
    mel: Tensor | None = None,
    texts: Sequence[Sequence[int]] | None = None,
) -> Activations:
    """The inputs of all attention blocks, in float32, while the model decodes windows.

    `mel` [n_mels, 3000], or [G, n_mels, 3000] for several windows: real speech if available, which
    is harder on `k` than noise; None: noise. `texts`: the tokens of each window's text, from
    <|startoftranscript|> on. Without them, each window is decoded greedily in its language.
    """
    dims, cpu = checkpoint.dims, torch.device("cpu")
    encoder = Encoder(checkpoint.state, dims, cpu, torch.float32)
    decoder = Decoder(checkpoint.state, dims, cpu, torch.float32)
    plan = fold_plan(checkpoint.state, dims).to(cpu, torch.float32)
    mels = calibration_mel(dims.n_mels, dims.window_frames) if mel is None else mel
    windows = []
    for i, window_mel in enumerate(mels.reshape(-1, *mels.shape[-2:]).split(1)):
        cache = DecoderCache.allocate(plan, 1, dims.n_audio_ctx, dims.n_text_ctx)
        rows, features = Rows.block(1), encoder(window_mel)
        cache.cross.put(rows.slots, features)
        if texts is None:
            text = _greedy(decoder, cache, checkpoint.tokens, stops=mel is not None)
        else:
            text = list(texts[i][: dims.n_text_ctx])
        layers = [RecordingLayer(layer) for layer in cache.cross.layers]
        cache.cross.layers[:] = layers
        decoder.prefill(torch.tensor([text]), rows, cache)
        # each layer's X-cache holds the input of its self-attention
        self_inputs = [layer.tensors[0].flatten(0, 1)[: len(text)] for layer in cache.self_.layers]
        cross_inputs = [layer.inputs[0] for layer in layers]
        windows.append(Activations(features[0], self_inputs, cross_inputs))
    return Activations.joined(windows)


def _greedy(
    decoder: Decoder, cache: DecoderCache, vocabulary: Vocabulary, stops: bool
) -> list[int]:
    """The greedy text of a window without timestamps, from <|startoftranscript|> on. stops: end it
    at <|endoftext|>, which is suppressed otherwise, as for noise it would be the first token.
    """
    rows, language = Rows.block(1), None

    def next_logits(prompt: list[int]) -> Tensor:
        """[1, V]: the logits of the token after a prompt."""
        return decoder.logits(decoder.prefill(torch.tensor([prompt]), rows, cache)[:, -1])

    if vocabulary.languages:
        codes = list(vocabulary.languages)
        logits = next_logits([vocabulary.sot])
        language = vocabulary.languages[codes[int(logits[0, codes].argmax())]]
    tokens = list(vocabulary.tokenizer(language).sot_sequence)
    if vocabulary.no_timestamps is not None:
        tokens.append(vocabulary.no_timestamps)
    logits = next_logits(tokens)
    allowed = torch.tensor([i for ids in vocabulary.texts for i in ids] + [vocabulary.eot] * stops)
    for position in range(len(tokens), min(CALIBRATION_TOKENS, decoder.dims.n_text_ctx)):
        best = int(allowed[logits[0, allowed].argmax()])
        if best == vocabulary.eot:
            break
        tokens.append(best)
        step = DecodeStep.at(rows, torch.tensor([position]), position + 1, True, torch.float32)
        logits = decoder.step(torch.tensor([best]), step, cache)
    return tokens


def guarded_plan(
    checkpoint: Checkpoint,
    cross: str | Form,
    self_: str | Form,
    dtype: torch.dtype,
    mel: Tensor | None = None,
    learned: Learned | None = None,
) -> CachePlan:
    """Fold for the requested forms; layers that the guard rejects fall back to an exact form.

    `mel` [n_mels, 3000] as in `record_activations`; `learned` as in `fold_plan`, from a file.
    Raises `CacheError` if `learned` does not fit the forms: a tensor is missing, unused, or has the
    wrong shape.
    """
    cross, self_ = parse_form(cross), parse_form(self_)
    measured = any(f.inverse or (f.learns and learned is None) for f in (cross, self_))
    activations = record_activations(checkpoint, mel) if measured else None
    state, dims = checkpoint.state, checkpoint.dims
    try:
        plan = fold_plan(state, dims, cross, self_, activations, learned, dtype)
    except _FOLDING_ERRORS as error:
        if learned is None:
            raise
        reason = error_line(error, kind=True)
        raise CacheError(
            f"the file's tensors do not fit caches '{cross}' and '{self_}' ({reason}); {_REMEDY}"
        ) from error
    if learned is not None:
        _check_shapes(learned, learned_by(plan))
    return plan


def _check_shapes(given: Learned, used: Learned) -> None:
    """Raise CacheError for a tensor that no form uses, or that has another shape."""
    for full in sorted(given.keys() | used.keys()):
        shape, expected = (tuple(t[full].shape) if full in t else None for t in (given, used))
        if shape != expected:
            site, _, name = full.rpartition(".")
            raise CacheError(
                f"tensor {name!r} of {site} has shape {shape}, not {expected}; {_REMEDY}"
            )


def learned_by(plan: CachePlan) -> Learned:
    """What the forms of a plan have learned, float64."""
    return {
        f"{attention}.{layer}.{name}": tensor
        for attention, layers in (("cross", plan.cross), ("self", plan.self_))
        for layer, folded in enumerate(layers)
        for name, tensor in folded.learned.items()
    }


def describe_fallbacks(records: Sequence[Inspection]) -> list[str]:
    """One line for each form that fell back in some layers."""
    lines = []
    for attention in ("cross", "self"):
        layers = [r for r in records if r.attention == attention]
        rejected = [r for r in layers if r.fell_back]
        if rejected:
            worst = max(rejected, key=lambda r: r.error)
            lines.append(
                f"{attention}-attention cache {worst.form!r} is not exact in {len(rejected)} of "
                f"{len(layers)} layers (error up to {worst.error:.1e}, baseline "
                f"{worst.baseline_error:.1e}); they use {worst.used!r}, no larger"
            )
    return lines
