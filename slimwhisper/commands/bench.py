"""The `bench` command: compares caches, batch sizes and openai-whisper on this machine.

Each measurement runs in a separate process (see `measurement`), one at a time. They take turns, so
that a machine that slows down slows all of them.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from tqdm import tqdm

from slimwhisper import __version__
from slimwhisper.commands.measurement import RECORDING_SECONDS, Case, Measured
from slimwhisper.commands.tables import table
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.text import human_size

WHISPER = "openai-whisper"
AS_ASKED = ("tokens", "model_dir", "adapter", "device", "dtype", "threads", "beam_size")
FEWEST, MOST = 4, 128  # windows of a measurement, unless a batch takes more


Row = dict[str, Any]  # of the JSON, see `summarize`

COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("batch", lambda r: f"{r['batch']}"),
    ("files", lambda r: f"{r['windows']}"),
    ("tokens a second", lambda r: f"{r['tokens_per_second']:,.0f}"),
    ("decode alone", lambda r: f"{r['decode_tokens_per_second']:,.0f}"),
    ("x real time", lambda r: f"{r['times_real_time']:.1f}"),
    ("files an hour", lambda r: f"{r['files_per_hour']:,.0f}"),
    ("first token", lambda r: f"{r['first_token_seconds']:.2f} s"),
    ("memory", lambda r: human_size(r["memory_bytes"])),
    ("x whisper", lambda r: f"{r['times_whisper']:.2f}"),
)


def run_bench(arguments: argparse.Namespace) -> int:
    """The `bench` command: measure, print a table, then one line of JSON."""
    cases = make_cases(arguments)
    found = measure_in_turns(cases, arguments.rounds)
    rows = summarize(cases, found)
    answer = {
        "bench": "decode",
        "machine": describe_machine(found[0][0]),
        "model": cases[0].model,
        "random": cases[0].random,
        "device": found[0][0].device,
        "dtype": found[0][0].dtype,
        "tokens": arguments.tokens,
        "beam_size": arguments.beam_size,
        "rounds": arguments.rounds,
        "recording_seconds": RECORDING_SECONDS,
        "rows": rows,
    }
    if not arguments.json:
        print_bench(answer, rows, sys.stdout)
    print(json.dumps(answer), flush=True)
    return 0


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    """The measurements to make, openai-whisper first."""
    if arguments.random and arguments.model is None:
        raise OptionError("--random: name the shape, such as --model tiny")
    if arguments.adapter and (arguments.random or arguments.model is None):
        raise OptionError("--adapter: random weights have none; give its --model")
    pairs: list[tuple[str | None, int, int]] = [
        (cache, batch, arguments.windows or max(FEWEST, batch, min(2 * batch, MOST)))
        for cache in dict.fromkeys(arguments.cache)
        for batch in dict.fromkeys(arguments.batch)
    ]
    if arguments.against_whisper:
        pairs.insert(0, (None, 1, max(windows for _, _, windows in pairs)))
    return [
        Case(
            cache=cache,
            batch=batch,
            windows=windows,
            model=arguments.model or "tiny",
            random=arguments.random or arguments.model is None,
            **{name: getattr(arguments, name) for name in AS_ASKED},
        )
        for cache, batch, windows in pairs
    ]


def measure_in_turns(cases: Sequence[Case], rounds: int) -> list[list[Measured]]:
    """All cases in each round; every other round in reverse order."""
    found: list[list[Measured]] = [[] for _ in cases]
    with tqdm(total=rounds * len(cases), disable=None) as bar:
        for number in range(rounds):
            order = range(len(cases))
            for i in order if number % 2 == 0 else reversed(order):
                bar.set_description(_title(cases[i]))
                found[i].append(measure_apart(cases[i]))
                bar.update()
    return found


def measure_apart(case: Case) -> Measured:
    """One measurement in a separate process. Raises what that raised."""
    done = subprocess.run(
        [sys.executable, "-m", "slimwhisper.commands.measurement"],
        input=json.dumps(asdict(case)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode < 0:
        raise SlimWhisperError(
            f"{_title(case)}: ended by signal {-done.returncode}, perhaps for want of memory; "
            "choose a smaller --batch"
        )
    if done.returncode > 0:
        reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise SlimWhisperError(f"{_title(case)}: {reason}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise (OptionError if answer["usage"] else SlimWhisperError)(answer["error"])
    return Measured(**answer)


def _title(case: Case) -> str:
    return WHISPER if case.cache is None else f"{case.cache}, batch {case.batch}"


def summarize(cases: Sequence[Case], found: Sequence[Sequence[Measured]]) -> list[Row]:
    """A row for each case: medians over the rounds. Rates are per second unless stated otherwise;
    "decode": of the time outside the encoder; "times_whisper": of openai-whisper's files per hour.
    """
    hourly = [
        3600 * case.windows / statistics.median(m.seconds for m in measured)
        for case, measured in zip(cases, found, strict=True)
    ]
    whisper = hourly[0] if cases[0].cache is None else None

    def row(case: Case, measured: Sequence[Measured], files: float) -> Row:
        def median(value: Callable[[Measured], float]) -> float:
            return statistics.median(map(value, measured))

        first = measured[0]
        return {
            "cache": case.cache or WHISPER,
            "forms": None if first.forms is None else "+".join(first.forms),
            "batch": case.batch,
            "windows": case.windows,
            "tokens_sampled": first.sampled,
            "tokens_per_second": median(lambda m: m.sampled / m.seconds),
            "decode_tokens_per_second": median(
                lambda m: m.sampled / (m.seconds - m.encoder_seconds)
            ),
            "times_real_time": files * RECORDING_SECONDS / 3600,
            "files_per_hour": files,
            "first_token_seconds": median(lambda m: m.first_token_seconds),
            "memory_bytes": round(median(lambda m: m.memory_bytes)),
            "peak_bytes": round(median(lambda m: m.peak_bytes)),
            "times_whisper": None if whisper is None else files / whisper,
            "seconds": [m.seconds for m in measured],
            "encoder_seconds": [m.encoder_seconds for m in measured],
            "fallbacks": first.fallbacks,
        }

    return [row(*parts) for parts in zip(cases, found, hourly, strict=True)]


def describe_machine(measured: Measured) -> dict[str, Any]:
    """The machine and the versions."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": measured.threads,
        "memory_bytes": _memory_bytes(),
        "gpu": measured.gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "slimwhisper": __version__,
        "torch": version("torch"),
        WHISPER: version(WHISPER),
    }


