"""Compares Whisper implementations: python bench/peers.py [--shapes tiny,base] [--results FILE]

All use the same weights, converted to each project's format (`peers_engines.py`), the same audio
and the same number of threads. With --shapes: random weights in official shapes, 29 s of noise per
file, and a fixed number of tokens each. With --model CHECKPOINT --folder AUDIO: a trained
checkpoint on recordings of at most 30 s each.

Those that are compared, of one shape, batch and dtype, take turns, each in a process of its own: a
round of one, a round of the next. On a GPU a first round is not counted. With --results, each round
is written as soon as it is measured, and a round that is there, with the same settings, versions,
machine and commit, is not measured again. Ends in a table, and one line of JSON; --plot writes a
plot as PNG and SVG.

Needs the packages to measure: pip install transformers faster-whisper ctranslate2 pywhispercpp.
Without --engines, those not installed are left out. One that fails is left out, and the exit status
is 1.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from peers_engines import PEERS, Audio, Case, convert
from rows import Row, Rows, add_results_flag, installed, listed, spread, stoppable
from rows import table as markdown
from timing import machine

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.audio.load import load_audio
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.commands.measurement import Memory, recordings
from slimwhisper.digests import weights_digest
from slimwhisper.flags import positive

PAUSE = 0.5  # seconds between turns: threads of the one before stop to wait for work
FEWEST = 4  # files of a round
SECONDS = 30  # the longest file; a longer one would need a second window
OURS = "slimwhisper"
MEDIANS = ("hours_an_hour", "tokens_per_second", "first_text_seconds", "memory_mb", "peak_mb")


def main() -> None:
    asked = parsed()
    checkpoint = load_checkpoint(asked.model) if asked.model else None
    digest = weights_digest(checkpoint.state) if checkpoint else None
    cases, failed = list(cases_of(asked)), list[str]()
    if not cases:
        raise SystemExit("nothing to measure: no engine that is installed has these dtypes")
    rows = Rows(asked.results, "peers", torch.device(asked.device))
    settings = {case: settings_of(case, digest) for case in cases}
    found = {case: {row["round"]: row for row in rows.kept(**settings[case])} for case in cases}
    with stoppable(asked.results):
        for model, some in groupby(cases, lambda case: case.model):
            left = [case for case in some if missing(found[case], asked.rounds)]
            if not left:
                continue
            with tempfile.TemporaryDirectory() as folder:
                ready = checkpoint or random_checkpoint(OFFICIAL_DIMS[model])
                half = asked.device == "cuda"  # as the official checkpoints are
                dtype = torch.float16 if half else torch.float32
                for kind in dict.fromkeys(PEERS[case.engine].format for case in left):
                    convert(ready, Path(folder), kind, dtype)
                for _, together in groupby(left, lambda case: (case.batch, case.dtype)):
                    turns = take_turns(list(together), folder, found, asked.rounds, failed)
                    for case, number, result in turns:
                        title = {"of": title_of(case), "peer": case.name, "round": number}
                        found[case][number] = rows.add(**title, **settings[case], **result)
    summed = summaries(cases, found)
    print(table(summed))
    this = machine(torch.device(asked.device))
    if asked.plot:
        draw(summed, str(this.get("gpu", this["processor"])), asked.plot)
    print(json.dumps({"bench": "peers", "machine": this, "rows": summed}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def parsed() -> argparse.Namespace:
    """The arguments; exits with status 2 if they do not fit together."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group()
    shapes = listed(str, OFFICIAL_DIMS)
    which.add_argument("--shapes", type=shapes, default=["tiny"], help="of random weights [tiny]")
    which.add_argument("--model", help="a trained checkpoint, with --folder")
    parser.add_argument("--folder", type=Path, help="recordings for --model")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--engines", type=listed(str, PEERS), help="[all that are installed]")
    parser.add_argument("--dtypes", type=listed(str), help="[all that an engine has]")
    parser.add_argument("--batches", type=listed(positive), default=[1, 8, 64], help="[1,8,64]")
    files = "of a round: the batch or 4, on a GPU four times that, but at most these [64]"
    parser.add_argument("--files", type=positive, default=64, help=files)
    parser.add_argument("--tokens", type=positive, default=50, help="of each file, with --shapes")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--plot", type=Path, help="name of the PNG and SVG")
    add_results_flag(parser)
    asked = parser.parse_args()
    if (asked.model is None) != (asked.folder is None):
        parser.error("--model needs --folder, and --folder --model")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; use --device cpu")
    able = [name for name, peer in PEERS.items() if asked.device in peer.dtypes]
    absent = [name for name in able if find_spec(PEERS[name].package) is None]
    if wrong := [name for name in asked.engines or () if name not in able or name in absent]:
        parser.error(f"not installed, or not on {asked.device}: {', '.join(wrong)}")
    asked.engines = asked.engines or [name for name in able if name not in absent]
    return asked


