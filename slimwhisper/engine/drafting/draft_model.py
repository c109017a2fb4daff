"""A smaller model that drafts a larger one's texts, on the larger one's encoder output.

Distilled models such as distil-large-v3 share the encoder of the model that they were distilled
from. Both decoders then read ONE encoder output: a draft costs its few layers' weights and a small
cache of the text, but no cache of the audio, unless the target's form does not store the encoder's
output.
"""

import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import CrossCache, DecoderCache, Pages
from slimwhisper.cache.rows import DecodeStep, Rows
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.drafting.drafter import Choose, DraftContext
from slimwhisper.engine.verification import may_draft
from slimwhisper.errors import OptionError
from slimwhisper.model.model import Model
from slimwhisper.types import Dims


class DraftModel:
    """A `Drafter`: a model whose encoder is the target's."""

    def __init__(
        self, draft: Model, target: Model, cross: CrossCache, rows: int, pages: int
    ) -> None:
        """cross: the target's, which the draft also reads. rows: texts at a time. pages: as many
        as the target's; both use the same block tables.
        """
        self.model = draft
        self_cache = draft.allocate_self(rows + 1, Pages(draft.plan, pages))
        self.cache = DecoderCache(cross.share_with(draft.plan), self_cache)
        self.cost = decoder_weights(draft.dims) / decoder_weights(target.dims)

    def begin(self, prompts: Tensor, rows: Rows) -> None:
        """prompts [R, T] int64, padded on the right."""
        unread = prompts.new_zeros((len(prompts), 1))  # only the caches are needed
        self.model.decoder.prefill(prompts, rows, self.cache, positions=unread)

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        """[R] int64."""
        return choose(self.logits(context))

    def logits(self, context: DraftContext) -> Tensor:
        """[R, V], at least float32."""
        tokens = context.positions.shape[1]
        rows = context.rows.spread(tokens) if tokens > 1 else context.rows
        step = DecodeStep.at(
            rows, context.positions.flatten(), context.extent, False, self.model.dtype
        )
        logits = self.model.decoder.step(context.tokens.flatten(), step, self.cache)
        return logits[tokens - 1 :: tokens]

    def nbytes(self) -> int:
        """Bytes of its cache of the texts."""
        return self.cache.self_.nbytes()


def decoder_weights(dims: Dims) -> int:
    """Parameters of a decoder with folded weights: 16 d^2 in a layer's matrices, 15 d in its
    biases and norms; the embedding, which the logits share, and the positions.
    """
    d = dims.n_text_state
    layers = dims.n_text_layer * (16 * d * d + 15 * d)
    return layers + (dims.n_vocab + dims.n_text_ctx) * d + 2 * d


def load_draft(draft: Checkpoint, target: Checkpoint, model: Model) -> Model:
    """The draft of `model`, whose checkpoint is `target`; they share the encoder's weights.

    Raises OptionError if the draft has another encoder or vocabulary, or a cache is not exact.
    """
    prefix = f"{draft.name} cannot draft for {target.name}"
    remedy = "choose a draft that was distilled with the same encoder"
    if not model.plan.exact_cross:
        raise OptionError(f"{prefix}: the cache of the audio is not exact; choose cross_cache e")
    if not may_draft(model.plan):
        raise OptionError(f"{prefix}: the cache of the text is not exact; choose self_cache x")
    if (difference := target.dims.other_encoder(draft.dims)) is not None:
        raise OptionError(f"{prefix}: {difference}; {remedy}")
    if draft.dims.n_vocab != target.dims.n_vocab or draft.dims.n_text_ctx < target.dims.n_text_ctx:
        raise OptionError(f"{prefix}: its vocabulary or text context differs; {remedy}")
    for name, tensor in target.state.items():
        if name.startswith("encoder."):
            other = draft.state.get(name)
            if other is None or not torch.equal(other.float(), tensor.float()):
                raise OptionError(f"{prefix}: its {name} differs; {remedy}")
    return fast_draft(draft, model)


def fast_draft(draft: Checkpoint, model: Model) -> Model:
    """A draft with the model's encoder; on a CPU in int8, as drafts need not be exact."""
    int8 = model.device.type == "cpu" and model.dtype == torch.float32
    return Model(draft, model.device, model.dtype, ("e", "x"), int8=int8, encoder=model.encoder)
