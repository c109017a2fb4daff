"""Compares Whisper implementations: python bench/peers.py [--shape tiny]

All use the same weights, converted to each project's format (`converted.py`), the same audio and
the same number of threads. They take turns, each measurement in a separate process. With --shape:
random weights in an official shape, 29 s of noise per file, and a fixed number of tokens each. With
--model CHECKPOINT --folder AUDIO: a trained checkpoint on recordings of at most 30 s each. Ends in
one line of JSON, and writes a plot as PNG and SVG. With --results, also appends each row to a file
as soon as it is measured.

Needs the packages to measure: pip install transformers faster-whisper pywhispercpp. Those not
installed are left out, with a message. One that fails is left out too, and the exit status is 1.
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
from rows import Rows, add_results_flag
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
    memory_mb: float | None  # the peak, less what was in use with the model loaded
    peak_mb: float | None  # of the process, or of its tensors on a GPU; None: not known
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
    device = torch.device(case.device)
    memory = Memory(device)
    known = device.type == "cpu" or PEERS[case.peer].by_torch
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
        memory_mb=memory.grown() / 1e6 if known else None,
        peak_mb=memory.peak() / 1e6 if known else None,
        texts=[text.strip() for text, _ in pairs],
    )


def apart(case: Case) -> Measured | str:
    """Measure in a new process; the end of its errors if it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(asdict(case))],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return done.stderr[-2000:]
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
            *("-" if row[k] is None else f"{row[k]:.0f}" for k in ("memory_mb", "peak_mb")),
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
        "memory_mb": found[0].memory_mb and median(lambda m: m.memory_mb or 0),
        "peak_mb": found[0].peak_mb and median(lambda m: m.peak_mb or 0),
        "tokens": found[0].tokens,
        "seconds": [m.seconds for m in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shape", default="tiny", choices=OFFICIAL_DIMS, help="of random weights")
    which.add_argument("--model", help="a trained checkpoint, with --folder")
    parser.add_argument("--folder", help="recordings for --model")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="all of the device's")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument(
        "--files", type=int, default=64, help="at most; 4 for each place of a batch, 8 at batch 1"
    )
    parser.add_argument("--tokens", type=int, default=50, help="of each file, with --shape")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--plot", type=Path, help="name of the PNG and SVG")
    add_results_flag(parser)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(asdict(measure(Case(**json.loads(asked.one))))))
        return
    if asked.model and not asked.folder:
        parser.error("--model needs --folder")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; use --device cpu")
    able = [name for name, peer in PEERS.items() if asked.device in peer.devices]
    asked.peers = asked.peers or able
    if strange := [name for name in asked.peers if name not in able]:
        parser.error(f"not on {asked.device}: {', '.join(strange)}; choose from {', '.join(able)}")
    with tempfile.TemporaryDirectory() as folder:
        failed = compare(asked, folder)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def compare(asked: argparse.Namespace, folder: str) -> list[str]:
    """Measure all cases in turn; write the table, the plot and the line of JSON.

    Returns the cases that failed.
    """
    checkpoint: Checkpoint
    if asked.model:
        checkpoint = load_checkpoint(asked.model)
    else:
        checkpoint = random_checkpoint(OFFICIAL_DIMS[asked.shape])
    peers = [p for p in asked.peers if find_spec(PEERS[p].package)]
    for peer in set(asked.peers) - set(peers):
        print(f"{peer}: not installed, left out")
    half = asked.device == "cuda"  # as the official checkpoints are; half as long to read
    weights = torch.float16 if half else torch.float32
    failed: list[str] = []
    for kind in dict.fromkeys(PEERS[p].format for p in peers):
        try:
            convert(checkpoint, Path(folder), [kind], weights)
        except Exception as error:  # of another project; the others can be measured
            print(f"{kind}: {error}", file=sys.stderr)
            failed.append(f"conversion to {kind}")
            peers = [p for p in peers if PEERS[p].format != kind]
    del checkpoint
    cases = [
        Case(
            peer=peer,
            batch=batch,
            files=min(asked.files, max(4 * batch, 8)),
            tokens=None if asked.model else asked.tokens,
            threads=asked.threads,
            converted=folder,
            audio=asked.folder if asked.model else None,
            device=asked.device,
        )
        for batch in asked.batches
        for peer in peers
        if batch == 1 or PEERS[peer].batches
    ]
    device = torch.device(asked.device)
    title = asked.model or f"{asked.shape}, random weights, {asked.tokens} tokens a file"
    written = Rows(asked.results, "peers", device)
    found: dict[Case, list[Measured]] = {case: [] for case in cases}
    for number in range(asked.rounds):
        for case in list(found):
            name, result = f"{case.peer}, batch {case.batch}", apart(case)
            if isinstance(result, str):
                print(f"{name}: {result}", file=sys.stderr)
                failed.append(name)
                del found[case]
                continue
            found[case].append(result)
            print(f"{name}: {result.seconds:.1f} s", file=sys.stderr)
            if number == asked.rounds - 1:
                written.add(of=title, **summary(case.peer, case.batch, found[case]))
    if not found:
        return failed
    rows = [summary(case.peer, case.batch, measured) for case, measured in found.items()]
    first, *_ = found.values()
    whisper = next(
        (r["hours_an_hour"] for r in rows if r["peer"] == "openai-whisper"), float("nan")
    )
    for row, measured in zip(rows, found.values(), strict=True):
        row["times_whisper"] = row["hours_an_hour"] / whisper
        if asked.model:
            row["same_texts"] = same_texts(first[0].texts, measured[0].texts)
    print(table(rows))
    this = machine(device)
    if asked.plot:
        draw(rows, f"{title}: {this.get('gpu', this['processor'])}", asked.plot)
    print(json.dumps({"bench": "peers", "machine": this, "of": title, "rows": rows}))
    return failed


def same_texts(ours: list[str], theirs: list[str]) -> float:
    """The share of files for which both have the same words."""
    pairs = list(zip(ours, theirs, strict=False))
    return sum(a.split() == b.split() for a, b in pairs) / len(pairs)


if __name__ == "__main__":
    main()
