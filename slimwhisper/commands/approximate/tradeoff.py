"""The `tradeoff` command: sweeps caches over recordings; a table, a plot, lines of JSON."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from tqdm import tqdm

from slimwhisper.cache.file import read_header, read_learned
from slimwhisper.cache.forms import (
    PRESETS,
    brief,
    check_cache,
    check_form,
    choose_forms,
    cross_names,
    self_names,
)
from slimwhisper.commands.approximate.comparison import REFERENCE, Comparison
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.commands.approximate.pairs import SLIM8, default_pairs, ladder_pairs
from slimwhisper.commands.approximate.plot import draw, kept_front
from slimwhisper.commands.approximate.records import Records
from slimwhisper.commands.tables import table
from slimwhisper.digests import file_digest
from slimwhisper.errors import DependencyError, OptionError, SlimWhisperError
from slimwhisper.text import human_size, one_line, shown
from slimwhisper.types import Dims

WIDTH = 400  # characters of the table, at most
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


@dataclass(frozen=True, slots=True)
class Pair:
    """What to measure."""

    cross: str  # canonical spec
    self_: str  # canonical spec
    file: str | None = None  # of `calibrate`, which has what they learned

    @property
    def title(self) -> str:
        forms = f"{brief(self.cross)}+{brief(self.self_)}"
        return forms if self.file is None else f"{forms} of {Path(self.file).name}"

    @property
    def key(self) -> str:
        """In the lines of JSON."""
        forms = f"{self.cross}+{self.self_}"
        return forms if self.file is None else f"{forms} {file_digest(Path(self.file))}"


def run_tradeoff(arguments: argparse.Namespace) -> int:
    """Measure every pair that was not measured yet, then print and draw all of them."""
    comparison = Comparison.of(arguments)
    pairs = choose_pairs(arguments.specs, comparison.checkpoint.dims)
    records = Records(arguments.output_dir, comparison.conditions)
    missing = [pair for pair in pairs if pair.key not in records.found]
    if len(missing) < len(pairs):
        done = len(pairs) - len(missing)
        print(f"{done} of {len(pairs)} measured before: {records.path}", file=sys.stderr)
    failed = 0
    if missing:
        with tqdm(unit=" recordings", disable=None) as bar:
            comparison.heard = bar.update
            for pair, measured in measure_all(comparison, missing, bar):
                if isinstance(measured, Measured):
                    records.add(pair.key, asdict(measured))
                else:
                    failed += 1
                    bar.write(f"slimwhisper: {pair.title}: {measured}", file=sys.stderr)
    rows = [(p, Measured(**records.found[p.key])) for p in pairs if p.key in records.found]
    if not rows:
        return 1
    rows.sort(key=lambda row: (row[1].kept, row[1].loss))
    measured_rows = [measured for _, measured in rows]
    print_rows([p.title for p, _ in rows], measured_rows, sys.stdout)
    name, dtype = Path(comparison.checkpoint.name).name, comparison.setup.compute_type
    title = f"{name}, {dtype}: {measured_rows[0].sample}"
    try:
        paths = draw(measured_rows, arguments.output_dir, title)
        print(f"plot: {', '.join(map(str, paths))}")
    except DependencyError as error:
        print(f"slimwhisper: {error}", file=sys.stderr)
    print(f"lines of JSON: {records.path}")
    return 1 if failed else 0


def choose_pairs(specs: Sequence[str] | None, dims: Dims) -> list[Pair]:
    """The pairs to measure: those of `--specs`, or the table's. Raises OptionError."""
    if not specs:
        return [Pair(*forms) for forms in default_pairs(dims)]
    return list(dict.fromkeys(pair for spec in specs for pair in parse_pairs(spec, dims)))


def parse_pairs(text: str, dims: Dims) -> list[Pair]:
    """Of a preset's name, `slim8` for slim in float8, `CROSS+SELF`, or a file of `calibrate`; all
    rungs of an approximate form's name.
    """
    if text in PRESETS:
        return [Pair(*PRESETS[text])]
    if text == "slim8":
        return [Pair(*SLIM8)]
    if rungs := ladder_pairs(dims, text):
        return [Pair(*forms) for forms in rungs]
    cross, plus, own = text.partition("+")
    try:
        if not plus or Path(text).is_file():
            return [Pair(*choose_forms(check_cache(text)), text)]
        names = (*cross_names(False), SLIM8[0]), (*self_names(False), SLIM8[1])
        return [Pair(check_form(cross, names[0]), check_form(own, names[1]))]
    except OptionError as error:
        raise OptionError(
            f"specs: {error}; give a preset, slim8, an approximate form, CROSS+SELF such as e+x, "
            "or a file of calibrate"
        ) from None


def measure_all(
    comparison: Comparison, pairs: Sequence[Pair], bar: "tqdm[Any]"
) -> Iterator[tuple[Pair, Measured | str]]:
    """Each pair with what was measured, or why the model cannot have it."""
    bar.total = len(comparison.recordings) * (1 + len(pairs))
    bar.set_description("exact")
    count = len(comparison.reference.recordings)
    bar.total = len(comparison.recordings) + count * len(pairs)
    for number, pair in enumerate(pairs, start=1):
        bar.set_description(pair.title)
        try:
            learned = None
            if pair.file is not None:
                layers = comparison.checkpoint.dims.n_text_layer
                digest = comparison.conditions["checkpoint"]
                learned = read_learned(read_header(pair.file), digest, layers)
            measured = comparison.measure(pair.cross, pair.self_, learned)
        except (ValueError, SlimWhisperError) as error:
            yield pair, shown(one_line(error))
            continue
        bar.write(f"{number} of {len(pairs)}: {pair.title}: {measured.line}", file=sys.stderr)
        yield pair, measured


def print_rows(titles: Sequence[str], rows: Sequence[Measured], file: TextIO) -> None:
    """The table; a star marks the Pareto front of bytes kept and loss."""
    # as wide as the table: cells that are cut would say nothing
    console = Console(file=file, highlight=False, markup=False, emoji=False, width=WIDTH)
    console.print(f"{rows[0].sample}; {'+'.join(REFERENCE)} is the reference")
    referred = any(row.said_error is not None for row in rows)
    columns = [c for c in COLUMNS if referred or c[0] != REFERRED]
    front = set(kept_front(rows))
    cells = (
        ("*" if i in front else "", title, *(cell(row) for _, cell in columns))
        for i, (title, row) in enumerate(zip(titles, rows, strict=True))
    )
    headings = ("", "caches", *(heading for heading, _ in columns))
    console.print(table(headings, cells, ("", "caches")))
    console.print(
        "*: on the Pareto front of bytes kept and loss. kept: of a window of 30 s with one text; "
        "smaller: than keys and values;\nread: of the caches by one step of one text, at half of "
        "its context; words, tokens: edits against exact decoding;\nrecordings: with other tokens; "
        "logits: root mean square error, of their standard deviation; s: to decode everything."
    )
    for line in dict.fromkeys(line for row in rows for line in row.fallbacks):
        console.print(f"note: {line}")
