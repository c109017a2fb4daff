"""Jobs on Ray: python bench/ray_jobs.py speed|kill MODEL RECORDINGS [--files N]

speed: two workers with one thread each, and one process with two, do the same job in turns. kill: a
job's workers are killed at random moments, chosen by a seed, and so is its driver, which is then
started again; in the end every good recording must have one line in the journal and the bytes that
one process wrote, and every damaged one must be marked as failed; one whose workers were killed
twice may be, too. The last line is a JSON object; the exit status is 0 if there were no problems.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kill import plant

from tests.support.kills import journal_lines, whole_tree
from tests.support.ray_jobs import RayRun

JOBS = {
    "one process, two threads": ["--threads", "2"],
    "two workers, one thread": ["--engine", "ray", "--workers", "2", "--threads", "1"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = {"speed": speed, "kill": kill}
    parser.add_argument("what", choices=kinds)
    parser.add_argument("model")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="of speed")
    parser.add_argument("--workers", type=int, default=20, help="kills of workers")
    parser.add_argument("--drivers", type=int, default=10, help="kills of the driver")
    parser.add_argument("--longest", type=float, default=6.0, help="seconds between such kills")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good, bad = plant(Path(folder) / "in", a.recordings, a.files)
        return kinds[a.what](a, Path(folder), good, bad)


def transcribe(a: argparse.Namespace, folder: Path, out: str, *flags: str) -> float:
    """Run a job to its end; returns the seconds between its first and its last recording."""
    command = [sys.executable, "-m", "slimwhisper", "transcribe", str(folder / "in"), "-o"]
    command += [str(folder / out), "--model", a.model, "--device", "cpu", "--beam_size", "None"]
    command += ["--loaders", "0", "--log_json", "True", "--verbose", "False", *flags]
    environment, began, ended = RayRun.environment(), 0.0, 0.0
    del environment["OMP_NUM_THREADS"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout is not None
        for line in job.stdout:
            match json.loads(line)["event"]:
                case "start":
                    began = time.perf_counter()
                case "file":
                    ended = time.perf_counter()
    if job.returncode not in (0, 1):  # 1: for the damaged ones
        raise SystemExit(f"{' '.join(command)}: status {job.returncode}")
    return ended - began


def speed(a: argparse.Namespace, folder: Path, good: set[Path], bad: set[Path]) -> int:
    seconds: dict[str, list[float]] = {name: [] for name in JOBS}
    for number in range(a.rounds):
        for job, flags in list(JOBS.items())[:: 1 if number % 2 else -1]:
            seconds[job].append(transcribe(a, folder, "out", *flags))
            shutil.rmtree(folder / "out")
            print(f"{job}: {seconds[job][-1]:.1f} s", flush=True)
    one, two = map(statistics.median, seconds.values())
    result = {"files": a.files, "rounds": a.rounds, "ratio": round(one / two, 3)}
    print(json.dumps(result | {"seconds": seconds}))
    return 0


class Killer:
    """Kills workers of whichever run there is, from another thread."""

    def __init__(self, count: int, longest: float, rng: random.Random) -> None:
        self.run: RayRun | None = None
        self.killed = 0
        self._remaining, self._longest, self._rng = count, longest, rng
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._remaining:
            time.sleep(self._rng.uniform(0, self._longest))
            run = self.run
            if run is not None and run.kill_worker(self._rng.randrange(2)):
                self._remaining -= 1
                self.killed += 1


def kill(a: argparse.Namespace, folder: Path, good: set[Path], bad: set[Path]) -> int:
    rng, tree, out = random.Random(a.seed), folder / "in", folder / "out"
    flags = ["--model", a.model, "--beam_size", "None", "--batch_size", "1", "--loaders", "0"]
    transcribe(a, folder, "one", "--batch_size", "1")
    killer, statuses = Killer(a.workers, a.longest, rng), []
    for last in [*[False] * a.drivers, True]:
        run = RayRun(tree, "-o", out, *flags, "--workers", "2")
        threading.Thread(target=lambda run=run: list(run.events()), daemon=True).start()
        killer.run = run
        if not last:
            wait(run, out, rng.uniform(0, a.files / a.drivers / 2), rng.uniform(0, 1))
            run.process.kill()
        statuses.append(run.wait(None))
        killer.run = None
        run.close()
        print(f"status {statuses[-1]}, {len(journal_lines(out))} lines", flush=True)
    ended = {Path(line["path"]): line["status"] for line in journal_lines(out)}
    gone = {path for path in good if ended.get(path) == "failed"}  # killed twice, and reported
    journal = Counter((Path(line["path"]), line["status"]) for line in journal_lines(out))
    expected = Counter([*((p, "done") for p in good - gone), *((p, "failed") for p in bad | gone)])
    problems = [f"{path}: {status}" for path, status in (journal - expected) + (expected - journal)]
    ours, theirs = whole_tree(out), whole_tree(folder / "one")
    stems = tuple(f"{path.relative_to(tree).with_suffix('')}." for path in gone)
    names = {n for n in ours.keys() | theirs.keys() if not n.startswith(stems)}
    problems += [n for n in names if ours.get(n) != theirs.get(n)]
    print(*problems, sep="\n")
    result = {"files": a.files, "killed_workers": killer.killed, "reported": len(gone)}
    print(json.dumps(result | {"statuses": statuses, "problems": len(problems)}))
    return 1 if problems else 0


def wait(run: RayRun, out: Path, lines: float, seconds: float) -> None:
    """Wait for a number of new lines in the journal, and then some seconds more."""
    before = len(journal_lines(out))
    while run.process.poll() is None and len(journal_lines(out)) < before + lines:
        time.sleep(0.02)
    time.sleep(seconds)


if __name__ == "__main__":
    sys.exit(main())
