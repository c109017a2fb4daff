"""Compares Whisper implementations: python bench/peers.py [--shapes tiny,base] [--results FILE]

All use the same weights, converted to each engine's format (`peer_engines/`), the same audio and
the same number of threads. With --shapes: random weights in official shapes, noise of --seconds in
each file, and a fixed number of tokens each. With --model CHECKPOINT --folder AUDIO: a trained
checkpoint on recordings of at most 30 s each; with --jobs too: real work, see `peer_jobs.py`.

Engines are compared in two groups: those that compute with weights in float32, float16 or bfloat16,
and those with int8, q8_0 or q5_0. Those that are compared, of one shape and batch, take turns, each
in a process of its own: a round of one, a round of the next. On a GPU a first round is not counted.
With --results, each round is written as soon as it is measured. Ends in a table, and one line of
JSON.

docs/how/performance.md names the packages to install. Without --engines, those not installed are
left out, with the reason. One that fails is a row with its reason, and the exit status is 1.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby, product
from pathlib import Path

import torch
from peer_engines import PEERS, name_of
from peer_engines.case import GROUPS, Case, Peer
from peer_jobs import JOBS
from peers_processes import take_turns
from peers_summary import Results, summaries, table
from rows import Rows, add_results_flag, installed, listed
from timing import machine

from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.flags import positive

FEWEST = 4  # files of a round
LONGEST = 29  # seconds of noise, unless it is a job


def main() -> None:
    args = parsed()
    cases = list(cases_of(args))
    if not cases:
        raise SystemExit("nothing to measure: no engine that is installed has these dtypes")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends all that is started
    rows = Rows(args.results, "peers", torch.device(args.device))
    results: Results = {case: {} for case in cases}
    errors = dict[Case, str]()
    for model, of_model in groupby(cases, lambda case: case.model):
        with tempfile.TemporaryDirectory() as folder:
            for _, compared in groupby(of_model, lambda case: (case.job or case.batch, case.group)):
                for case, number, result in take_turns(list(compared), Path(folder), args.rounds):
                    forced = f", random weights, {case.tokens} tokens a file" * bool(case.tokens)
                    versions = {name: installed(name) for name in PEERS[case.engine].distributions}
                    what = {"of": model + forced, "peer": name_of(case), "round": number}
                    values = {"error": result} if isinstance(result, str) else result
                    row = rows.add(**what, **asdict(case), versions=versions, **values)
                    if "error" in row:
                        errors[case] = row["error"]
                    else:
                        results[case][number] = row
                    said = row.get("error") or f"{row['seconds_spent']:.1f} s"
                    of = case.job or model
                    print(f"{of}, batch {case.batch}, {name_of(case)}: {said}", file=sys.stderr)
    summary = summaries(results, errors)
    print(table([row for row in summary if "error" not in row]))
    here = {"bench": "peers", "machine": machine(torch.device(args.device))}
    print(json.dumps(here | {"rows": summary}))
    if errors:
        failed = (f"{case.model}, {name_of(case)}, batch {case.batch}" for case in errors)
        raise SystemExit(f"failed: {'; '.join(failed)}")


def parsed() -> argparse.Namespace:
    """The arguments; exits with status 2 if they do not fit together."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group()
    shapes = listed(str, OFFICIAL_DIMS)
    which.add_argument("--shapes", type=shapes, default=["tiny"], help="of random weights [tiny]")
    which.add_argument("--model", help="a trained checkpoint, with --folder")
    parser.add_argument("--folder", nargs="+", help="recordings for --model, or folders of them")
    parser.add_argument("--jobs", type=listed(str, JOBS), help=f"for --model: {','.join(JOBS)}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--engines", type=listed(str, PEERS), help="[all that are installed]")
    parser.add_argument("--dtypes", type=listed(str), help="[all that an engine has]")
    batches = "[1,8,64; of jobs 1,8,16, those that an engine may be best with]"
    parser.add_argument("--batches", type=listed(positive), help=batches)
    files = "of a round: the batch or 4, on a GPU four times that, but at most these [64]"
    parser.add_argument("--files", type=positive, default=64, help=files)
    parser.add_argument("--tokens", type=positive, default=50, help="of each file, with --shapes")
    short = range(1, LONGEST + 1)
    parser.add_argument("--seconds", type=int, choices=short, metavar="N", help="of noise [29]")
    parser.add_argument("--beams", type=positive, default=1, help="of engines that have them [1]")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    add_results_flag(parser)
    args = parser.parse_args()
    if (args.model is None) != (args.folder is None):
        parser.error("--model needs --folder, and --folder --model")
    if args.jobs and not args.model:
        parser.error("--jobs needs --model and --folder")
    args.batches = args.batches or ([1, 8, 16] if args.jobs else [1, 8, 64])
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; use --device cpu")
    reasons = {name: why_left_out(peer, args.device) for name, peer in PEERS.items()}
    if wrong := [f"{name} ({reasons[name]})" for name in args.engines or () if reasons[name]]:
        parser.error(f"cannot be measured: {', '.join(wrong)}")
    for name in [n for n in PEERS if reasons[n] and not args.engines]:
        print(f"{name} is left out: {reasons[name]}", file=sys.stderr)
    args.engines = args.engines or [name for name in PEERS if not reasons[name]]
    return args


def why_left_out(peer: Peer, device: str) -> str:
    """Why an engine cannot be measured, or ""."""
    if device not in peer.dtypes:
        return f"not on {device}"
    missing = " ".join(package for package in peer.packages if find_spec(package) is None)
    return missing and f"not installed: {missing}"


def cases_of(args: argparse.Namespace) -> Iterator[Case]:
    """All cases; those that are compared follow one another."""
    factor = 4 if args.device == "cuda" else 1  # that a round is long enough
    kinds = [
        (engine, dtype)
        for engine in args.engines
        for dtype in PEERS[engine].dtypes[args.device]
        if dtype in (args.dtypes or GROUPS)
        and (args.beams == 1 or PEERS[engine].beams)
        # with whole windows, short ones change nothing
        and not ("audio_window" in PEERS[engine].options and args.seconds in (None, LONGEST))
    ]
    groups, jobs = dict.fromkeys(GROUPS.values()), args.jobs or [None]
    audio = "\n".join(args.folder) if args.model else None
    for model in [args.model] if args.model else args.shapes:
        for job, group, batch, (engine, dtype) in product(jobs, groups, args.batches, kinds):
            if GROUPS[dtype] == group and fits(engine, job, batch, args.batches):
                files, longest = JOBS[job] if job else (factor * max(batch, FEWEST), LONGEST)
                files, seconds = min(args.files, files), min(args.seconds or longest, longest)
                tokens = None if args.model else args.tokens
                what = (model, engine, dtype, batch, files, tokens, args.threads, audio)
                yield Case(*what, args.device, seconds, job, args.beams)


def fits(engine: str, job: str | None, batch: int, batches: list[int]) -> bool:
    """Whether an engine has something new to measure at this batch: copies of one that decodes one
    window at a time are as fast with a larger one.
    """
    peer = PEERS[engine]
    if job:
        return batch in peer.jobs.get(job, ())
    if batch == 1 or peer.batches:
        return batch >= peer.least_batch
    return peer.in_workers and batch == min(b for b in batches if b > 1)


if __name__ == "__main__":
    main()
