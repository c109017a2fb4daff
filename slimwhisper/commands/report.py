"""The `report` command: models side by side, as tables or as JSON."""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from slimwhisper.cache.pool import pages_of
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.commands.costs import (
    PAPER_MODELS,
    SOURCE,
    Report,
    allocate,
    known_dims,
    make_report,
)
from slimwhisper.commands.tables import console
from slimwhisper.devices import as_dtype
from slimwhisper.engine.drafting.draft_model import decoder_weights
from slimwhisper.errors import OptionError
from slimwhisper.text import human_size
from slimwhisper.types import Dims

LABEL_WIDTH, MAX_NAME = 32, 17  # characters, printed
TEXTS = (328, 104, 24)  # tokens: a full prompt and 100; 30 s of speech; a command
GAP = ("", "")


def run_report(arguments: argparse.Namespace) -> int:
    """The `report` command: `model` (empty: the paper's five), `batch`, `dtype`, `json`, `draft`
    (None, or a model).

    Raises `OptionError` for an invalid batch or dtype, `CheckpointError` for a model.
    """
    models = arguments.model or PAPER_MODELS
    reports = [make_report(model, arguments.batch, arguments.dtype) for model in models]
    if arguments.draft:
        theirs = known_dims(arguments.draft) or load_checkpoint(arguments.draft).dims
        costs = [costs_of_draft(theirs, report, arguments.draft) for report in reports]
        if arguments.json:
            print(json.dumps([asdict(cost) for cost in costs]))
        else:
            print(*(cost.line(arguments.batch) for cost in costs), sep="\n")
    elif arguments.json:
        print(json.dumps([report.as_dict() for report in reports]))
    else:
        print_report(reports)
    return 0


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


def _millions(values: float, _: int = 0) -> str:
    return f"{values / 1e6:,.1f}"


def _times(ratio: float, _: int = 0) -> str:
    return f"{ratio:.1f}x"


def _speedup(ratio: float, batch: int) -> str:
    return f"{ratio:.{1 if batch > 1 else 2}f}x"


OPTIONS = ("baseline", "option 1", "option 2")
BARE = (*OPTIONS[:2], "option 2, E not counted")
# whether a group begins, the label of a row, the first option that has it, a field of `Predicted`,
# and its cell at a batch
PAPER: tuple[tuple[bool, str, int, str, Callable[[float, int], str]], ...] = (
    (True, "cache, {1}", 0, "cache", _millions),
    (False, "cache, option 2, E counted", 2, "cache_with_e", _millions),
    (True, "saving, {1}", 1, "saving", _times),
    (False, "saving, option 2, E counted", 2, "saving_with_e", _times),
    (True, "decoder parameters, {0}", 0, "parameters", _millions),
    (True, "reads, batch 1, {0}", 0, "reads_at_batch_1", _millions),
    (True, "reads, batch {batch}, {0}", 0, "reads", _millions),
    (True, "predicted speed-up, {0}", 1, "speedup", _speedup),
    (False, "same, E read by every layer", 2, "speedup_with_e", _speedup),
    (False, "same, batch 1, {0}", 1, "speedup_at_batch_1", lambda ratio, _: _speedup(ratio, 1)),
    (True, "cross-phase, 10^9, {0}", 0, "cross_phase", lambda count, _: f"{count / 1e9:,.1f}"),
)
Row = tuple[str, str]  # a label, and a model's cell; empty between two groups


def print_report(reports: Sequence[Report]) -> None:
    """Print models side by side, as many as fit the width; all with the same batch and dtype."""
    page = console(None)
    batch, dtype = reports[0].batch, reports[0].dtype
    names = [Path(r.model).name[:MAX_NAME] for r in reports]
    count = max(1, (page.width - LABEL_WIDTH) // max(9, *(len(n) + 1 for n in names)))
    for start in range(0, len(reports), count):
        some = slice(start, start + count)
        for title, rows in (
            (f"Predicted by the paper, in millions of values, batch {batch}", _paper_rows),
            (f"Allocated by the engine, in bytes of {dtype}, E counted", _live_rows),
        ):
            table = Table(box=None, header_style="bold", padding=(0, 0, 0, 1), pad_edge=False)
            table.add_column(min_width=LABEL_WIDTH - 1)
            for name in names[some]:
                table.add_column(name, justify="right", min_width=8, no_wrap=True)
            for row in zip(*map(rows, reports[some]), strict=True):
                table.add_row(row[0][0], *(cell for _, cell in row))
            page.print(title, style="bold")
            page.print(table)
    for note in _notes(reports):
        page.print(note)


def _paper_rows(report: Report) -> Iterator[Row]:
    """The paper's table, in groups."""
    yield "E, one copy for all layers", _millions(report.e_cache)
    yield "cross KV", _millions(report.cross_kv)
    yield "self KV", _millions(report.self_kv)
    for begins, label, first, field, cell in PAPER:
        if report.batch == 1 and field.endswith("batch_1"):
            continue
        if begins:
            yield GAP
        for i in range(first, len(OPTIONS)):
            name = label.format(OPTIONS[i], BARE[i], batch=report.batch)
            yield name, cell(getattr(report.predicted[i], field), report.batch)
    yield GAP


def _live_rows(report: Report) -> Iterator[Row]:
    """What the presets allocate, in groups."""
    presets = {f"{a.preset} ({a.cross_form}, {a.self_form})": a for a in report.allocated}
    for label, found in presets.items():
        yield f"a window, {label}", human_size(found.bytes_per_window)
    bare = report.predicted[2].cache * as_dtype(report.dtype).itemsize
    yield "paper's option 2, E not counted", human_size(bare)
    yield GAP
    context = pages_of(report.dims.n_text_ctx)
    for preset in ("slim", "baseline"):
        of = next(a for a in report.allocated if a.preset == preset)
        for tokens in TEXTS:
            text = of.self_bytes * min(pages_of(tokens) / context, 1)
            size = (of.cross_bytes + text) / report.batch
            yield f"{preset}, a text of {tokens} tokens", human_size(size)
        yield GAP
    if report.batch > 1:
        for label, found in presets.items():
            yield f"{report.batch} windows, {label}", human_size(found.total_bytes)
        yield GAP
    for label, found in list(presets.items())[1:]:
        yield f"saving, {label}", _times(found.saving)
    yield GAP


def _notes(reports: Sequence[Report]) -> Iterator[str]:
    def every(name: str) -> str:
        return " or ".join(str(n) for n in sorted({getattr(r.dims, name) for r in reports}))

    yield (
        f"Predicted: from the dimensions alone, p = {every('n_audio_ctx')}, "
        f"n = {every('n_text_ctx')}, vocabulary {every('n_vocab')}. Source: {SOURCE} (its large is "
        "large-v2). Reads are values per token, parameters / batch + cache, E not counted: the "
        "paper assumes that E stays on the chip. A predicted speed-up is the ratio of reads; "
        "where E is too large for the chip, as on a GPU with many windows, every layer reads it, "
        "and option 2 gains no more than option 1. Cross-phase: operations that make keys and "
        "values of a window's E, before its first token; slim has none. Nothing was timed."
    )
    yield (
        "Allocated: the engine's own buffers, E counted once for all layers. In brackets: the "
        "forms of the cross- and the self-attention cache. A text takes pages of 16 tokens as it "
        "grows; where no length is given, it has all of its context. Option 1 and option 2 rest on "
        "an inverse that few checkpoints allow in half precision; slim needs none. "
        "`slimwhisper inspect MODEL` measures it."
    )
