"""Speed beside other programs: python bench/busy.py --model CHECKPOINT --folder AUDIO [--threads 2]

Seconds of a fixed job, the recordings of AUDIO of at most 30 s one by one, beside 0, 1, 2 and 4
processes that only count, and with a quota of 1.5 cores; ours in each dtype, and the engines of
`peers.py`; then of four clients at a time at `slimwhisper serve`. All take turns: a round of each
under each load, then the next round. Ends in a table, with the ratio to the same engine's idle
time, and one line of JSON.

The quota needs the rights to make a control group, in Docker --privileged; without, it is left out.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from peer_engines import OURS, PEERS, name_of
from peer_engines.case import Case
from peer_jobs import sources_of
from peers_processes import SECONDS, Worker, convert, measure
from rows import listed, spread, table
from serve import measured, serving
from timing import machine

from slimwhisper.audio.load import load_audio
from slimwhisper.flags import positive

QUOTA = 1.5  # cores
PERIOD = 100_000  # microseconds, in which a quota is spent
CLIENTS = 4
SETTLING = 0.5  # seconds: threads of the job before stop to wait for work
CPU_GROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))  # of versions 1 and 2
Times = dict[tuple[str, str], list[float]]  # seconds of each engine and load, by round


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes that only count."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextlib.contextmanager
def within_quota(pid: int) -> Iterator[None]:
    """A process and its threads in a control group of `QUOTA` cores. Raises OSError."""
    root = next((r for r in CPU_GROUPS if (r / "cgroup.procs").exists()), CPU_GROUPS[-1])
    group = root / f"slimwhisper-bench-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{int(QUOTA * PERIOD)} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD}")
            (group / "cpu.cfs_quota_us").write_text(f"{int(QUOTA * PERIOD)}")
        (group / "cgroup.procs").write_text(f"{pid}")
        yield
    finally:
        with contextlib.suppress(OSError):  # it has ended
            (root / "cgroup.procs").write_text(f"{pid}")
        group.rmdir()


def can_have_quota() -> bool:
    try:
        with within_quota(os.getpid()):
            return True
    except OSError as error:
        print(f"no quota: {error}", file=sys.stderr)
        return False


def jobs(
    cases: list[Case], folder: Path, files: list[Path], stack: contextlib.ExitStack
) -> Iterator[tuple[str, int, Callable[[], float]]]:
    """Name, process, and what returns the seconds of one job; the server's come last."""
    for case in cases:
        if failed := convert(case, folder):
            raise SystemExit(f"{name_of(case)}: {failed}")
        worker = Worker(measure, case, folder)
        stack.callback(worker.close)

        def ask(worker: Worker = worker, case: Case = case) -> float:
            answer = worker.ask()
            if isinstance(answer, str):
                raise SystemExit(f"{name_of(case)}: {answer}")
            return float(answer["seconds_spent"])

        yield name_of(case), worker.pid, ask
    for dtype in dict.fromkeys(case.dtype for case in cases if case.engine == OURS):
        flags = ["--model", cases[0].model, "--compute_type", dtype]
        url, server = stack.enter_context(serving(*flags, "--threads", str(cases[0].threads)))
        measured(url, files[:2], 2)

        def send(url: str = url) -> float:
            return float(measured(url, files, CLIENTS)[1]["seconds"])

        yield f"serve {dtype}, {CLIENTS} clients", server.pid, send


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="digits", help="a trained checkpoint [digits]")
    parser.add_argument("--folder", required=True, help="recordings")
    parser.add_argument("--engines", type=listed(str, PEERS), default=[OURS])
    parser.add_argument("--dtypes", type=listed(str), default=["float32", "int8"])
    parser.add_argument("--loads", type=listed(int), default=[0, 1, 2, 4], help="[0,1,2,4]")
    parser.add_argument("--files", type=positive, default=4)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    args = parser.parse_args()
    found = map(Path, sources_of(args.folder))
    files = [path for path in found if len(load_audio(path)) <= SECONDS * 16_000][: args.files]
    cases = [
        Case(args.model, engine, dtype, 1, args.files, None, args.threads, args.folder)
        for engine in args.engines
        for dtype in PEERS[engine].dtypes["cpu"]
        if dtype in args.dtypes
    ]
    loads = [(f"{n} others", n) for n in args.loads]
    if can_have_quota():
        loads.append((f"{QUOTA} cores", -1))
    times: Times = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        every = list(jobs(cases, Path(folder), files, stack))
        for _ in range(args.rounds):
            for load, count in loads:
                for name, pid, job in every:
                    with within_quota(pid) if count < 0 else beside(count):
                        time.sleep(SETTLING)
                        times.setdefault((name, load), []).append(job())
                        print(f"{name}, {load}: {times[name, load][-1]:.2f} s", file=sys.stderr)
    names = [name for name, _, _ in every]
    print(table(["seconds", *(load for load, _ in loads)], lines(times, names, loads)))
    result = [{"engine": n, "load": load, "seconds": s} for (n, load), s in times.items()]
    print(json.dumps({"bench": "busy", "machine": machine(torch.device("cpu")), "rows": result}))


def lines(times: Times, names: list[str], loads: list[tuple[str, int]]) -> Iterator[list[str]]:
    """Of the table: medians of the rounds, and how many times those of the first load they are."""
    for name in names:
        first, *others = (times[name, load] for load, _ in loads)
        idle = statistics.median(first)
        slower = (f"{spread(s)}: {statistics.median(s) / idle:.2f} times" for s in others)
        yield [name, spread(first), *slower]


if __name__ == "__main__":
    main()
