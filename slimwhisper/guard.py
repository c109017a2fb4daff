"""The guard: whether a cache form is exact for these weights in this dtype, measured by layer.

`k`, `v` and `hybrid` rebuild keys or values through an inverse. This multiplies the rounding error
of what they store by up to the condition number, which reaches 5e9 in real checkpoints. In half
precision such a form is therefore seldom exact, and the guard replaces it with a form of the same
size that needs no inverse: `e` for cross-attention, `x` for self-attention. It measures on the
activations of a window. `guarded_plan` is imported for forms that need an inverse, or learn.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.audio.mel import calibration_mel
from slimwhisper.cache.base import CrossLayer, DecodeStep, Rows
from slimwhisper.cache.decoder_cache import CachePlan, CrossCache, DecoderCache, SelfCache
from slimwhisper.cache.fold import Activations, Attention, Context, Folded, blocks_of, fold
from slimwhisper.cache.forms import EXACT, Form, parse_form
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.errors import CacheError
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.tokens.vocabulary import Vocabulary

logger = logging.getLogger("slimwhisper.cache")

# A form counts as exact if its error is at most this many times the baseline's. At 3 the logits'
# error is at most 1.2 times openai-whisper's, at 6 up to 1.7 times, and at 15 more than the 2
# times that is allowed: docs/internals/numerics.md, bench/exactness.py.
MARGIN = 3.0
CALIBRATION_TOKENS = 48  # at most, of a window without a text


@dataclass(frozen=True, slots=True)
class Inspection:
    """The guard's measurement of one layer's attention block, and its decision."""

    layer: int
    attention: str  # "cross" or "self"
    form: str  # requested
    used: str  # the same, or the exact form that replaces it
    condition: float  # of the matrix that the form inverts, else of W_K
    largest: float  # largest magnitude of the folded weights
    fits: bool  # whether that is finite in the dtype
    error: float  # relative, of the keys and values in the dtype; see `measure`
    baseline_error: float  # the same for form `kv`

    @property
    def fell_back(self) -> bool:
        return self.used != self.form


def condition_number(weight: Tensor) -> float:
    """Largest over smallest singular value of [d, d], in float64; inf when singular."""
    values = torch.linalg.svdvals(weight.double())
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """[...] -> [...], rounded to `dtype` but held in at least float32, as products accumulate."""
    return tensor.to(dtype).to(torch.promote_types(dtype, torch.float32))


def measure(
    block: Attention, folded: Folded, source: Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """(error of the form, error of the baseline) in `dtype` against float64.

    `source` [n, d]: what the block attends to, encoder output or layer-normed input. The error is
    that of the form's keys and values, stored or rebuilt: relative per token, root mean square over
    the tokens, for the worst head, and the worse of keys and values; NaN counts as inf. Queries are
    left out, so no attention pattern can hide an error. Products are rounded to `dtype` and
    accumulated in float32, as on a GPU, on any device.
    """
    x = _rounded(source, dtype)
    truth = [F.linear(x.double(), weight.double()) for weight in (block.key, block.value)]

    def project(data: Tensor, weight: Tensor) -> Tensor:
        """[n, in], [out, in] -> [n, out], rounded."""
        return _rounded(F.linear(data, _rounded(weight, dtype)), dtype)

    def error(keys_values: Sequence[Tensor]) -> float:
        """Of keys and values, each [n, d], against `truth`."""
        worst = 0.0
        for rounded, true in zip(keys_values, truth, strict=True):
            heads = true.unflatten(-1, (block.heads, -1))
            difference = rounded.double().unflatten(-1, (block.heads, -1)) - heads
            relative = (difference.norm(dim=-1) / heads.norm(dim=-1)).pow(2).mean(dim=0).sqrt()
            worst = max(worst, float(relative.nan_to_num(nan=float("inf")).max()))
        return worst

    baseline = error([project(x, block.key), project(x, block.value)])
    if folded.values is not None:  # keys and values are stored
        return baseline, baseline
    latent = project(x, folded.project) if isinstance(folded.project, Tensor) else x
    maps = (folded.key_map, folded.value_map)
    rebuilt = [latent if m is None else project(latent, m.flatten(0, 1)) for m in maps]
    return error(rebuilt), baseline


def fits_dtype(largest: float, dtype: torch.dtype) -> bool:
    """Whether a weight of this magnitude is finite in the dtype; False for NaN."""
    return largest <= torch.finfo(dtype).max


def inspect_block(
    block: Attention, context: Context, form: Form, activations: Activations, dtype: torch.dtype
) -> tuple[Folded, Inspection]:
    """Fold one decoder block for a form, measure it on activations, and fall back if it is not
    exact. Returns the weights of the form to use, not yet rounded, and the record.
    """
    folded, inverted = fold(block, form, context), block.key
    if form.inverse == "value":
        inverted = block.value
    elif form.inverse == "first_key":
        inverted = context.blocks[0].key
    maps = [t for t in (folded.key_map, folded.value_map) if t is not None]
    largest = max((float(t.abs().max()) for t in maps), default=0.0)
    source = activations.source(context.attention, context.layer)
    error, baseline_error = measure(block, folded, source, dtype)
    fits = fits_dtype(largest, dtype)
    exact = form.inverse is None or (fits and error <= MARGIN * baseline_error)
    used = form if exact else EXACT[context.attention]
    record = Inspection(
        layer=context.layer,
        attention=context.attention,
        form=str(form),
        used=str(used),
        condition=condition_number(inverted),
        largest=largest,
        fits=fits,
        error=error,
        baseline_error=baseline_error,
    )
    return (folded if exact else fold(block, used, context)), record


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
    checkpoint: Checkpoint, mel: Tensor | None = None, texts: Sequence[Sequence[int]] | None = None
) -> Activations:
    """The inputs of all attention blocks, in float32, while the model decodes windows.

    `mel` [n_mels, 3000], or [G, n_mels, 3000] for several windows: real speech if available, which
    is harder on `k` than noise; None: noise. `texts`: the tokens of each window's text, from
    <|startoftranscript|> on. Without them, each window is decoded greedily in its language.
    """
    dims, cpu = checkpoint.dims, torch.device("cpu")
    encoder = Encoder(checkpoint.state, dims, cpu, torch.float32)
    decoder = Decoder(checkpoint.state, dims, cpu, torch.float32)
    plan = CachePlan.of(checkpoint.state, dims).to(cpu, torch.float32)
    mels = calibration_mel(dims.n_mels, dims.window_frames) if mel is None else mel
    windows = []
    for i, window_mel in enumerate(mels.reshape(-1, *mels.shape[-2:]).split(1)):
        cross, self_ = CrossCache(plan, 1, dims.n_audio_ctx), SelfCache(plan, 1, dims.n_text_ctx)
        cache = DecoderCache(cross, self_)
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
        windows.append((features[0], *self_inputs, *cross_inputs))
    features, *inputs = [torch.cat(tensors) for tensors in zip(*windows, strict=True)]
    return Activations(features, inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :])


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
    forms: tuple[str | Form, str | Form],
    dtype: torch.dtype,
    mel: Tensor | None = None,
    strict: bool = False,
) -> CachePlan:
    """A `MakePlan`: layers that the guard rejects in `dtype` get an exact form. Forms that have
    learned nothing yet learn from what is measured on.

    `mel` [n_mels, 3000] as in `record_activations`. The weights are not yet rounded. Raises
    `CacheError` if a form is not exact and the guard is strict.
    """
    asked_forms = parse_form(forms[0]), parse_form(forms[1])
    if not any(form.guarded for form in asked_forms):
        return CachePlan.of(checkpoint.state, checkpoint.dims, *asked_forms)
    activations = record_activations(checkpoint, mel)
    plans: dict[str, list[Folded]] = {"cross": [], "self": []}
    records: list[Inspection] = []
    for attention, asked in zip(plans, asked_forms, strict=True):
        pairs = list(blocks_of(checkpoint.state, checkpoint.dims, attention))
        blocks = [block for block, _ in pairs]
        form = asked.learn(attention, blocks, activations) if asked.learns else asked
        for block, context in pairs:
            if form.inverse is None:
                plans[attention].append(fold(block, form, context))
                continue
            accepted, inspection = inspect_block(block, context, form, activations, dtype)
            records.append(inspection)
            plans[attention].append(accepted)
    fallbacks = list(_fallbacks(records))
    if fallbacks and strict:
        first = fallbacks[0].partition(";")[0]
        remedy = "choose cache slim, which is always exact, or allow the fall-back"
        raise CacheError(f"{checkpoint.name}: {first}; {remedy}")
    for line in fallbacks:
        logger.warning("%s: %s", checkpoint.name, line)
    return CachePlan(plans["cross"], plans["self"], inspections=records, fallbacks=fallbacks)


def _fallbacks(records: Sequence[Inspection]) -> Iterator[str]:
    """One line for each form that was replaced in some layers."""
    for attention in ("cross", "self"):
        layers = [r for r in records if r.attention == attention]
        if rejected := [r for r in layers if r.fell_back]:
            worst = max(rejected, key=lambda r: r.error)
            yield (
                f"{attention}-attention cache {worst.form!r} is not exact in {len(rejected)} "
                f"of {len(layers)} layers (error up to {worst.error:.1e}, baseline "
                f"{worst.baseline_error:.1e}); they use {worst.used!r}, no larger"
            )
