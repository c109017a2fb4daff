"""Runs the `tradeoff` command: compares caches on recordings, as a table or as lines of JSON."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict

from tqdm import tqdm

from slimwhisper.commands.tables import console, table
from slimwhisper.errors import SlimWhisperError
from slimwhisper.research.comparison import REFERENCE, Comparison
from slimwhisper.research.pairs import FormPair, MeasuredCache, choose_pairs
from slimwhisper.text import error_line, escape_line, human_size

REFERRED = "against references"  # the column that is left out where there are none
COLUMNS: dict[str, Callable[[MeasuredCache], str]] = {
    "kept": lambda m: human_size(m.kept),
    "smaller": lambda m: f"{m.times_smaller:.1f}x",
    "read per token": lambda m: human_size(m.read),
    "words": lambda m: f"{m.word_error:.2f} %",
    REFERRED: lambda m: "-" if m.reference_error is None else f"{m.reference_error:.2f} %",
    "recordings": lambda m: f"{m.recordings_changed} of {m.recordings}",
    "tokens": lambda m: f"{m.token_error:.2f} %",
    "logits": lambda m: f"{m.logit_error:.1e}",
    "s": lambda m: f"{m.seconds:.1f}",
}


def run_tradeoff(arguments: argparse.Namespace) -> int:
    """Measure every pair, and print all of them; 1 if the model cannot have one of them, which a
    line explains.
    """
    comparison = Comparison.of(arguments)
    pairs = choose_pairs(arguments.specs, comparison.checkpoint.dims)
    rows = {}
    with tqdm(unit=" recordings", desc="exact", disable=None) as bar:
        comparison.on_recording = bar.update
        count = len(comparison.reference.recordings)
        bar.total = len(comparison.recordings) + count * len(pairs)
        for number, pair in enumerate(pairs, start=1):
            bar.set_description(pair.title)
            try:
                measured = rows[pair] = comparison.measure(pair)
            except (ValueError, SlimWhisperError) as error:
                reason = escape_line(error_line(error))
                bar.write(f"slimwhisper: {pair.title}: {reason}", file=sys.stderr)
                continue
            bar.write(f"{number} of {len(pairs)}: {pair.title}: {measured.line}", file=sys.stderr)
            if arguments.json:
                print(json.dumps({"caches": pair.title} | asdict(measured)), flush=True)
    if rows and not arguments.json:
        print_rows(rows)
    return 0 if len(rows) == len(pairs) else 1


def print_rows(rows: Mapping[FormPair, MeasuredCache]) -> None:
    """The table, by rising bytes."""
    measured = sorted(rows.items(), key=lambda row: (row[1].kept, row[1].loss))
    page = console()
    page.print(f"{measured[0][1].sample}; {REFERENCE.title} is the reference")
    referred = any(row.reference_words for row in rows.values())
    columns = {name: cell for name, cell in COLUMNS.items() if referred or name != REFERRED}
    cells = ((pair.title, *(cell(row) for cell in columns.values())) for pair, row in measured)
    page.print(table(("caches", *columns), cells, ("caches",)))
    page.print(
        "kept: cache of a 30-s window with one text; smaller: than keys and values;\n"
        "read per token: cache that a step of one text reads at half of its context; words, "
        "tokens: edits against exact decoding;\nrecordings: those whose tokens changed; logits: "
        "root mean square error relative to their standard deviation; s: seconds to decode "
        "everything."
    )
    for line in dict.fromkeys(line for row in rows.values() for line in row.fallbacks):
        page.print(f"note: {line}")
