"""The `tradeoff` command: sweeps caches over recordings; a table, a plot, lines of JSON."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from slimwhisper.cache.file import read_header, read_learned
from slimwhisper.commands.approximate.comparison import REFERENCE, Comparison
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.commands.approximate.pairs import Pair, choose_pairs
from slimwhisper.commands.approximate.plot import draw, pareto_front
from slimwhisper.commands.tables import console, table
from slimwhisper.errors import DependencyError, OutputError, SlimWhisperError
from slimwhisper.text import human_size, one_line, shown

LINES = "tradeoff.jsonl"
REFERRED = "against references"  # the column that is left out where there are none
COLUMNS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("kept", lambda m: human_size(m.kept)),
    ("smaller", lambda m: f"{m.times_smaller:.1f}x"),
    ("read a token", lambda m: human_size(m.read)),
    ("words", lambda m: f"{m.word_error:.2f} %"),
    (REFERRED, lambda m: "-" if m.said_error is None else f"{m.said_error:.2f} %"),
    ("recordings", lambda m: f"{m.recordings_changed} of {m.recordings}"),
    ("tokens", lambda m: f"{m.token_error:.2f} %"),
    ("logits", lambda m: f"{m.logit_error:.1e}"),
    ("s", lambda m: f"{m.seconds:.1f}"),
)


def run_tradeoff(arguments: argparse.Namespace) -> int:
    """Measure every pair that was not measured yet, then print and draw all of them."""
    comparison = Comparison.of(arguments)
    pairs = choose_pairs(arguments.specs, comparison.checkpoint.dims)
    folder = arguments.output_dir
    found = read_lines(folder, comparison.conditions)
    missing = [pair for pair in pairs if pair.key not in found]
    if len(missing) < len(pairs):
        done = len(pairs) - len(missing)
        print(f"{done} of {len(pairs)} measured before: {folder / LINES}", file=sys.stderr)
    found |= measure_all(comparison, missing, folder) if missing else {}
    rows = {pair: found[pair.key] for pair in pairs if pair.key in found}
    if not rows:
        return 1
    print_rows(rows)
    measured = list(rows.values())
    dtype = comparison.conditions["dtype"]
    title = f"{Path(comparison.checkpoint.name).name}, {dtype}: {measured[0].sample}"
    try:
        print(f"plot: {', '.join(map(str, draw(measured, folder, title)))}")
    except DependencyError as error:
        print(f"slimwhisper: {error}", file=sys.stderr)
    print(f"lines of JSON: {folder / LINES}")
    return 0 if len(rows) == len(pairs) else 1


def measure_all(comparison: Comparison, pairs: Sequence[Pair], folder: Path) -> dict[str, Measured]:
    """What was measured of each pair that the model can have, by its key; each is written to the
    folder, or said why not.
    """
    found = {}
    with tqdm(unit=" recordings", disable=None) as bar:
        comparison.heard = bar.update
        bar.total = len(comparison.recordings) * (1 + len(pairs))
        bar.set_description("exact")
        count = len(comparison.reference.recordings)
        bar.total = len(comparison.recordings) + count * len(pairs)
        for number, pair in enumerate(pairs, start=1):
            bar.set_description(pair.title)
            try:
                measured = comparison.measure(pair.cross, pair.self_, _learned(comparison, pair))
            except (ValueError, SlimWhisperError) as error:
                reason = shown(one_line(error))
                bar.write(f"slimwhisper: {pair.title}: {reason}", file=sys.stderr)
                continue
            bar.write(f"{number} of {len(pairs)}: {pair.title}: {measured.line}", file=sys.stderr)
            add_line(folder, comparison.conditions, pair.key, measured)
            found[pair.key] = measured
    return found


def _learned(comparison: Comparison, pair: Pair) -> Any:
    """What a file of `calibrate` has learned; None: the pair is of none."""
    if pair.file is None:
        return None
    layers = comparison.checkpoint.dims.n_text_layer
    return read_learned(read_header(pair.file), comparison.conditions["checkpoint"], layers)


def read_lines(folder: Path, conditions: Mapping[str, Any]) -> dict[str, Measured]:
    """What earlier runs measured under the same conditions, by the pairs' keys; other lines, and
    torn ones, are left alone. Makes the folder. Raises OutputError.
    """
    found: dict[str, Measured] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LINES).open("a+b") as file:
            file.seek(0)
            lines = file.read().split(b"\n")
            if lines[-1]:  # torn
                file.write(b"\n")
    except OSError as error:
        raise _unwritable(folder, error) from error
    for line in lines:
        try:
            record = json.loads(line)
            if record["conditions"] == conditions:
                found[record["pair"]] = Measured(**record["measured"])
        except (ValueError, TypeError, KeyError):
            continue
    return found


def add_line(folder: Path, conditions: Mapping[str, Any], pair: str, measured: Measured) -> None:
    """In one write; it is on disk when this returns. Raises OutputError."""
    record = {"pair": pair, "conditions": conditions, "measured": asdict(measured)}
    try:
        with (folder / LINES).open("ab", buffering=0) as file:
            file.write(json.dumps(record).encode("ascii") + b"\n")
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> OutputError:
    place = shown(folder / LINES)
    return OutputError(f"{place}: cannot be written ({one_line(error)}); choose another -o")


def print_rows(rows: Mapping[Pair, Measured]) -> None:
    """The table; a star marks the Pareto front of bytes kept and loss."""
    measured = sorted(rows.items(), key=lambda row: (row[1].kept, row[1].loss))
    page, front = console(), {id(row) for row in pareto_front(list(rows.values()))}
    page.print(f"{measured[0][1].sample}; {'+'.join(REFERENCE)} is the reference")
    referred = any(row.said for row in rows.values())
    columns = [c for c in COLUMNS if referred or c[0] != REFERRED]
    cells = (
        ("*" if id(row) in front else "", pair.title, *(cell(row) for _, cell in columns))
        for pair, row in measured
    )
    headings = ("", "caches", *(heading for heading, _ in columns))
    page.print(table(headings, cells, ("", "caches")))
    page.print(
        "*: on the Pareto front of bytes kept and loss. kept: of a window of 30 s with one text; "
        "smaller: than keys and values;\nread: of the caches by one step of one text, at half of "
        "its context; words, tokens: edits against exact decoding;\nrecordings: with other tokens; "
        "logits: root mean square error, of their standard deviation; s: to decode everything."
    )
    for line in dict.fromkeys(line for row in rows.values() for line in row.fallbacks):
        page.print(f"note: {line}")
