"""The `inspect` command: which cache forms the guard accepts for a model, layer by layer."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, TextIO

from rich.console import Console

from slimwhisper.audio.load import as_waveform
from slimwhisper.audio.mel import first_window
from slimwhisper.cache.forms import cross_names, self_names
from slimwhisper.cache.guard import MARGIN, Inspection
from slimwhisper.checkpoint.settings import Settings
from slimwhisper.commands.tables import table
from slimwhisper.devices import choose_device, choose_dtype
from slimwhisper.flags import load_weights
from slimwhisper.model.calibration import inspect_form, record_activations


def run_inspect(arguments: argparse.Namespace) -> int:
    """Measure every form of every layer, print a table or JSON."""
    dtype = choose_dtype(arguments.dtype, choose_device(None))
    checkpoint = load_weights(arguments)
    mel = None
    if arguments.audio is not None:
        dims = checkpoint.dims
        mel = first_window(as_waveform(arguments.audio), dims.n_mels, dims.window_frames)
    activations = record_activations(checkpoint, mel)
    records: list[Inspection] = []
    every: tuple[tuple[Literal["cross", "self"], tuple[str, ...]], ...] = (
        ("cross", cross_names()),
        ("self", self_names()),
    )
    for attention, forms in every:
        for form in forms:
            if form != "kv":
                records += inspect_form(checkpoint, attention, form, dtype, activations)[1]
    settings = checkpoint.settings
    name = str(dtype).removeprefix("torch.")
    if arguments.json:
        print(
            json.dumps(
                as_json(checkpoint.name, name, records)
                | {"settings": [asdict(row) for row in settings.rows()]}
            )
        )
    else:
        source = arguments.audio or "bursts of noise (--audio FILE measures on real speech)"
        print_inspections(checkpoint.name, name, source, records, sys.stdout)
        print_settings(settings, sys.stdout)
    return 0


def as_json(model: str, dtype: str, records: Sequence[Inspection]) -> dict[str, Any]:
    """Every number of the table; infinities, which JSON does not have, become null."""
    layers = [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(record).items()
        }
        for record in records
    ]
    return {"model": model, "dtype": dtype, "margin": MARGIN, "layers": layers}


def print_inspections(
    model: str, dtype: str, source: str, records: Sequence[Inspection], file: TextIO
) -> None:
    console = Console(file=file, highlight=False, soft_wrap=True)
    console.print(f"{model}, {dtype}, measured on {source}")
    numbers = ("layer", "condition", "max folded", "error", "baseline")
    cells = (
        (
            r.attention,
            r.form,
            str(r.layer),
            f"{r.condition:.1e}",
            f"{r.largest:.1e}" + ("" if r.fits else " too big"),
            f"{r.error:.1e}",
            f"{r.baseline_error:.1e}",
            f"{r.used} instead" if r.fell_back else "exact",
        )
        for r in records
    )
    words = ("attention", "form", "decision")
    console.print(table((*words[:2], *numbers, words[2]), cells, words))
    console.print(
        "condition: of the matrix that the form inverts, else of W_K; max folded: largest folded "
        "weight;\nerror: of keys and values against float64, relative; baseline: the same of form "
        f"kv.\nA form is exact where its error is at most {MARGIN:g} times the baseline's."
    )


def print_settings(settings: Settings, file: TextIO) -> None:
    """What came with the model about decoding, and the flags that override it."""
    console = Console(file=file, highlight=False, soft_wrap=True)
    rows = settings.rows()
    if not rows:
        console.print("\nsettings: Whisper's own; none came with the model")
        return
    console.print(f"\nsettings of {settings.file}, see docs/checkpoints.md")
    headings = ("setting", "value", "effect", "overridden by")
    cells = ((row.name, row.value, row.effect, row.flag) for row in rows)
    console.print(table(headings, cells, headings))
