"""Kill workers, driver and object store of a job on Ray, and check that nothing is lost.

Recordings, some of them damaged, are copied into a nested tree, which one process transcribes
first. Then a job on Ray does it, while its workers are killed at random moments, chosen by a
seed. The driver is killed too, and started again, and so is the process that holds Ray's object
store; and some recordings kill every worker that opens them. In the end each of these must be
marked as failed, and every other recording must have one line in the journal and the bytes that one
process wrote. The last line is a JSON object; the exit status is 0 if there were no problems.

    python bench/ray_kill.py MODEL RECORDINGS [--files 200] [--workers 20] [--drivers 10]
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.kill import plant
from tests.support.kills import journal_lines, whole_tree
from tests.support.ray_jobs import RayRun


class Killer:
    """Kills workers of whichever run there is, from another thread."""

    def __init__(self, count: int, longest: float, rng: random.Random) -> None:
        self.run: RayRun | None = None
        self.killed = 0
        self._left, self._longest, self._rng = count, longest, rng
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._left:
            time.sleep(self._rng.uniform(0, self._longest))
            run = self.run
            if run is not None and run.kill_worker(self._rng.randrange(2)):
                self._left -= 1
                self.killed += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--workers", type=int, default=20, help="kills of workers")
    parser.add_argument("--drivers", type=int, default=10, help="kills of the driver")
    parser.add_argument("--stores", type=int, default=1, help="kills of the object store")
    parser.add_argument("--longest", type=float, default=6.0, help="seconds between such kills")
    parser.add_argument("--poisoned", type=int, default=1, help="recordings that kill workers")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    rng = random.Random(a.seed)
    flags = ["--model", a.model, "--beam_size", "None", "--batch_size", "1", "--loaders", "0"]
    with tempfile.TemporaryDirectory() as name:
        tree, one, out = (Path(name) / part for part in ("in", "one", "out"))
        good, bad = plant(tree, a.recordings, a.files)
        command = [sys.executable, "-m", "slimwhisper", "transcribe", str(tree), "-o", str(one)]
        subprocess.run(
            [*command, *flags, "--verbose", "False"],
            env=RayRun.environment(),
            stderr=subprocess.DEVNULL,
        )
        poison = set(rng.sample(sorted(good), a.poisoned))
        ends = ["driver"] * a.drivers + ["store"] * a.stores
        rng.shuffle(ends)
        killer, statuses = Killer(a.workers, a.longest, rng), []
        for number, end in enumerate([*ends, ""]):
            names = [path.name for path in poison]
            run = RayRun(tree, "-o", out, *flags, "--workers", "2", poison=names)
            threading.Thread(target=lambda run=run: list(run.events()), daemon=True).start()
            killer.run = run
            if end:
                wait(run, out, rng.uniform(0, a.files / len(ends) / 2), rng.uniform(0, 1))
                if end == "driver":
                    run.process.kill()
                else:
                    kill_store(run)
            statuses.append(run.wait(None))
            killer.run = None
            run.close()
            lines = len(journal_lines(out))
            print(f"run {number}: {end or 'to its end'}, {lines} lines", flush=True)
        found = Counter((Path(line["path"]), line["status"]) for line in journal_lines(out))
        failed = bad | poison
        wanted = Counter([*((p, "done") for p in good - poison), *((p, "failed") for p in failed)])
        problems = [f"{path}: {status}" for path, status in (found - wanted) + (wanted - found)]
        ours, theirs = whole_tree(out), whole_tree(one)
        for path in poison:
            stem = str(path.relative_to(tree).with_suffix(""))
            theirs = {n: data for n, data in theirs.items() if not n.startswith(f"{stem}.")}
        problems += [n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)]
    print(*problems, sep="\n")
    result = {
        "files": a.files,
        "killed_workers": killer.killed,
        "set_aside": len(poison),
        "runs": len(statuses),
        "statuses": statuses,
        "problems": len(problems),
    }
    print(json.dumps(result))
    return 1 if problems else 0


def wait(run: RayRun, out: Path, lines: float, seconds: float) -> None:
    """Until the run has added so many lines to the journal, and so long after that."""
    before = len(journal_lines(out))
    while run.process.poll() is None and len(journal_lines(out)) < before + lines:
        time.sleep(0.02)
    time.sleep(seconds)


def kill_store(run: RayRun) -> None:
    """The object store is a part of Ray's process on each host."""
    for pid in run.processes():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        if command.endswith(b"/raylet"):
            subprocess.run(["kill", "-9", str(pid)])


if __name__ == "__main__":
    sys.exit(main())
