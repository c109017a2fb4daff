"""Runs the `bench` command: compares caches and batch sizes on this machine.

Each measurement runs in a process of its own (see `measurement`), one at a time. The cases take
turns, so that a slowdown of the machine affects all of them.
"""

import argparse
import json
import logging
import multiprocessing
import os
import platform
import re
import signal
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from slimwhisper import __version__
from slimwhisper.commands.measurement import RECORDING_SECONDS, Case, measure
from slimwhisper.commands.tables import console, table
from slimwhisper.errors import OptionError, SlimWhisperError, wrap_unexpected
from slimwhisper.text import human_size

CASE_FLAGS = ("tokens", "model_dir", "adapter", "device", "dtype", "threads", "beam_size")
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
)


def run_bench(arguments: argparse.Namespace) -> int:
    """The `bench` command: measure, print a table, then one line of JSON."""
    cases = make_cases(arguments)
    measurements = measure_in_turns(cases, arguments.rounds)
    environment = measurements[0][0]["place"]
    answer = {
        "bench": "decode",
        "machine": describe_machine(environment["threads"], environment["gpu"]),
        "model": cases[0].model,
        "random": cases[0].random,
        "device": environment["device"],
        "dtype": environment["dtype"],
        "tokens": arguments.tokens,
        "beam_size": arguments.beam_size,
        "rounds": arguments.rounds,
        "recording_seconds": RECORDING_SECONDS,
        "rows": list(summarize(cases, measurements)),
    }
    if not arguments.json:
        print_bench(answer)
    print(json.dumps(answer), flush=True)
    return 0


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    """The measurements to make."""
    if arguments.random and arguments.model is None:
        raise OptionError("--random needs a shape; add --model, such as --model tiny")
    if arguments.adapter and (arguments.random or arguments.model is None):
        raise OptionError("--adapter cannot be used with random weights; give its --model")
    pairs = [
        (cache, batch, arguments.windows or max(FEWEST, batch, min(2 * batch, MOST)))
        for cache in dict.fromkeys(arguments.cache)
        for batch in dict.fromkeys(arguments.batch)
    ]
    same = {name: getattr(arguments, name) for name in CASE_FLAGS}
    same["model"] = arguments.model or "tiny"
    same["random"] = arguments.random or arguments.model is None
    return [Case(cache, batch, windows, **same) for cache, batch, windows in pairs]


def measure_in_turns(cases: Sequence[Case], rounds: int) -> list[list[Row]]:
    """All cases in each round; every other round in reverse order."""
    measurements: list[list[Row]] = [[] for _ in cases]
    with tqdm(total=rounds * len(cases), disable=None) as bar:
        for number in range(rounds):
            order = range(len(cases))
            for i in order if number % 2 == 0 else reversed(order):
                bar.set_description(_title(cases[i]))
                measurements[i].append(measure_in_process(cases[i]))
                bar.update()
    return measurements


def measure_in_process(case: Case) -> Row:
    """One measurement in a process of its own. Raises SlimWhisperError."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin) as process:
        try:
            return process.submit(measure, case).result()
        except BrokenProcessPool as error:
            remedy = "perhaps because memory ran out; choose a smaller --batch"
            raise SlimWhisperError(f"{_title(case)}: its process was killed, {remedy}") from error
        except Exception as error:
            raise wrap_unexpected(error, f"{_title(case)}: ") from None


def _begin() -> None:
    """Set the process up: no log lines or warnings, and Ctrl-C ends it without a traceback."""
    logging.disable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _title(case: Case) -> str:
    return f"{case.cache}, batch {case.batch}"


def summarize(cases: Sequence[Case], measurements: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """A row for each case: medians over the rounds. Rates are per second unless stated otherwise;
    "decode": of the time outside the encoder.
    """
    for case, rounds in zip(cases, measurements, strict=True):

        def median(key: str, less: str | None = None, rounds: Sequence[Row] = rounds) -> float:
            return statistics.median(r[key] - (r[less] if less else 0) for r in rounds)

        sampled, files = rounds[0]["tokens_sampled"], 3600 * case.windows / median("seconds")
        yield {
            "cache": case.cache,
            "forms": rounds[0]["forms"],
            "batch": case.batch,
            "windows": case.windows,
            "tokens_sampled": sampled,
            "tokens_per_second": sampled / median("seconds"),
            "decode_tokens_per_second": sampled / median("seconds", "encoder_seconds"),
            "times_real_time": files * RECORDING_SECONDS / 3600,
            "files_per_hour": files,
            "first_token_seconds": median("first_token_seconds"),
            "memory_bytes": round(median("memory_bytes")),
            "text_bytes": rounds[0]["text_bytes"],
            "peak_bytes": round(median("peak_bytes")),
            "seconds": [r["seconds"] for r in rounds],
            "encoder_seconds": [r["encoder_seconds"] for r in rounds],
            "fallbacks": rounds[0]["fallbacks"],
        }


def describe_machine(threads: int, gpu: str | None) -> dict[str, Any]:
    """The machine and the versions."""
    cpu, memory = platform.processor() or platform.machine(), None
    with suppress(OSError):
        if match := re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()):
            cpu = match[1].strip()
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_bytes": memory,
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "slimwhisper": __version__,
        "torch": version("torch"),
    }


def print_bench(answer: dict[str, Any]) -> None:
    """Print the table and explain its numbers."""
    page, rows = console(None), answer["rows"]
    machine, random = answer["machine"], ", random weights" if answer["random"] else ""
    search = f"{answer['beam_size']} beams" if answer["beam_size"] else "greedy"
    device = machine["gpu"] or f"threads: {machine['threads']}"
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    where = f"{answer['model']}{random}, {answer['dtype']} on {answer['device']} ({device})"
    what = f"{search}, {answer['tokens']} tokens a window; medians of {answer['rounds']}"
    page.print(f"{where}, {what}", style="bold")
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "python", "slimwhisper"))
    page.print(f"{machine['cpu']}, {machine['cores']} cores{memory}; {versions}")
    # one line per word, so that all columns fit in 80 characters
    headings = ("cache", *(heading.replace(" ", "\n") for heading, _ in COLUMNS))
    cells = ((row["cache"], *(cell(row) for _, cell in COLUMNS)) for row in rows)
    page.print(table(headings, cells, ("cache",), gap=1))
    page.print(
        f"Files: recordings of {RECORDING_SECONDS} s, one window each, read from memory. Decode "
        "alone: tokens per second outside the encoder. First token: time from the call, with one "
        "recording. Memory: the peak, minus the memory in use when the model was loaded."
    )
    sizes = ((r["cache"], r["text_bytes"], r["batch"]) for r in rows if r["text_bytes"])
    texts = [f"{cache} {human_size(size)} at batch {batch}" for cache, size, batch in sizes]
    page.print(f"Most memory of all texts at a time: {', '.join(texts) or 'not known'}.")
    for row in rows:
        for line in row["fallbacks"]:
            page.print(f"{row['cache']}, batch {row['batch']}: {line}")
