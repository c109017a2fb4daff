"""Runs the `inspect` command: reports the cache forms that the guard accepts, layer by layer."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from slimwhisper.audio.load import as_waveform
from slimwhisper.audio.mel import first_window
from slimwhisper.cache.forms import cross_names, self_names
from slimwhisper.cache.guard import MARGIN, Inspection
from slimwhisper.checkpoint.settings import GenerationSettings
from slimwhisper.commands.tables import console, table
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
    specs: list[tuple[Literal["cross", "self"], str]] = [("cross", f) for f in cross_names()]
    specs += [("self", f) for f in self_names()]
    records = [
        record
        for attention, form in specs
        if form != "kv"
        for record in inspect_form(checkpoint, attention, form, dtype, activations)[1]
    ]
    settings, name = checkpoint.settings, str(dtype).removeprefix("torch.")
    if arguments.json:
        rows = [asdict(row) for row in settings.rows()]
        layers = [_finite(asdict(record)) for record in records]
        content = {"model": checkpoint.name, "dtype": name, "margin": MARGIN}
        print(json.dumps({**content, "layers": layers, "settings": rows}))
    else:
        source = arguments.audio or "bursts of noise (use --audio FILE for real speech)"
        print_inspections(checkpoint.name, name, source, records)
        print_settings(settings)
    return 0


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Infinities, which JSON does not have, become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def print_inspections(model: str, dtype: str, source: str, records: Sequence[Inspection]) -> None:
    page = console()
    page.print(f"{model}, {dtype}, measured on {source}")
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
    page.print(table((*words[:2], *numbers, words[2]), cells, words))
    page.print(
        "condition: number of the matrix that the form inverts, else of W_K; max folded: largest\n"
        "folded weight; error: relative error of keys and values against float64; baseline: the\n"
        f"same for form kv. A form is exact if its error is at most {MARGIN:g} times baseline."
    )


def print_settings(settings: GenerationSettings) -> None:
    """Print the model's own decoding settings, and the flags that override them."""
    page, rows = console(), settings.rows()
    if not rows:
        page.print("\nsettings: Whisper's; the model has none of its own")
        return
    page.print(f"\nsettings of {settings.file}, see docs/checkpoints.md")
    headings = ("setting", "value", "effect", "overridden by")
    cells = ((row.name, row.value, row.effect, row.flag) for row in rows)
    page.print(table(headings, cells, headings))
