"""Compares Whisper implementations: python bench/peers.py [--shape tiny]

All use the same weights, converted to each project's format (`converted.py`), the same audio and
the same number of threads. They take turns, each measurement in a separate process. With --shape:
random weights in an official shape, 29 s of noise per file, and a fixed number of tokens each. With
--model CHECKPOINT --folder AUDIO: a trained checkpoint on recordings of at most 30 s each. Ends in
one line of JSON, and writes a plot as PNG and SVG.

Needs the packages to measure: pip install transformers faster-whisper pywhispercpp. Those not
installed are left out, with a message.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from converted import convert
from engines import PEERS, Audio, Case
from timing import machine

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.audio.load import load_audio
from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.commands.measurement import Memory, recordings

SECONDS = 30  # the longest file; a longer one would need a second window


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float  # all files
    first_text_seconds: float  # one file alone, from the call to its text
    tokens: int
    audio_seconds: float
    memory_mb: float  # the peak, less what was in use with the model loaded
    peak_mb: float
    texts: list[str]


def inputs(case: Case) -> list[Audio]:
    """The recordings of a case."""
    if case.audio is None:
        return recordings(case.files)
    paths = sorted(p for p in Path(case.audio).iterdir() if p.suffix in AUDIO_SUFFIXES)
    found = [load_audio(str(path)) for path in paths if "broken" not in path.name]
    found = [a for a in found if len(a) <= SECONDS * 16_000]
    return (found * (1 + case.files // len(found)))[: case.files]


def measure(case: Case) -> Measured:
    """Measure a case; runs in a separate process."""
    torch.set_num_threads(case.threads)
    audio = inputs(case)
    run = PEERS[case.peer].load(case)
    memory = Memory(torch.device("cpu"))
    waits = []
    for _ in range(3):
        since = time.perf_counter()
        next(iter(run(audio[:1])))
        waits.append(time.perf_counter() - since)
    since = time.perf_counter()
    pairs = list(run(audio))
    seconds = time.perf_counter() - since
    if case.tokens and any(abs(n - case.tokens) > 1 for _, n in pairs):
        raise SystemExit(f"{case.peer}: {[n for _, n in pairs][:9]} tokens, not {case.tokens} each")
    return Measured(
        seconds=seconds,
        first_text_seconds=min(waits[1:]),
        tokens=sum(n for _, n in pairs),
        audio_seconds=sum(map(len, audio)) / 16_000,
        memory_mb=memory.grown() / 1e6,
        peak_mb=memory.peak() / 1e6,
        texts=[text.strip() for text, _ in pairs],
    )


def apart(case: Case) -> Measured:
    """Measure in a new process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(asdict(case))],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{case.peer}, batch {case.batch}: {done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a table."""
    head = (
        "",
        "batch",
        "audio h/h",
        "of openai-whisper",
        "tokens/s",
        "first text",
        "MB more",
        "peak MB",
        *(["same words"] if "same_texts" in rows[0] else []),
    )
    lines = [f"{head[0]:26}" + "".join(f"{h:>19}" for h in head[1:])]
    for row in rows:
        cells = (
            str(row["batch"]),
            f"{row['hours_an_hour']:.1f}",
            f"{row['times_whisper']:.2f}",
            f"{row['tokens_per_second']:.0f}",
            f"{row['first_text_seconds'] * 1000:.0f} ms",
            f"{row['memory_mb']:.0f}",
            f"{row['peak_mb']:.0f}",
            *([f"{100 * row['same_texts']:.0f} %"] if "same_texts" in row else []),
        )
        lines.append(f"{row['peer']:26}" + "".join(f"{c:>19}" for c in cells))
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Bars of audio hours per hour, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [f"{row['peer']}, batch {row['batch']}" for row in rows][::-1]
    speeds = [row["hours_an_hour"] for row in rows][::-1]
    colors = ["#c2410c" if n.startswith("slimwhisper") else "#94a3b8" for n in names]
    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    bars = axes.barh(names, speeds, color=colors)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set(title=title, xlabel="hours of audio in an hour")
    axes.spines[["top", "right"]].set_visible(False)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)


def summary(peer: str, batch: int, found: list[Measured]) -> dict[str, Any]:
    """Medians of the rounds."""

    def median(of: Callable[[Measured], float]) -> float:
        return statistics.median(map(of, found))

    return {
        "peer": peer,
        "batch": batch,
        "hours_an_hour": median(lambda m: m.audio_seconds / m.seconds),
        "tokens_per_second": median(lambda m: m.tokens / m.seconds),
        "first_text_seconds": median(lambda m: m.first_text_seconds),
        "memory_mb": median(lambda m: m.memory_mb),
        "peak_mb": median(lambda m: m.peak_mb),
        "tokens": found[0].tokens,
        "seconds": [m.seconds for m in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shape", default="tiny", choices=OFFICIAL_DIMS, help="of random weights")
    which.add_argument("--model", help="a trained checkpoint, with --folder")
    parser.add_argument("--folder", help="recordings for --model")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument(
        "--files", type=int, default=64, help="at most; 4 for each place of a batch, 8 at batch 1"
    )
    parser.add_argument("--tokens", type=int, default=50, help="of each file, with --shape")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--plot", type=Path, help="name of the PNG and SVG")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(asdict(measure(Case(**json.loads(asked.one))))))
        return
    if asked.model and not asked.folder:
        parser.error("--model needs --folder")
    with tempfile.TemporaryDirectory() as folder:
        compare(asked, folder)


def compare(asked: argparse.Namespace, folder: str) -> None:
    """Measure all cases in turn; write the table, the plot and the line of JSON."""
    checkpoint: Checkpoint
    if asked.model:
        checkpoint = load_checkpoint(asked.model)
    else:
        checkpoint = random_checkpoint(OFFICIAL_DIMS[asked.shape])
    peers = [p for p in asked.peers if find_spec(PEERS[p].package)]
    for peer in set(asked.peers) - set(peers):
        print(f"{peer}: not installed, left out")
    convert(checkpoint, Path(folder), {PEERS[p].format for p in peers})
    cases = [
        Case(
            peer=peer,
            batch=batch,
            files=min(asked.files, max(4 * batch, 8)),
            tokens=None if asked.model else asked.tokens,
            threads=asked.threads,
            converted=folder,
            audio=asked.folder if asked.model else None,
        )
        for batch in asked.batches
        for peer in peers
        if batch == 1 or PEERS[peer].batches
    ]
    found: list[list[Measured]] = [[] for _ in cases]
    for _ in range(asked.rounds):
        for case, results in zip(cases, found, strict=True):
            results.append(apart(case))
            print(f"{case.peer}, batch {case.batch}: {results[-1].seconds:.1f} s", file=sys.stderr)
    rows = [summary(c.peer, c.batch, ms) for c, ms in zip(cases, found, strict=True)]
    whisper = next(
        (r["hours_an_hour"] for r in rows if r["peer"] == "openai-whisper"), float("nan")
    )
    for row, results in zip(rows, found, strict=True):
        row["times_whisper"] = row["hours_an_hour"] / whisper
        if asked.model:
            row["same_texts"] = same_texts(found[0][0].texts, results[0].texts)
    title = asked.model or f"{asked.shape}, random weights, {asked.tokens} tokens a file"
    print(table(rows))
    if asked.plot:
        draw(rows, f"{title}: {machine(torch.device('cpu'))['processor']}", asked.plot)
    answer = {"bench": "peers", "machine": machine(torch.device("cpu")), "of": title, "rows": rows}
    print(json.dumps(answer))


def same_texts(ours: list[str], theirs: list[str]) -> float:
    """The share of files for which both have the same words."""
    pairs = list(zip(ours, theirs, strict=False))
    return sum(a.split() == b.split() for a, b in pairs) / len(pairs)


if __name__ == "__main__":
    main()
