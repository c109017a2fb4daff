"""The `report` command: models side by side, as tables or as JSON."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.table import Table

from slimwhisper.cache.forms import PRESETS
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.commands.costs import (
    PAPER_MODELS,
    SOURCE,
    Report,
    allocate,
    known_dims,
    make_report,
)
from slimwhisper.devices import as_dtype
from slimwhisper.engine.drafting.draft_model import decoder_weights
from slimwhisper.errors import OptionError
from slimwhisper.text import human_size
from slimwhisper.types import Dims

LABEL_WIDTH, MAX_NAME = 32, 17  # characters, printed


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
        print_report(reports, sys.stdout)
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


Row = tuple[str, Callable[[Report], str]]  # a label, and the cell of a model


def print_report(reports: Sequence[Report], file: TextIO) -> None:
    """Print models side by side, as many as fit the width; all with the same batch and dtype."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    batch, dtype = reports[0].batch, reports[0].dtype
    names = [Path(r.model).name[:MAX_NAME] for r in reports]
    count = max(1, (console.width - LABEL_WIDTH) // max(9, *(len(n) + 1 for n in names)))
    for start in range(0, len(reports), count):
        shown = slice(start, start + count)
        for title, groups in (
            (f"Predicted by the paper, in millions of values, batch {batch}", _paper_rows(batch)),
            (f"Allocated by the engine, in bytes of {dtype}, E counted", _live_rows(batch)),
        ):
            table = Table(box=None, header_style="bold", padding=(0, 0, 0, 1), pad_edge=False)
            table.add_column(min_width=LABEL_WIDTH - 1)
            for name in names[shown]:
                table.add_column(name, justify="right", min_width=8, no_wrap=True)
            for rows in groups:
                for label, cell in rows:
                    table.add_row(label, *map(cell, reports[shown]))
                table.add_row()
            console.print(title, style="bold")
            console.print(table)
    for note in _notes(reports):
        console.print(note)


def _each(
    field: str, labels: Sequence[str], what: str, cell: Callable[[Any], str], first: int = 0
) -> list[Row]:
    """One row for each of a report's "predicted" or "allocated" from index `first` on."""

    def row(i: int) -> Row:
        return f"{what}, {labels[i]}", lambda report: cell(getattr(report, field)[i])

    return [row(i) for i in range(first, len(labels))]


def _paper_rows(batch: int) -> Iterator[list[Row]]:
    """The paper's table, in groups."""
    each = partial(_each, "predicted", ("baseline", "option 1", "option 2"))
    bare = partial(_each, "predicted", ("baseline", "option 1", "option 2, E not counted"))
    yield [
        ("E, one copy for all layers", lambda r: _millions(r.e_cache)),
        ("cross KV", lambda r: _millions(r.cross_kv)),
        ("self KV", lambda r: _millions(r.self_kv)),
    ]
    yield [
        *bare("cache", lambda p: _millions(p.cache)),
        ("cache, option 2, E counted", lambda r: _millions(r.predicted[2].cache_with_e)),
    ]
    yield [
        *bare("saving", lambda p: _times(p.saving), 1),
        ("saving, option 2, E counted", lambda r: _times(r.predicted[2].saving_with_e)),
    ]
    yield each("decoder parameters", lambda p: _millions(p.parameters))
    if batch > 1:
        yield each("reads, batch 1", lambda p: _millions(p.reads_at_batch_1))
    yield each(f"reads, batch {batch}", lambda p: _millions(p.reads))
    digits = 1 if batch > 1 else 2
    yield [
        *each("predicted speed-up", lambda p: f"{p.speedup:.{digits}f}x", 1),
        ("same, E read by every layer", lambda r: f"{r.predicted[2].speedup_with_e:.{digits}f}x"),
        *(each("same, batch 1", lambda p: f"{p.speedup_at_batch_1:.2f}x", 1) if batch > 1 else ()),
    ]
    yield each("cross-phase, 10^9", lambda p: f"{p.cross_phase / 1e9:,.1f}")


def _live_rows(batch: int) -> Iterator[list[Row]]:
    """What the presets allocate, in groups."""
    labels = [f"{preset} ({cross}, {own})" for preset, (cross, own) in PRESETS.items()]
    each = partial(_each, "allocated", labels)

    def without_e(report: Report) -> str:
        return human_size(report.predicted[2].cache * getattr(torch, report.dtype).itemsize)

    yield [
        *each("a window", lambda a: human_size(a.bytes_per_window)),
        ("paper's option 2, E not counted", without_e),
    ]
    if batch > 1:
        yield each(f"{batch} windows", lambda a: human_size(a.total_bytes))
    yield each("saving", lambda a: _times(a.saving), 1)


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
        "forms of the cross- and the self-attention cache. Option 1 and option 2 rest on an "
        "inverse that few checkpoints allow in half precision; slim needs none. "
        "`slimwhisper inspect MODEL` measures it."
    )


def _millions(values: float) -> str:
    return f"{values / 1e6:,.1f}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x"
