"""Defines the flags of `report`, `tradeoff` and `calibrate`."""

import argparse
from typing import Any

from slimwhisper.flags import MODEL, THREADS, add_model_flags, positive
from slimwhisper.types import DTYPES


def add_report(commands: Any) -> None:
    """The parser of `report`."""
    p = commands.add_parser(
        "report",
        description="Computes the memory that each cache takes, for each preset; of files and "
        "folders, also lists the settings.",
    )
    p.add_argument("model", nargs="*", help="names, files or folders [the paper's five]")
    p.add_argument("--batch", type=int, default=64, help="windows decoded together [64]")
    p.add_argument("--dtype", choices=DTYPES, default="float16", help="of the caches [float16]")
    p.add_argument("--guard", action="store_true", help="measure which forms are exact, by layer")
    p.add_argument("--json", action="store_true", help="print JSON")


def add_tradeoff(commands: Any) -> None:
    """The parser of `tradeoff`."""
    p = commands.add_parser(
        "tradeoff",
        description="Decodes recordings with every cache of a table, and compares with exact "
        "decoding. See docs/internals/caches.md.",
    )
    _add_comparison(p)
    p.add_argument("--json", action="store_true", help="print a line of JSON for each cache")
    p.add_argument(
        "--specs",
        nargs="+",
        metavar="CROSS+SELF",
        help="caches to measure: presets, slim8 (in float8), pairs of forms with settings, names "
        "of approximate forms (a ladder of settings each), or files of calibrate [presets, slim8, "
        "and all approximate forms]",
    )


def add_calibrate(commands: Any) -> None:
    """The parser of `calibrate`."""
    p = commands.add_parser(
        "calibrate",
        description="Searches the settings of the approximate caches on your recordings, and "
        "writes a small file for --cache. See docs/internals/caches.md.",
    )
    _add_comparison(p)
    help = "a file, NAME.safetensors"
    p.add_argument("-o", "--output", required=True, metavar="FILE", help=help)
    help = "percentage points of the word error, such as 0.5%% [0.5%%]"
    p.add_argument("--target_loss", default="0.5%", help=help)


def _add_comparison(p: argparse.ArgumentParser) -> None:
    """Add the flags of both commands."""
    p.add_argument("model", help=MODEL)
    help = "files, or folders (searched recursively); NAME.txt beside NAME.wav has its text"
    p.add_argument("audio", nargs="+", help=help)
    add_model_flags(p, caches=False)
    p.add_argument("--language", default="en", help="spoken in all recordings [en]")
    p.add_argument("--threads", **THREADS)
    p.add_argument("--batch_size", type=positive, help="windows decoded together [as transcribe]")
    help = "windows of 30 s on which logits are compared and rotations learned [8]"
    p.add_argument("--windows", type=positive, default=8, help=help)
