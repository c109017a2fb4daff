"""What the caches cost: the paper's predictions from a model's dimensions, and the live buffers.

Predictions are those of slim attention (arXiv 2503.05840, Whisper table), in VALUES: they depend
on no dtype, and nothing was timed. Allocations are BYTES of the engine's own `DecoderCache`, built
on PyTorch's meta device, where buffers have every property but memory.

The paper's count of E differs from any real engine's: it assumes that E stays in on-chip memory
and leaves it out. Both counts are given. Its `large` has 51,865 tokens and 80 mels, which today is
`large-v2`; the name `large` means large-v3 here, as in `whisper`, with one token more. At the
table's precision the two are equal.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.table import Table

from slimwhisper.cache.plan import PRESETS, CachePlan, DecoderCache
from slimwhisper.checkpoint import load_checkpoint
from slimwhisper.errors import OptionError
from slimwhisper.fold import Attention, Folded, fold
from slimwhisper.transcribe import choose_dtype
from slimwhisper.types import Dims

SOURCE = "slim attention, arXiv 2503.05840, Whisper table"
PAPER_MODELS = ("tiny", "base", "small", "medium", "large-v2")  # the paper's columns
MAX_BATCH = 1_000_000  # above any machine, below the overflow of 64-bit sizes
LABEL_WIDTH, MAX_NAME = 32, 17  # characters, printed
META = torch.device("meta")


def _dims(
    width: int, audio_layers: int, text_layers: int, n_vocab: int = 51_865, n_mels: int = 80
) -> Dims:
    heads = width // 64
    return Dims(
        *(n_mels, 1500, width, heads, audio_layers),
        *(n_vocab, 448, width, heads, text_layers),
    )


OFFICIAL_DIMS: dict[str, Dims] = {
    "tiny": _dims(384, 4, 4),
    "tiny.en": _dims(384, 4, 4, 51_864),
    "base": _dims(512, 6, 6),
    "base.en": _dims(512, 6, 6, 51_864),
    "small": _dims(768, 12, 12),
    "small.en": _dims(768, 12, 12, 51_864),
    "medium": _dims(1024, 24, 24),
    "medium.en": _dims(1024, 24, 24, 51_864),
    "large-v1": _dims(1280, 32, 32),
    "large-v2": _dims(1280, 32, 32),
    "large-v3": _dims(1280, 32, 32, 51_866, 128),
    "large": _dims(1280, 32, 32, 51_866, 128),
    "large-v3-turbo": _dims(1280, 32, 4, 51_866, 128),
    "turbo": _dims(1280, 32, 4, 51_866, 128),
    "distil-small.en": _dims(768, 12, 4, 51_864),
    "distil-medium.en": _dims(1024, 24, 2, 51_864),
    "distil-large-v2": _dims(1280, 32, 2),
    "distil-large-v3": _dims(1280, 32, 2, 51_866, 128),
    "distil-large-v3.5": _dims(1280, 32, 2, 51_866, 128),
}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One of the paper's options; values, not bytes."""

    option: str  # "baseline", "option1" or "option2"
    cache: int  # a window, E not counted
    cache_with_e: int  # a window, E counted where the option reads it
    saving: float  # baseline's cache / cache
    saving_with_e: float
    parameters: int  # of the decoder, read for every token
    reads_at_batch_1: float  # per token: parameters / batch + cache
    reads: float  # per token, at the report's batch
    speedup: float  # baseline's reads / reads, at the report's batch; predicted, never timed


@dataclass(frozen=True, slots=True)
class Allocated:
    """One preset's live caches for the whole batch; bytes, E counted once."""

    preset: str
    cross_form: str
    self_form: str
    cross_bytes: int
    self_bytes: int
    total_bytes: int
    bytes_per_window: int
    saving: float  # baseline's bytes / bytes


@dataclass(frozen=True, slots=True)
class Report:
    """What one model's caches cost, for `batch` windows in `dtype`."""

    model: str
    dims: Dims
    batch: int
    dtype: str  # such as "float16"
    e_cache: int  # values a window: p d
    cross_kv: int  # values a window: 2 p d L
    self_kv: int  # values a window: 2 n d L
    predicted: tuple[Predicted, ...]
    allocated: tuple[Allocated, ...]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: every field, numbers not rounded."""
        units = {"predicted": "values", "allocated": "bytes, E counted"}
        return {**asdict(self), "source": SOURCE, "units": units}


def known_dims(name: str) -> Dims | None:
    """The dimensions of an official model, by `whisper`'s name or the Hugging Face id."""
    if name == "openai/whisper-large":  # this one is the first large model
        name = "large-v1"
    short = name.removeprefix("openai/whisper-").removeprefix("distil-whisper/")
    return OFFICIAL_DIMS.get(short)