def cases_of(asked: argparse.Namespace) -> Iterator[Case]:
    """All cases; those that are compared follow one another."""
    peers = {name: PEERS[name].dtypes[asked.device] for name in asked.engines}
    every = dict.fromkeys(dtype for dtypes in peers.values() for dtype in dtypes)
    most = 4 if asked.device == "cuda" else 1  # that a round is long enough
    for model in [asked.model] if asked.model else asked.shapes:
        for batch in asked.batches:
            for dtype in asked.dtypes or every:
                for engine, dtypes in peers.items():
                    if dtype in dtypes and (batch == 1 or PEERS[engine].batches):
                        yield Case(
                            model=model,
                            engine=engine,
                            dtype=dtype,
                            batch=batch,
                            files=min(asked.files, most * max(batch, FEWEST)),
                            tokens=None if asked.model else asked.tokens,
                            threads=asked.threads,
                            audio=str(asked.folder) if asked.model else None,
                            device=asked.device,
                        )


def settings_of(case: Case, digest: str | None) -> Row:
    """What says that two rows measured the same. digest: of the trained weights."""
    versions = {name: installed(name) for name in PEERS[case.engine].distributions}
    return {**asdict(case), "versions": versions, "weights": digest}


def title_of(case: Case) -> str:
    of = f"{case.model}, random weights, {case.tokens} tokens a file"
    return of if case.tokens else case.model


def missing(found: Mapping[int, Row], rounds: int) -> list[int]:
    return [number for number in range(rounds) if number not in found]


# -- processes -------------------------------------------------------------------------------------


def take_turns(
    cases: list[Case],
    folder: str,
    found: Mapping[Case, Mapping[int, Row]],
    rounds: int,
    failed: list[str],
) -> Iterator[tuple[Case, int, Row]]:
    """Measure cases that are compared with one another, round by round; those that could not be
    measured are named in `failed`.
    """
    context, workers = get_context("spawn"), dict[Case, tuple[Any, Any]]()
    try:
        for number in range(rounds):
            for case in [case for case in cases if number in missing(found[case], rounds)]:
                if case not in workers:
                    pipe, theirs = context.Pipe()
                    process = context.Process(target=answer, args=(theirs, case, folder))
                    process.start()
                    theirs.close()
                    workers[case] = pipe, process
                time.sleep(PAUSE)
                try:
                    workers[case][0].send("a round")
                    result = workers[case][0].recv()
                except (EOFError, OSError):
                    result = "its process ended"
                where = f"{case.model}, {case.name}, batch {case.batch}"
                if isinstance(result, str):
                    print(f"{where}: {result}", file=sys.stderr)
                    failed.append(where)
                    cases.remove(case)
                    continue
                print(f"{where}: {result['seconds']:.1f} s", file=sys.stderr)
                yield case, number, result
    finally:
        for pipe, process in workers.values():
            pipe.close()
            process.join()


def answer(pipe: "Connection[Any, Any]", case: Case, converted: str) -> None:
    """A process: load an engine, then answer until the pipe is closed, also by the parent's end."""
    os.dup2(2, 1)  # what libraries print is not among the results
    warnings.simplefilter("ignore")
    try:
        torch.set_num_threads(case.threads)
        audio = inputs(case)
        run = PEERS[case.engine].load(case, converted)
        memory, first = Memory(torch.device(case.device)), 0.0
        for _ in range(2):  # the first is a warm-up
            since = time.perf_counter()
            list(run(audio[:1]))
            first = time.perf_counter() - since
        if case.device == "cuda":  # all that is compiled, planned and recorded for this batch
            list(run(audio))
        while True:
            pipe.recv()
            pipe.send({"first_text_seconds": first, **measured(case, run, audio, memory)})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException:  # of another project
        pipe.send(traceback.format_exc()[-2000:])


def measured(case: Case, run: Any, audio: list[Audio], memory: Memory) -> Row:
    """A round: all files. `memory_mb`: the peak, less what was in use with the model loaded."""
    since = time.perf_counter()
    pairs = list(run(audio))
    seconds = time.perf_counter() - since
    counts = [n for _, n in pairs]
    if case.tokens and any(abs(n - case.tokens) > 1 for n in counts):
        raise SystemExit(f"{case.name}: {counts[:9]} tokens, not {case.tokens} each")
    known = case.device == "cpu" or PEERS[case.engine].by_torch
    return {
        "seconds": seconds,
        "hours_an_hour": sum(map(len, audio)) / 16_000 / seconds,
        "tokens_per_second": sum(counts) / seconds,
        "sampled": sum(counts),
        "memory_mb": memory.grown() / 1e6 if known else None,
        "peak_mb": memory.peak() / 1e6 if known else None,
        "texts": [text.strip() for text, _ in pairs] if case.audio else None,
    }


