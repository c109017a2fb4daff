"""Two workers of Ray with one thread each against one process with two: the same job.

The jobs take turns. A job's time is that from when the model is loaded, in Ray's job by the first
worker, to the last recording: start and end of the processes are left out. The share of the slots
that each worker had filled is that of its last report before the end begins: before fewer
recordings were left than all workers take. It prints a table; the last line is a JSON object.

    python bench/ray_speed.py MODEL RECORDINGS [--files 500] [--rounds 3] [-- --batch_size 8]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from slimwhisper.audio.formats import AUDIO_SUFFIXES
from tests.support.ray_jobs import RayRun

WORKERS = 2
JOBS = {
    "one process, two threads": ["--threads", "2"],
    "two workers, one thread": ["--engine", "ray", "--workers", str(WORKERS), "--threads", "1"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    a, rest = parser.parse_known_args()
    flags = ["--model", a.model, "--device", "cpu", "--beam_size", "None", "--loaders", "0"]
    flags += rest[1:] if rest[:1] == ["--"] else rest
    speeds: dict[str, list[float]] = {name: [] for name in JOBS}
    filled: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(folder / "in", a.recordings, a.files)
        for number in range(a.rounds):
            order = list(JOBS.items())
            for job, more in order if number % 2 else reversed(order):
                events, seconds = transcribe(folder, [*flags, *more])
                speeds[job].append(events[-1]["audio_seconds"] / seconds)
                if "--engine" in more:
                    filled += until_the_end(events, a.files)
    medians = {job: statistics.median(found) for job, found in speeds.items()}
    print("| job | x real time, median | lowest to highest |\n|---|---|---|")
    for job, found in speeds.items():
        print(f"| {job} | {medians[job]:.1f} | {min(found):.1f} to {max(found):.1f} |")
    one, two = medians.values()
    result = {"files": a.files, "rounds": a.rounds, "ratio": round(two / one, 3), "filled": filled}
    print(json.dumps(result | {"speeds": speeds}))
    return 0


def plant(folder: Path, recordings: Path, count: int) -> None:
    found = sorted(p for p in recordings.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES)
    folder.mkdir()
    for number in range(count):
        source = found[number * len(found) // count % len(found)]
        shutil.copy(source, folder / f"{number:05}{source.suffix}")


def transcribe(folder: Path, flags: list[str]) -> tuple[list[dict[str, Any]], float]:
    """The events of a job, and the seconds that it transcribed."""
    out = folder / "out"
    command = [sys.executable, "-m", "slimwhisper", "transcribe", str(folder / "in"), "-o"]
    environment = RayRun.environment()
    del environment["OMP_NUM_THREADS"]
    command += [str(out), *flags, "--log_json", "True", "--verbose", "False"]
    events, began, ended = [], 0.0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout is not None
        for line in job.stdout:
            events.append(json.loads(line))
            match events[-1]["event"]:
                case "start":
                    began = time.perf_counter()
                case "file":
                    ended = time.perf_counter()
    if job.returncode:
        raise SystemExit(f"{' '.join(command)}: status {job.returncode}")
    shutil.rmtree(out)
    return events, ended - began


def until_the_end(events: list[dict[str, Any]], files: int) -> list[float]:
    """The share of each worker's slots that was filled, from its start until the end began."""
    size = next(e["batch_size"] for e in events if e["event"] == "start")
    room = WORKERS * (size + max(16, size // 2))
    early = [e for e in events if e.get("filled") and e["done"] + e["failed"] <= files - room]
    return list(early[-1]["filled"].values()) if early else []


if __name__ == "__main__":
    sys.exit(main())
