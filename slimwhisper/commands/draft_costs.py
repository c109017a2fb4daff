"""What a draft adds to a model's memory; see docs/drafts.md."""

from dataclasses import dataclass

from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.commands.costs import Report, allocate, known_dims
from slimwhisper.devices import as_dtype
from slimwhisper.engine.draft_model import decoder_weights
from slimwhisper.errors import OptionError
from slimwhisper.text import human_size
from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Bytes that a draft takes beside a model with cache slim."""

    draft: str
    model: str
    weights: int  # its decoder; the encoder is the model's
    text: int  # its cache of the texts, for the whole batch
    window: int  # both models' caches for one window
    window_without: int  # the model's alone

    def line(self, batch: int) -> str:
        """For a person."""
        return (
            f"{self.draft} as a draft for {self.model}: {human_size(self.weights)} of weights "
            "(more on a CPU, where it computes in int8: docs/drafts.md), "
            f"{human_size(self.text)} of text cache for {batch} windows, no cache of the audio. "
            f"A window takes {human_size(self.window)}, {human_size(self.window_without)} without."
        )


def draft_dims(draft: str) -> Dims:
    """Of a model by its name, or of a checkpoint. Raises CheckpointError."""
    return known_dims(draft) or load_checkpoint(draft).dims


def costs_of_draft(theirs: Dims, report: Report, draft: str) -> DraftCost:
    """What a draft of these dimensions costs beside the report's model. Raises OptionError if their
    encoders cannot be one, by their dimensions.
    """
    ours = report.dims
    if (difference := ours.other_encoder(theirs)) is not None:
        raise OptionError(f"{draft} cannot draft for {report.model}: {difference}")
    number = as_dtype(report.dtype)
    text, alone = (
        next(a for a in allocate(dims, report.batch, number) if a.preset == "slim")
        for dims in (theirs, ours)
    )
    weights = decoder_weights(theirs) * number.itemsize
    window = alone.bytes_per_window + text.self_bytes // report.batch
    return DraftCost(draft, report.model, weights, text.self_bytes, window, alone.bytes_per_window)