def inputs(case: Case) -> list[Audio]:
    """The recordings of a case."""
    if case.audio is None:
        return recordings(case.files)
    paths = sorted(p for p in Path(case.audio).iterdir() if p.suffix in AUDIO_SUFFIXES)
    found = [load_audio(str(path)) for path in paths if "broken" not in path.name]
    found = [audio for audio in found if len(audio) <= SECONDS * 16_000]
    return (found * (1 + case.files // len(found)))[: case.files]


# -- results ---------------------------------------------------------------------------------------


def summaries(cases: Sequence[Case], found: Mapping[Case, Mapping[int, Row]]) -> list[Row]:
    """A row for each case that was measured: the medians of its rounds, and the ratio of our speed
    to its own in each round that both have.
    """
    rows = []
    for case in cases:
        if not (rounds := found[case]):
            continue
        beside = [found[c] for c in cases if compared(c, case) and c.engine == OURS]
        ours = beside[0] if beside and case.engine != OURS else {}
        both = sorted(rounds.keys() & ours.keys())
        row: Row = {
            "model": case.model,
            "peer": case.name,
            "dtype": case.dtype,
            "batch": case.batch,
            "files": case.files,
        }
        for name in MEDIANS:
            values = [r[name] for r in rounds.values() if r[name] is not None]
            row[name] = statistics.median(values) if values else None
        first = next(iter(rounds.values()))
        row["sampled"] = first["sampled"]
        row["ratios"] = [ours[n]["hours_an_hour"] / rounds[n]["hours_an_hour"] for n in both]
        if first["texts"] is not None:
            reference = next(r for c in cases for r in found[c].values())
            row["same_texts"] = same_texts(reference["texts"], first["texts"])
        rows.append(row)
    return rows


def compared(one: Case, other: Case) -> bool:
    """Whether they took turns."""
    return all(getattr(one, k) == getattr(other, k) for k in ("model", "batch", "dtype"))


def same_texts(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """The share of files for which both have the same words."""
    pairs = list(zip(ours, theirs, strict=False))
    return sum(a.split() == b.split() for a, b in pairs) / len(pairs)


def table(rows: Sequence[Row]) -> str:
    """The summaries as a table in Markdown. A batch with fewer files than places says so."""
    head = ["model", "", "windows at a time", "hours of audio per hour", "slimwhisper to it"]
    head += ["first text, ms", "memory that decoding adds, MB", "peak, MB"]
    texts = any("same_texts" in row for row in rows)
    lines = []
    for row in rows:
        places, files = row["batch"], row["files"]
        memory = ("-" if row[k] is None else f"{row[k]:,.0f}" for k in ("memory_mb", "peak_mb"))
        lines.append(
            (
                *(row["model"], row["peer"]),
                str(places) if files >= places else f"{files} of {places}",
                f"{row['hours_an_hour']:,.1f}",
                spread(row["ratios"]) if row["ratios"] else "-",
                f"{1000 * row['first_text_seconds']:,.0f}",
                *memory,
                *([f"{100 * row['same_texts']:.0f} %"] if texts else []),
            )
        )
    return markdown([*head, *(["same words"] if texts else [])], lines)


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Bars of audio hours per hour, a panel for each model, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(model, list(some)) for model, some in groupby(rows, lambda row: row["model"])]
    heights = [len(some) for _, some in panels]
    size = 8, 0.45 * sum(heights) + 1.2 * len(panels)
    figure, all_axes = pyplot.subplots(
        *(len(panels), 1), figsize=size, height_ratios=heights, squeeze=False, layout="constrained"
    )
    for (model, some), axes in zip(panels, all_axes.flat, strict=True):
        names = [f"{row['peer']}, batch {row['batch']}" for row in some][::-1]
        speeds = [row["hours_an_hour"] for row in some][::-1]
        colors = ["#c2410c" if name.startswith(OURS) else "#94a3b8" for name in names]
        bars = axes.barh(names, speeds, color=colors)
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.set(title=f"{model}: {title}", xlabel="hours of audio in an hour")
        axes.spines[["top", "right"]].set_visible(False)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)


if __name__ == "__main__":
    main()
