"""Files of results, one line of JSON for each: python bench/rows.py --results FILE

The benchmarks append a row to the file as soon as it is measured, with the machine in it, so that
one that is stopped loses only what it has not measured yet; some resume when they are started again
(`Rows.kept`). As a command, appends the machine alone, and prints it; with --tables FILE ...,
prints the rows of files as tables in Markdown.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # what only reads rows does without torch
    import torch

Row = dict[str, Any]
T = TypeVar("T")


def short_name(gpu: str) -> str:
    """A GPU's model: "NVIDIA H100 80GB HBM3" -> "h100", "NVIDIA GeForce RTX 4090" -> "4090"."""
    words = re.findall(r"\w+", gpu.lower())
    return next((w for w in words if re.fullmatch(r"[a-z]{0,2}\d+s?", w)), "-".join(words))


class Rows:
    """Appends rows to a file, and finds those that are there; with no file, does nothing."""

    def __init__(self, path: Path | None, bench: str, device: "torch.device") -> None:
        """bench: which one measured, such as "decode"."""
        from timing import machine

        self._path = path
        known = path is not None and path.exists() and commit() is not None
        self._rows = read([path]) if path is not None and known else []
        this_machine = machine(device)
        gpu = str(this_machine.get("gpu", this_machine["processor"]))
        self.common = {
            "bench": bench,
            "device": short_name(gpu) if device.type == "cuda" else device.type,
            "gpu": gpu,
            "cores": len(os.sched_getaffinity(0)),
            "driver": this_machine.get("driver"),
            "torch": this_machine["torch"],
            "triton": installed("triton"),
            "python": this_machine["python"],
            "commit": commit(),
        }

    def add(self, **values: Any) -> Row:
        """Append one row, and return it. `model`, `preset`, `cache_dtype`, `dtype`, `batch`, `what`
        and `milliseconds` mean what they mean in docs/internals/gpu.md.
        """
        row = self.common | values
        if self._path is not None:
            with self._path.open("a+b") as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    file.write(b"\n")  # an earlier run was stopped within a line
                file.write(json.dumps(row).encode() + b"\n")
        self._rows.append(row)
        return row

    def kept(self, **case: Any) -> list[Row]:
        """The rows of this case that were added, or are in the file and were measured on the same
        machine, with the same versions and the same commit; none of the file where the commit is
        not known.
        """
        same = self.common | case
        return [row for row in self._rows if same.items() <= row.items()]


def read(paths: Iterable[Path]) -> list[Row]:
    """All rows, in order. A line cut off by the end of a run is left out, with a message."""
    rows = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                print(f"{path}, line {number} is no JSON, left out")
    return rows


@cache
def commit() -> str | None:
    """The commit of the slimwhisper that is measured, with a digest of what was changed since; else
    $COMMIT; None if there is neither.
    """
    spec = find_spec("slimwhisper")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin)

    def git(*words: str) -> bytes:
        command = ["git", "-C", str(package.parent), *words]
        return subprocess.run(command, capture_output=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", package.name)
        changes = git("diff", "HEAD")
        head = git("rev-parse", "--short=12", "HEAD").decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("COMMIT")
    return head + (f"+{blake2b(changes, digest_size=4).hexdigest()}" if changes else "")


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


def listed(kind: Callable[[str], T], among: Iterable[T] | None = None) -> Callable[[str], list[T]]:
    """The type of a flag that takes several values with commas between."""

    def parse(text: str) -> list[T]:
        values = [kind(part.strip()) for part in text.split(",")]
        known = None if among is None else list(among)
        for value in values:
            if known is not None and value not in known:
                names = ", ".join(map(str, known))
                raise argparse.ArgumentTypeError(f"{value} is not one of {names}")
        return list(dict.fromkeys(values))

    return parse


@contextmanager
def stoppable(results: Path | None) -> Iterator[None]:
    """What is measured within ends in a line at Ctrl-C or SIGTERM, with what it started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        again = f"; to resume, start again with --results {results}" if results else ""
        print(f"stopped{again}", file=sys.stderr)
        raise SystemExit(130) from None


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
        print(*tables(read(args.tables)), sep="\n\n")
        return
    import torch
    from timing import machine, print_machine

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    Rows(args.results, "machine", device).add(machine=machine(device))
    print_machine(device)


if __name__ == "__main__":
    main()