def _cpu_name() -> str:
    with suppress(OSError):
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def print_bench(answer: dict[str, Any], rows: Sequence[Row], file: TextIO) -> None:
    """Print the table and what its numbers mean."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    machine, random = answer["machine"], ", random weights" if answer["random"] else ""
    search = f"{answer['beam_size']} beams" if answer["beam_size"] else "greedy"
    place = machine["gpu"] or f"threads: {machine['threads']}"
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    console.print(
        f"{answer['model']}{random}, {answer['dtype']} on {answer['device']} ({place}), {search}, "
        f"{answer['tokens']} tokens a window; medians of {answer['rounds']}",
        style="bold",
    )
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores{memory}; torch {machine['torch']}, "
        f"python {machine['python']}, slimwhisper {machine['slimwhisper']}"
    )
    columns = COLUMNS if rows[0]["times_whisper"] is not None else COLUMNS[:-1]
    # one line per word, so that all columns fit in 80 characters
    headings = ("cache", *(heading.replace(" ", "\n") for heading, _ in columns))
    cells = ((row["cache"], *(cell(row) for _, cell in columns)) for row in rows)
    console.print(table(headings, cells, ("cache",), gap=1))
    console.print(
        f"Files: recordings of {RECORDING_SECONDS} s, one window each, read from memory. Decode "
        "alone: tokens a second of the time outside the encoder. First token: from the call, one "
        "recording. Memory: the peak, less what was in use with the model loaded."
    )
    for row in rows:
        for line in row["fallbacks"]:
            console.print(f"{row['cache']}, batch {row['batch']}: {line}")
