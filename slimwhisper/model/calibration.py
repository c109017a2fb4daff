"""The guard's measurements: activations of a checkpoint, and the cache plan that it accepts.

Imported for forms that need an inverse, or learn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.audio.mel import calibration_mel
from slimwhisper.cache.base import CrossLayer
from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache, fold_plan
from slimwhisper.cache.fold import blocks_of, fold
from slimwhisper.cache.forms import Form
from slimwhisper.cache.guard import Activations, inspect_block
from slimwhisper.cache.rows import DecodeStep, Rows
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.tokens.vocabulary import Vocabulary

CALIBRATION_TOKENS = 48  # at most, of a window without a text


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
    checkpoint: Checkpoint, forms: tuple[Form, Form], dtype: torch.dtype, mel: Tensor | None = None
) -> CachePlan:
    """Fold every layer for forms of cross- and self-attention; layers that the guard rejects in
    `dtype` get an exact form. Forms that have learned nothing yet learn from what is measured on.

    `mel` [n_mels, 3000] as in `record_activations`. The weights are not yet rounded.
    """
    activations = record_activations(checkpoint, mel)
    plan = CachePlan([], [])
    for attention, asked, layers in zip(
        ("cross", "self"), forms, (plan.cross, plan.self_), strict=True
    ):
        pairs = blocks_of(checkpoint.state, checkpoint.dims, attention)
        blocks = [block for block, _ in pairs]
        form = asked.learn(attention, blocks, activations) if asked.learns else asked
        for block, context in pairs:
            if form.inverse is None:
                layers.append(fold(block, form, context))
                continue
            accepted, inspection = inspect_block(block, context, form, activations, dtype)
            plan.inspections.append(inspection)
            layers.append(accepted)
    return plan
