"""Files of results, one line of JSON for each: python bench/rows.py --results FILE

The benchmarks append a row to the file as soon as it is measured, with the machine in it, so that
one that is stopped loses only what it has not measured yet. As a command, appends the machine
alone, and prints it; with --tables FILE ..., prints the rows of files as tables in Markdown.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from timing import machine, print_machine

import slimwhisper

Row = dict[str, Any]
T = TypeVar("T")


def short_name(gpu: str) -> str:
    """A GPU's model: "NVIDIA H100 80GB HBM3" -> "h100", "NVIDIA GeForce RTX 4090" -> "4090"."""
    words = re.findall(r"\w+", gpu.lower())
    return next((w for w in words if re.fullmatch(r"[a-z]{0,2}\d+s?", w)), "-".join(words))


class Rows:
    """Makes rows, and appends them to a file if there is one."""

    def __init__(self, path: Path | None, bench: str, device: torch.device) -> None:
        """bench: which one measured, such as "decode"."""
        self._path = path
        here = machine(device)
        gpu = str(here.get("gpu", here["processor"]))
        self.common = {
            "bench": bench,
            "device": short_name(gpu) if device.type == "cuda" else device.type,
            "cores": len(os.sched_getaffinity(0)),
            "triton": installed("triton"),
            "commit": commit(),
            **here,
            "gpu": gpu,
        }

    def add(self, **values: Any) -> Row:
        """Append one row, and return it. `model`, `preset`, `cache_dtype`, `dtype`, `batch`, `what`
        and `milliseconds` mean what they mean in docs/internals/gpu.md.
        """
        row = self.common | values
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return row


@cache
def commit() -> str | None:
    """The commit of the slimwhisper that is measured, with "-dirty" if files were changed since;
    else $COMMIT; None if there is neither.
    """
    package = Path(slimwhisper.__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(package.parent), *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", package.name)
        return git("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("COMMIT")


def installed(package: str) -> str:
    """Its version, or "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def preset_of(form: str | None) -> dict[str, str | None]:
    """A form's two columns: "slim-fp8" -> preset "slim", cache_dtype "fp8"; None -> both None."""
    preset, _, number = (form or "").partition("-")
    return {"preset": preset or None, "cache_dtype": number or None}


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and the least and the most: "1.25 (1.10 to 1.40)"; one value alone."""
    middle, *ends = (format(f(values), form) for f in (statistics.median, min, max))
    return middle if len(values) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def listed(
    kind: Callable[[str], T], among: Collection[T] | None = None
) -> Callable[[str], list[T]]:
    """The type of a flag that takes several values with commas between."""

    def parse(text: str) -> list[T]:
        values = [kind(part.strip()) for part in text.split(",")]
        for value in values:
            if among is not None and value not in among:
                names = ", ".join(map(str, among))
                raise argparse.ArgumentTypeError(f"{value} is not one of {names}")
        return list(dict.fromkeys(values))

    return parse


def add_results_flag(parser: argparse.ArgumentParser) -> None:
    """--results, the file that the rows are appended to."""
    parser.add_argument(
        "--results", type=checked_path, help="append each row to this file, as JSON"
    )


def checked_path(text: str) -> Path:
    """The path of a file that can be written, so that this is known before anything is measured."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path}: no file can be written there; choose another")
    return path


def tables(rows: Iterable[Row]) -> Iterator[str]:
    """A Markdown table for the rows of each bench, with the columns in which they differ."""
    benches: dict[str, list[Row]] = {}
    for row in rows:
        benches.setdefault(row["bench"], []).append(row)
    for some in benches.values():
        names = list(dict.fromkeys(name for row in some for name in row))
        fixed = {n: some[0].get(n) for n in names if all(r.get(n) == some[0].get(n) for r in some)}
        varied = [name for name in names if name not in fixed]
        known = ", ".join(f"{name} {value}" for name, value in fixed.items() if value is not None)
        yield f"{known}\n\n" + table(varied, ([row.get(n, "") for n in varied] for row in some))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=Path, nargs="+", help="only print the rows of these files")
    add_results_flag(parser)
    args = parser.parse_args()
    if args.tables:
        lines = [line for path in args.tables for line in path.read_text("utf-8").splitlines()]
        print(*tables(map(json.loads, lines)), sep="\n\n")
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    Rows(args.results, "machine", device).add(machine=machine(device))
    print_machine(device)


if __name__ == "__main__":
    main()
