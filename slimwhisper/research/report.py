"""Runs the `report` command: compares the caches of models, as tables or as JSON.

The predictions are those of slim attention (arXiv 2503.05840, Whisper table). They are in VALUES:
they do not depend on the dtype, and nothing was timed. The paper's count of E differs from any real
engine's: it assumes that E stays in on-chip memory and leaves it out. Both counts are given. Its
`large` has 51,865 tokens and 80 mels, which is now called `large-v2`; here, as in `whisper`,
`large` means large-v3, which has one token more. At the table's precision the two are equal.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from slimwhisper.cache.base import pages_of
from slimwhisper.cache.fold import blocks_of
from slimwhisper.cache.forms import PRESETS, names_of, parse_form
from slimwhisper.checkpoint.load import Checkpoint, Setting
from slimwhisper.commands.costs import Allocated, allocate, known_dims
from slimwhisper.commands.tables import console, table
from slimwhisper.devices import as_dtype
from slimwhisper.errors import OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import MARGIN, Inspection, inspect_block, record_activations
from slimwhisper.text import human_size
from slimwhisper.types import Dims

PAPER_MODELS = ("tiny", "base", "small", "medium", "large-v2")  # the paper's columns
MAX_BATCH = 1_000_000  # above any machine, below the overflow of 64-bit sizes
MAX_NAME = 17  # characters, printed
TEXTS = (328, 104, 24)  # tokens: a full prompt and 100; 30 s of speech; a command
NOTES = """\
Predicted: values read per token, from the dimensions alone, as slim attention does (arXiv
2503.05840; its large is large-v2). Cross-phase: operations before a window's first token.
Allocated: the engine's buffers, E once for all layers; in brackets the forms of both attentions.
Texts take pages of 16 tokens; where no length is given, the whole context. Where options 1 and 2
are inexact (--guard), slim takes their place. Nothing was timed. docs/internals/caches.md."""
GUARD_NOTES = f"""\
condition: of the inverted matrix, else of W_K; max folded: largest folded weight; error: of keys
and values against float64, on noise; baseline: of form kv. Exact: up to {MARGIN:g} x baseline."""
Row = tuple[str, str]  # a label, and a model's cell


@dataclass(frozen=True, slots=True)
class PaperOption:
    """One of the paper's options; values, not bytes."""

    option: str  # "baseline", "option1" or "option2"
    cache: int  # per window, without E
    cache_with_e: int  # per window, with E if the option reads it
    parameters: int  # of the decoder, read for every token
    reads: float  # per token: parameters / batch + cache
    reads_with_e: float  # the same if every layer reads E, as where no on-chip memory holds it
    cross_phase: int  # multiplications and additions to make a window's cache, without the encoder


