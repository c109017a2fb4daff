"""A smaller model that drafts a larger one's texts, on the larger one's encoder output.

Distilled models such as distil-large-v3 keep the encoder of the model that they were distilled
from. Both decoders then read ONE encoder output: a draft costs its few layers' weights and a small
cache of the text, and no cache of the audio. Beside a form that does not keep the encoder's output,
it is kept for the draft.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.forms import form_of
from slimwhisper.cache.plan import CrossCache, DecoderCache, Pages
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.agreement import may_draft
from slimwhisper.engine.drafting.drafter import Behind, Choose
from slimwhisper.engine.requests import Window
from slimwhisper.errors import OptionError
from slimwhisper.model.model import Model
from slimwhisper.types import Dims


class DraftModel:
    """A `Drafter`: a model whose encoder is the target's."""

    def __init__(
        self, draft: Model, target: Model, cross: CrossCache, rows: int, pages: int
    ) -> None:
        """cross: the target's, which the draft reads, too. rows: texts at a time. pages: the
        target's; the draft keeps a text in the pages of the same numbers.
        """
        self.model = draft
        own = draft.allocate_self(rows + 1, Pages(draft.plan, pages))
        self.cache = DecoderCache(cross.read_by(draft.plan), own)
        self.cost = decoder_weights(draft.dims) / decoder_weights(target.dims)

    def begin(self, first: int, windows: Sequence[Window], prompts: Tensor, rows: Rows) -> None:
        """prompts [R, T] int64, padded on the right."""
        self.model.decoder.prefill(prompts, rows, self.cache)

    def guess(self, behind: Behind, choose: Choose) -> Tensor:
        """[R] int64."""
        return choose(self.logits(behind))

    def logits(self, behind: Behind) -> Tensor:
        """[R, V], at least float32."""
        tokens = behind.positions.shape[1]
        rows = behind.rows.spread(tokens) if tokens > 1 else behind.rows
        step = Step.at(rows, behind.positions.flatten(), behind.extent, False, self.model.dtype)
        logits = self.model.decoder.step(behind.tokens.flatten(), step, self.cache)
        return logits[tokens - 1 :: tokens]

    def by_row(self) -> Sequence[Tensor]:
        """Nothing: its cache does not move."""
        return ()

    def nbytes(self) -> int:
        """Bytes of its cache of the texts."""
        return self.cache.self_.nbytes()


def decoder_weights(dims: Dims) -> int:
    """Numbers in a decoder with folded weights: 16 d^2 in a layer's matrices, 15 d in its biases
    and norms; the embedding, which the logits share, and the positions.
    """
    d = dims.n_text_state
    layers = dims.n_text_layer * (16 * d * d + 15 * d)
    return layers + (dims.n_vocab + dims.n_text_ctx) * d + 2 * d


def load_draft(draft: Checkpoint, target: Checkpoint, model: Model) -> Model:
    """The draft of `model`, whose checkpoint is `target`; they share the encoder's weights.

    Raises OptionError if the draft cannot read the model's encoder output, or writes another
    vocabulary.
    """
    where = f"{draft.name} cannot draft for {target.name}"
    kept = "choose a draft that was distilled with the encoder kept"
    if not all(form_of(weights.form).exact for weights in model.plan.cross):
        raise OptionError(f"{where}: the cache of the audio is not exact; choose cross_cache e")
    if not may_draft(model.plan):
        raise OptionError(f"{where}: the cache of the text is not exact; choose self_cache x")
    if (difference := target.dims.other_encoder(draft.dims)) is not None:
        raise OptionError(f"{where}: {difference}; {kept}")
    if draft.dims.n_vocab != target.dims.n_vocab or draft.dims.n_text_ctx < target.dims.n_text_ctx:
        raise OptionError(f"{where}: its vocabulary or its text context is another; {kept}")
    for name, tensor in target.state.items():
        if name.startswith("encoder."):
            other = draft.state.get(name)
            if other is None or not torch.equal(other.float(), tensor.float()):
                raise OptionError(f"{where}: its {name} differs; {kept}")
    return fast_draft(draft, model)


def fast_draft(draft: Checkpoint, model: Model) -> Model:
    """A draft on the model's encoder; on a CPU in int8, as its guesses need not be exact."""
    int8 = model.device.type == "cpu" and model.dtype == torch.float32
    return Model(draft, model.device, model.dtype, ("e", "x"), int8=int8, encoder=model.encoder)
