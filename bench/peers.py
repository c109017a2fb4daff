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
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from peers_engines import PEERS, Audio, Case
from peers_formats import convert
from peers_summary import draw, summaries, table
from rows import Row, Rows, add_results_flag, installed, listed, stoppable
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


def main() -> None:
    args = parsed()
    checkpoint = load_checkpoint(args.model) if args.model else None
    digest = weights_digest(checkpoint.state) if checkpoint else None
    cases, failed = list(cases_of(args)), list[str]()
    if not cases:
        raise SystemExit("nothing to measure: no engine that is installed has these dtypes")
    rows = Rows(args.results, "peers", torch.device(args.device))
    settings = {case: settings_of(case, digest) for case in cases}
    results = {case: {row["round"]: row for row in rows.kept(**settings[case])} for case in cases}
    with stoppable(args.results):
        for model, group in groupby(cases, lambda case: case.model):
            left = [case for case in group if missing(results[case], args.rounds)]
            if not left:
                continue
            with tempfile.TemporaryDirectory() as folder:
                weights = checkpoint or random_checkpoint(OFFICIAL_DIMS[model])
                # half precision is that of the official checkpoints
                dtype = torch.float16 if args.device == "cuda" else torch.float32
                for kind in dict.fromkeys(PEERS[case.engine].format for case in left):
                    convert(weights, Path(folder), kind, dtype)
                for _, compared in groupby(left, lambda case: (case.batch, case.dtype)):
                    turns = take_turns(list(compared), folder, results, args.rounds, failed)
                    for case, number, result in turns:
                        title = {"of": title_of(case), "peer": case.name, "round": number}
                        results[case][number] = rows.add(**title, **settings[case], **result)
    summary = summaries(cases, results)
    print(table(summary))
    here = machine(torch.device(args.device))
    if args.plot:
        draw(summary, str(here.get("gpu", here["processor"])), args.plot)
    print(json.dumps({"bench": "peers", "machine": here, "rows": summary}))
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
    args = parser.parse_args()
    if (args.model is None) != (args.folder is None):
        parser.error("--model needs --folder, and --folder --model")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; use --device cpu")
    supported = [
        name
        for name, peer in PEERS.items()
        if args.device in peer.dtypes and find_spec(peer.package) is not None
    ]
    if wrong := [name for name in args.engines or () if name not in supported]:
        parser.error(f"not installed, or not on {args.device}: {', '.join(wrong)}")
    args.engines = args.engines or supported
    return args


def cases_of(args: argparse.Namespace) -> Iterator[Case]:
    """All cases; those that are compared follow one another."""
    peers = {name: PEERS[name].dtypes[args.device] for name in args.engines}
    all_dtypes = dict.fromkeys(dtype for dtypes in peers.values() for dtype in dtypes)
    factor = 4 if args.device == "cuda" else 1  # that a round is long enough
    for model in [args.model] if args.model else args.shapes:
        for batch in args.batches:
            for dtype in args.dtypes or all_dtypes:
                for engine, dtypes in peers.items():
                    if dtype in dtypes and (batch == 1 or PEERS[engine].batches):
                        yield Case(
                            model=model,
                            engine=engine,
                            dtype=dtype,
                            batch=batch,
                            files=min(args.files, factor * max(batch, FEWEST)),
                            tokens=None if args.model else args.tokens,
                            threads=args.threads,
                            audio=str(args.folder) if args.model else None,
                            device=args.device,
                        )


def settings_of(case: Case, digest: str | None) -> Row:
    """What says that two rows measured the same. digest: of the trained weights."""
    versions = {name: installed(name) for name in PEERS[case.engine].distributions}
    return {**asdict(case), "versions": versions, "weights": digest}


def title_of(case: Case) -> str:
    of = f"{case.model}, random weights, {case.tokens} tokens a file"
    return of if case.tokens else case.model


def missing(results: Mapping[int, Row], rounds: int) -> list[int]:
    return [number for number in range(rounds) if number not in results]


# -- processes -------------------------------------------------------------------------------------


def take_turns(
    cases: list[Case],
    folder: str,
    results: Mapping[Case, Mapping[int, Row]],
    rounds: int,
    failed: list[str],
) -> Iterator[tuple[Case, int, Row]]:
    """Measure cases that are compared with one another, round by round; those that could not be
    measured are named in `failed`.
    """
    context, workers = get_context("spawn"), dict[Case, tuple[Any, Any]]()
    try:
        for number in range(rounds):
            for case in [case for case in cases if number in missing(results[case], rounds)]:
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
    loaded = [load_audio(str(path)) for path in paths]
    short = [audio for audio in loaded if len(audio) <= SECONDS * 16_000]
    return (short * (1 + case.files // len(short)))[: case.files]


if __name__ == "__main__":
    main()