def predict(dims: Dims, batch: int) -> tuple[PaperOption, ...]:
    """The paper's numbers for baseline, option 1 and option 2 at a batch of windows.

    Matrices that decoding reads in each layer, in units of d^2: 8 in the MLP, 4 in self-attention,
    and in cross-attention W_Q and W_O (baseline), plus W_KV (option 1), or W_K and W_V (option 2).
    Biases, positions and norms are not counted. The cross-phase makes K and V of E in every layer,
    4 p d^2 operations (baseline), or K alone (option 1); option 2 keeps E as it is.
    """
    d, layers = dims.n_text_state, dims.n_text_layer
    e, self_ = dims.n_audio_ctx * d, 2 * dims.n_text_ctx * d * layers
    whole = 2 * e * layers + self_

    def option(name: str, cache: int, copies: int, matrices: int, projections: int) -> PaperOption:
        """copies: of E in the cache. projections: of E, in each layer."""
        parameters = dims.n_vocab * d + matrices * d * d * layers
        reads = parameters / batch + cache
        with_e, phase = reads + copies * layers * e, 2 * e * d * projections * layers
        return PaperOption(name, cache, cache + copies * e, parameters, reads, with_e, phase)

    return (
        option("baseline", whole, 0, 14, 2),
        option("option1", whole // 2, 0, 15, 1),
        option("option2", self_ // 2, 1, 16, 0),
    )


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The cost of one model's caches, for `batch` windows in `dtype`."""

    model: str
    dims: Dims
    batch: int
    dtype: str  # such as "float16"
    predicted: tuple[PaperOption, ...]  # values
    allocated: tuple[Allocated, ...]  # bytes, E counted
    settings: tuple[Setting, ...] = ()  # the model's own, if its weights were read
    guard: tuple[Inspection, ...] = ()  # every form of every layer, if asked for


def run_report(arguments: argparse.Namespace) -> int:
    """The `report` command: `model` (empty: the paper's five), `batch`, `dtype`, `guard`, `json`.

    Raises `OptionError` for an invalid batch or dtype, `CheckpointError` for a model.
    """
    models = arguments.model or PAPER_MODELS
    how = (arguments.batch, arguments.dtype, arguments.guard)
    reports = [make_report(model, *how) for model in models]
    if arguments.json:
        print(json.dumps([asdict(report, dict_factory=_finite) for report in reports]))
    else:
        print_report(reports)
    return 0


def _finite(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Infinities, which JSON does not have, become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields}


def make_report(
    model: str, batch: int = 64, dtype: str = "float16", guard: bool = False
) -> CacheReport:
    """Report on a model: an official name (nothing is loaded), a file or a folder.

    guard: whether to load the model in any case, and measure every form of every layer.
    Raises `OptionError` for an invalid batch or dtype, `CheckpointError` for the model.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise OptionError(f"batch {batch!r} is not a number from 1 to {MAX_BATCH:,}")
    number, dims = as_dtype(dtype), None if guard else known_dims(model)
    settings, records = list[Setting](), list[Inspection]()
    if dims is None:
        checkpoint = load_checkpoint(model)
        dims, settings = checkpoint.dims, list(checkpoint.settings.rows())
        records = _inspect(checkpoint, number) if guard else []
    costs = (predict(dims, batch), allocate(dims, batch, number))
    return CacheReport(model, dims, batch, dtype, *costs, tuple(settings), tuple(records))


def _inspect(checkpoint: Checkpoint, dtype: torch.dtype) -> list[Inspection]:
    """What the guard measures of each form but the baseline."""
    activations = record_activations(checkpoint)
    return [
        inspect_block(block, context, parse_form(name), activations, dtype)[1]
        for attention in ("cross", "self")
        for name in names_of(attention)
        if name != "kv"
        for block, context in blocks_of(checkpoint.state, checkpoint.dims, attention)
    ]


def print_report(reports: Sequence[CacheReport]) -> None:
    """Print models side by side; all with the same batch and dtype."""
    page, (one, *_) = console(), reports
    names = [Path(report.model).name[:MAX_NAME] for report in reports]
    for title, rows in (
        (f"Predicted by the paper, in millions of values, batch {one.batch}", _paper_rows),
        (f"Allocated by the engine, in bytes of {one.dtype}, E counted", _live_rows),
    ):
        columns = zip(*map(rows, reports), strict=True)
        cells = ((row[0][0], *(cell for _, cell in row)) for row in columns)
        page.print(title, style="bold")
        page.print(table(("", *names), cells, ("",)), "", sep="\n")
    print(NOTES)
    for report in reports:
        if report.settings:
            page.print(f"\n{report.model}", *map(str, report.settings), sep="\n")
        if report.guard:
            page.print(f"\n{report.model}, {report.dtype}", _guard_table(report.guard), sep="\n")
            page.print(*_what_presets_get(report.guard), GUARD_NOTES, sep="\n")


def _guard_table(records: Iterable[Inspection]) -> Table:
    """A row for each form of each layer."""
    words = ("attention", "form")
    numbers = ("layer", "condition", "max folded", "error", "baseline")
    cells = []
    for r in records:
        largest = f"{r.largest:.1e}" + ("" if r.fits else " too big")
        measured = (f"{r.condition:.1e}", largest, f"{r.error:.1e}", f"{r.baseline_error:.1e}")
        decision = f"{r.used} instead" if r.fell_back else "exact"
        cells.append((r.attention, r.form, str(r.layer), *measured, decision))
    return table((*words, *numbers, "decision"), cells, (*words, "decision"))


def _what_presets_get(records: Sequence[Inspection]) -> Iterator[str]:
    """A line for each preset: the forms that the layers of this checkpoint use."""
    for preset, forms in PRESETS.items():
        asked = zip(("cross", "self"), forms, strict=True)
        used = ({r.used for r in records if (r.attention, r.form) == a} or {a[1]} for a in asked)
        yield f"{preset} ({', '.join(forms)}) gets {' + '.join('/'.join(sorted(u)) for u in used)}"


def _millions(values: float) -> str:
    return f"{values / 1e6:,.1f}"


def _paper_rows(report: CacheReport) -> Iterator[Row]:
    """The paper's table."""
    dims, batch, many = report.dims, report.batch, report.predicted
    one, names = predict(dims, 1), ("baseline", "option 1", "option 2")
    bare = (*names[:2], "option 2, E not counted")
    e = dims.n_audio_ctx * dims.n_text_state
    yield "E, one copy for all layers", _millions(e)
    yield "cross KV", _millions(2 * e * dims.n_text_layer)
    yield "self KV", _millions(many[0].cache - 2 * e * dims.n_text_layer)
    for name, option in zip(bare, many, strict=True):
        yield f"cache, {name}", _millions(option.cache)
    yield "cache, option 2, E counted", _millions(many[2].cache_with_e)
    for name, option in zip(bare[1:], many[1:], strict=True):
        yield f"saving, {name}", f"{many[0].cache / option.cache:.1f}x"
    yield "saving, option 2, E counted", f"{many[0].cache / many[2].cache_with_e:.1f}x"
    for name, option in zip(names, many, strict=True):
        yield f"decoder parameters, {name}", _millions(option.parameters)
    for size, options in {1: one, batch: many}.items():
        for name, option in zip(names, options, strict=True):
            yield f"reads, batch {size}, {name}", _millions(option.reads)
    for name, option in zip(names[1:], one[1:], strict=True):
        yield f"predicted speed-up, batch 1, {name}", f"{one[0].reads / option.reads:.2f}x"
    if batch > 1:
        for name, option in zip(names[1:], many[1:], strict=True):
            yield f"predicted speed-up, {name}", f"{many[0].reads / option.reads:.1f}x"
    yield "same, E read by every layer", f"{many[0].reads / many[2].reads_with_e:.1f}x"
    for name, option in zip(names, many, strict=True):
        yield f"cross-phase, 10^9, {name}", f"{option.cross_phase / 1e9:,.1f}"


def _live_rows(report: CacheReport) -> Iterator[Row]:
    """The rows for the presets' allocations."""
    presets = {f"{a.preset} ({a.cross_form}, {a.self_form})": a for a in report.allocated}
    for label, allocated in presets.items():
        yield f"a window, {label}", human_size(allocated.bytes_per_window)
    bare = report.predicted[2].cache * as_dtype(report.dtype).itemsize
    yield "paper's option 2, E not counted", human_size(bare)
    context = pages_of(report.dims.n_text_ctx)
    for allocated in report.allocated:
        for tokens in TEXTS if allocated.preset in ("slim", "baseline") else ():
            text = allocated.self_bytes * min(pages_of(tokens) / context, 1)
            size = (allocated.cross_bytes + text) / report.batch
            yield f"{allocated.preset}, a text of {tokens} tokens", human_size(size)
    for label, allocated in presets.items():
        if report.batch > 1:
            yield f"{report.batch} windows, {label}", human_size(allocated.total_bytes)
    for label, allocated in list(presets.items())[1:]:
        yield f"saving, {label}", f"{allocated.saving:.1f}x"