def predict(dims: Dims, batch: int) -> tuple[Predicted, ...]:
    """The paper's numbers for baseline, option 1 and option 2 at a batch of windows.

    Matrices that decoding reads in each layer, in units of d^2: 8 in the MLP, 4 in self-attention,
    and in cross-attention W_Q and W_O (baseline), W_KV too (option 1), W_K and W_V too (option 2).
    Biases, positions and norms are not counted.
    """
    d, layers = dims.n_text_state, dims.n_text_layer
    e = dims.n_audio_ctx * d
    cross, own = 2 * e * layers, 2 * dims.n_text_ctx * d * layers
    base_cache = cross + own
    matrices, embedding = d * d * layers, dims.n_vocab * d
    base_reads = (embedding + 14 * matrices) / batch + base_cache

    def option(name: str, cache: int, cache_with_e: int, per_layer: int) -> Predicted:
        parameters = embedding + per_layer * matrices
        reads = parameters / batch + cache
        return Predicted(
            option=name,
            cache=cache,
            cache_with_e=cache_with_e,
            saving=base_cache / cache,
            saving_with_e=base_cache / cache_with_e,
            parameters=parameters,
            reads_at_batch_1=float(parameters + cache),
            reads=reads,
            speedup=base_reads / reads,
        )

    return (
        option("baseline", base_cache, base_cache, 14),
        option("option1", base_cache // 2, base_cache // 2, 15),
        option("option2", own // 2, own // 2 + e, 16),
    )


def allocate(dims: Dims, batch: int, dtype: torch.dtype) -> tuple[Allocated, ...]:
    """What the engine's caches take for `batch` windows, by preset; no memory is used."""
    d = dims.n_text_state
    square, bias = torch.empty((d, d), device=META), torch.empty(d, device=META)
    block = Attention(square, bias, square, square, square, bias, dims.n_text_head)

    def folded(form: str) -> list[Folded]:
        return [fold(block, form).to(META, dtype)] * dims.n_text_layer

    found: list[Allocated] = []
    for preset, forms in PRESETS.items():  # the baseline comes first
        plan = CachePlan(*map(folded, forms))
        cache = DecoderCache(plan, batch, dims.n_audio_ctx, dims.n_text_ctx)
        cross, own = cache.cross_bytes(), cache.self_bytes()
        total = cross + own
        saving = (found[0].total_bytes if found else total) / total
        found.append(Allocated(preset, *forms, cross, own, total, total // batch, saving))
    return tuple(found)


def make_report(
    model: str | PathLike[str] | Dims,
    batch: int = 64,
    dtype: str | torch.dtype = torch.float16,
) -> Report:
    """Report on a model: an official name (nothing is loaded), a file or folder, or dimensions.

    Raises `OptionError` for a batch or dtype that cannot be, `CheckpointError` for the model.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise OptionError(f"batch {batch!r} is not between 1 and {MAX_BATCH:,}")
    number = choose_dtype(dtype, torch.device("cpu"))
    if isinstance(model, Dims):
        name, dims = f"d={model.n_text_state} L={model.n_text_layer}", model
    else:
        name = fspath(model)
        dims = known_dims(name) or load_checkpoint(model).dims
    e = dims.n_audio_ctx * dims.n_text_state
    return Report(
        model=name,
        dims=dims,
        batch=batch,
        dtype=str(number).removeprefix("torch."),
        e_cache=e,
        cross_kv=2 * e * dims.n_text_layer,
        self_kv=2 * dims.n_text_ctx * dims.n_text_state * dims.n_text_layer,
        predicted=predict(dims, batch),
        allocated=allocate(dims, batch, number),
    )


def run_report(arguments: argparse.Namespace) -> int:
    """The `report` command: `model` (none: the paper's five), `batch`, `dtype`, `json`."""
    models = arguments.model or PAPER_MODELS
    reports = [make_report(model, arguments.batch, arguments.dtype) for model in models]
    if arguments.json:
        print(json.dumps([report.as_dict() for report in reports]))
    else:
        print_report(reports, sys.stdout)
    return 0


Row = tuple[str, Callable[[Report], str]]  # a label, and the cell of a model


def print_report(reports: Sequence[Report], file: TextIO) -> None:
    """Print models side by side, as many as the width holds; same batch and dtype in all."""
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
    """A row for each of a report's "predicted" or "allocated" from number `first` on."""

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
    yield each("predicted speed-up", lambda p: _times(p.speedup), 1)


def _live_rows(batch: int) -> Iterator[list[Row]]:
    """What the presets allocate, in groups."""
    labels = [f"{preset} ({cross}, {own})" for preset, (cross, own) in PRESETS.items()]
    each = partial(_each, "allocated", labels)

    def without_e(report: Report) -> str:
        return _bytes(report.predicted[2].cache * getattr(torch, report.dtype).itemsize)

    yield [
        *each("a window", lambda a: _bytes(a.bytes_per_window)),
        ("paper's option 2, E not counted", without_e),
    ]
    if batch > 1:
        yield each(f"{batch} windows", lambda a: _bytes(a.total_bytes))
    yield each("saving", lambda a: _times(a.saving), 1)


def _notes(reports: Sequence[Report]) -> Iterator[str]:
    def every(name: str) -> str:
        return " or ".join(str(n) for n in sorted({getattr(r.dims, name) for r in reports}))

    yield (
        f"Predicted: from the dimensions alone, p = {every('n_audio_ctx')}, "
        f"n = {every('n_text_ctx')}, vocabulary {every('n_vocab')}. Source: {SOURCE} (its large is "
        "large-v2). Reads are values per token, parameters / batch + cache, E not counted: the "
        "paper assumes that E stays on the chip. A predicted speed-up is the ratio of reads; "
        "nothing was timed."
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


def _bytes(count: int) -> str:
    """Decimal units: 319 MB, 40.5 MB."""
    power = next((p for p in (1, 2, 3) if count < 999.5 * 1000**p), 4)
    size, unit = count / 1000**power, ("kB", "MB", "GB", "TB")[power - 1]
    return f"{size:.1f} {unit}" if size < 99.95 else f"{size:,.0f} {unit}"
