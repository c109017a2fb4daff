"""A smaller model that drafts for a larger one, on the larger one's encoder output.

Distilled models such as distil-large-v3 share the encoder of the model that they were distilled
from. Both decoders then read one encoder output: a draft costs its few layers' weights and a small
cache of the text, but no cache of the audio, unless the target's form does not store the encoder's
output.
"""

from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.decoder_cache import CrossCache, DecoderCache, Pages
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.drafts.speculation import Choose, DraftContext, SpeculativeRunner
from slimwhisper.engine.requests import Search
from slimwhisper.engine.runner import MakeRunner
from slimwhisper.errors import OptionError, warnings_to
from slimwhisper.model.model import Model
from slimwhisper.types import Dims

MOST_DRAFTED = 7  # slots; drafts for more do not pay: docs/guides/transcribing.md#drafts


class DraftModel:
    """A `Drafter`: a model whose encoder is the target's."""

    def __init__(
        self, draft: Model, target: Model, cross: CrossCache, rows: int, pages: int
    ) -> None:
        """Allocate the caches of a draft.

        Args:
            draft: The draft.
            target: The model that verifies.
            cross: The target's cache of the audio, which the draft also reads.
            rows: How many texts there are at a time.
            pages: The number of pages, as many as the target's. Both use the same block tables.
        """
        self.model = draft
        self_cache = draft.allocate_self(rows + 1, Pages(draft.plan, pages))
        self.cache = DecoderCache(cross.share_with(draft.plan), self_cache)
        self.cost = decoder_weights(draft.dims) / decoder_weights(target.dims)

    def begin(self, prompts: Tensor, rows: Rows) -> None:
        """Read the prompts of new texts, [R, T] int64, padded on the right."""
        unread = prompts.new_zeros((len(prompts), 1))  # only the caches are needed
        self.model.decoder.prefill(prompts, rows, self.cache, positions=unread)

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        """Guess the next token of each text, [R] int64."""
        tokens = context.positions.shape[1]
        rows = context.rows.spread(tokens) if tokens > 1 else context.rows
        step = DecodeStep.at(
            rows, context.positions.flatten(), context.extent, False, self.model.dtype
        )
        logits = self.model.decoder.step(context.tokens.flatten(), step, self.cache)
        return choose(logits[tokens - 1 :: tokens])

    def nbytes(self) -> int:
        """Return the bytes of its cache of the texts."""
        return self.cache.self_.nbytes()


def decoder_weights(dims: Dims) -> int:
    """Parameters of a decoder with folded weights: 16 d^2 in a layer's matrices, 15 d in its
    biases and norms; the embedding, which the logits share, and the positions.
    """
    d = dims.n_text_state
    layers = dims.n_text_layer * (16 * d * d + 15 * d)
    return layers + (dims.n_vocab + dims.n_text_ctx) * d + 2 * d


def load_draft(draft: Checkpoint, target: Checkpoint, model: Model) -> Model:
    """Make the draft of a model. They share the encoder's weights.

    Args:
        draft: The checkpoint of the draft.
        target: The checkpoint of the model.
        model: The model.

    Returns:
        The draft.

    Raises:
        OptionError: When the draft has another encoder or vocabulary, or a cache of the model is
            not exact.
    """
    prefix = f"{draft.name} cannot draft for {target.name}"
    remedy = "choose a draft that was distilled with the same encoder"
    if not model.plan.exact_cross:
        raise OptionError(f"{prefix}: the cache of the audio is not exact; choose cross_cache e")
    if not model.plan.may_draft:
        raise OptionError(f"{prefix}: the cache of the text is not exact; choose self_cache x")
    for name in (f.name for f in fields(Dims) if f.name == "n_mels" or "_audio_" in f.name):
        value, expected = getattr(draft.dims, name), getattr(target.dims, name)
        if value != expected:
            raise OptionError(f"{prefix}: its {name} is {value}, not {expected}; {remedy}")
    if draft.dims.n_vocab != target.dims.n_vocab or draft.dims.n_text_ctx < target.dims.n_text_ctx:
        raise OptionError(f"{prefix}: its vocabulary or text context differs; {remedy}")
    for name, tensor in target.state.items():
        if name.startswith("encoder."):
            other = draft.state.get(name)
            if other is None or not torch.equal(other.float(), tensor.float()):
                raise OptionError(f"{prefix}: its {name} differs; {remedy}")
    # on a CPU in int8, as drafts need not be exact
    int8 = model.device.type == "cpu" and model.dtype == torch.float32
    return Model(draft, model.device, model.dtype, ("e", "x"), int8=int8, encoder=model.encoder)


def runner_of(draft: Model, target: Model, search: Search, slots: int) -> MakeRunner | None:
    """Choose how the texts of an engine are drafted.

    Args:
        draft: The draft.
        target: The model that verifies.
        search: The search of the engine.
        slots: How many windows the engine decodes together.

    Returns:
        What makes the runner of the texts. None means that there are too many windows for a draft.

    Raises:
        OptionError: When the search has beams.
    """
    if search.beams is not None:
        raise OptionError(
            f"beams: {draft.name} drafts for {target.name}, which needs greedy decoding; "
            "leave out the beam size, or the draft"
        )
    if slots > MOST_DRAFTED:
        what = f"{draft.name} drafts for up to {MOST_DRAFTED} windows, as more would not be faster"
        warnings_to.get()(f"batch_size {slots}: {what}; choose fewer, or leave out the draft")
        return None
    return partial(SpeculativeRunner, make_drafter=partial(DraftModel, draft, target))
