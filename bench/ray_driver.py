"""The driver of `transcribe --engine ray` with simulated workers, on millions of recordings.

The driver's loop, scheduler and journal are the product's; workers only take time, drawn for each
recording, on a clock that jumps. Recordings are named when they are wanted. It prints what the
driver does a second, its memory as it goes, how much of the workers' time was used, and how long a
resumed job needs to read the journal. The last line is a JSON object.

    python bench/ray_driver.py [--recordings 10000000] [--workers 512] [--slots 64] [--deaths 0]
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.journal import Journal, Stamp
from slimwhisper.ray.results import Ended
from tests.support.simulated import SimulatedCluster, simulate

OPTIONS = {"model": "turbo", "cache": "e+x", "formats": ["txt", "json"], "beam_size": 5}
DRAWN = 9973  # durations, used in turn
MEDIAN, SPREAD = 20.0, 1.0  # of the lognormal durations: seconds, and sigma


def resident() -> float:
    """MB of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recordings", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--deaths", type=float, default=0.0, help="of each worker, an hour")
    parser.add_argument("--folder", help="where the journal is written [a temporary folder]")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        result = run(a, Path(folder) / "journal.jsonl")
    print(json.dumps(result))
    return 0 if result["ended"] == a.recordings else 1


def run(a: argparse.Namespace, path: Path) -> dict[str, Any]:
    rng = random.Random(0)
    drawn = [MEDIAN * rng.lognormvariate(0, SPREAD) for _ in range(DRAWN)]

    def seconds(item: InputFile) -> float:
        return drawn[int(item.path.stem) % DRAWN]

    def stamp(item: InputFile) -> Stamp:
        return Stamp(f"/bucket/{item.path}", int(1000 * seconds(item)), 1_700_000_000_000_000_000)

    def recording(number: int) -> InputFile:
        name = Path(f"{number % 1000:03}/{number:09}.wav")
        return InputFile(name, name)

    journal = Journal(path, OPTIONS)
    ended, memory, used, moments = 0, [], [], []

    def settle(found: list[Ended]) -> None:
        nonlocal ended
        journal.add_all([(stamp(e.recording), "done", e.seconds, None) for e in found])
        if (ended + len(found)) * 10 // a.recordings > ended * 10 // a.recordings:
            memory.append(resident())
            used.append(cluster.busy_seconds / (cluster.now * a.workers * a.slots))
            moments.append(cluster.now)
            print(f"{ended:,} ended, {memory[-1]:.0f} MB", flush=True)
        ended += len(found)

    kills = a.deaths / 3600
    cluster = SimulatedCluster(a.workers, a.slots, seconds, kills=kills)
    began, cpu = time.perf_counter(), time.process_time()
    simulate(cluster, map(recording, range(a.recordings)), settle, weight=seconds)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    journal.close()
    size = path.stat().st_size
    began = time.perf_counter()
    journal = Journal(path, OPTIONS)
    read = time.perf_counter() - began
    began = time.perf_counter()
    sample = range(0, a.recordings, max(a.recordings // 100_000, 1))
    known = sum(journal.status(stamp(recording(n))) == "done" for n in sample)
    look = (time.perf_counter() - began) / len(sample)
    journal.close()
    work = sum(drawn[n % DRAWN] for n in range(a.recordings))
    return {
        "recordings": a.recordings,
        "ended": ended,
        "workers": a.workers,
        "deaths": cluster.deaths,
        "seconds": round(took, 1),
        "completions_a_second": round(a.recordings / took),
        "completions_a_cpu_second": round(a.recordings / cpu),
        "memory_mb": [round(m) for m in memory],
        "simulated_seconds": round(cluster.now),
        "utilisation_of_nine_tenths": round(used[8], 4),
        "longest_recording_seconds": round(max(drawn)),
        "last_tenth_seconds": round(cluster.now - moments[8]),
        "utilisation": round(work / (cluster.now * a.workers * a.slots), 4),
        "journal_mb": round(size / 1e6),
        "journal_read_seconds": round(read, 1),
        "status_us": round(look * 1e6, 1),
        "known": known == len(sample),
    }


if __name__ == "__main__":
    sys.exit(main())
