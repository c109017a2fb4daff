"""Kill and resume a job on real recordings repeatedly, and check that nothing is lost.

Recordings, some of them damaged, are copied into a nested tree. A job transcribes the tree; it is
killed at random moments, chosen by a seed (while the model loads, or after the run's first file),
and resumed until it ends. Then every good file must have one line in the journal and the same
outputs as in an undisturbed run, and every bad file one line and one report. Nothing may be done
twice or left unfinished. The last two lines are a verdict and a JSON object; the exit status is 0
if there were no problems. Arguments after `--` go to `slimwhisper transcribe`.

    python bench/kill.py CHECKPOINT RECORDINGS [--files 2500] [--kills 50] [-- --batch_size 16]
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.jobs.journal.journal import JOURNAL_NAME
from tests.support.kills import Kills, journal_lines

FORMATS = ("txt", "vtt", "srt", "tsv", "json")
BAD_EVERY = 25  # one in this many recordings is damaged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", help="model name or .pt file")
    parser.add_argument("recordings", type=Path, help="a folder of short recordings")
    parser.add_argument("--files", type=int, default=2500)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--longest",
        type=float,
        help="longest wait after the first file, in seconds [spreads the kills over the job]",
    )
    parser.add_argument(
        "--work", type=Path, help="new folder for all files, kept afterwards [a temporary folder]"
    )
    arguments, rest = parser.parse_known_args()
    flags = rest[1:] if rest[:1] == ["--"] else rest
    if arguments.work is not None:
        arguments.work.mkdir(parents=True)
        return measure(arguments.work, arguments, flags)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), arguments, flags)


def measure(work: Path, arguments: argparse.Namespace, flags: list[str]) -> int:
    """Run the job undisturbed, run it with kills, and compare."""
    good, bad = plant(work / "in", arguments.recordings, arguments.files)
    print(f"{len(good)} good and {len(bad)} bad recordings", flush=True)
    logs, out, undisturbed = (work / name for name in ("logs", "out", "undisturbed"))
    logs.mkdir()
    command = [sys.executable, "-m", "slimwhisper", "transcribe", str(work / "in"), *flags]
    command += ["--model", arguments.checkpoint, "--verbose", "False", "-o"]

    def start(target: Path, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen([*command, str(target)], stderr=file)

    began = time.perf_counter()
    if start(undisturbed, logs / "undisturbed").wait() not in (0, 1):
        print((logs / "undisturbed").read_text())
        return 2
    alone = time.perf_counter() - began
    print(f"undisturbed: {alone:.1f} s", flush=True)

    kills = Kills(partial(start, out), work / "in", out, logs, FORMATS)
    began = time.perf_counter()
    longest = arguments.longest or 1.6 * alone / arguments.kills
    kills.run(moments(out / JOURNAL_NAME, arguments.kills, longest, arguments.seed))
    spent = time.perf_counter() - began
    # the last digits of a window's numbers depend on the other windows in its batch
    problems = kills.problems(good, bad, undisturbed, tolerance=1e-3)
    print(*problems, sep="\n")
    verdict = f"FAILED, {len(problems)} problems" if problems else "passed"
    files = f"{len(good)} good and {len(bad)} bad files"
    print(f"{verdict}: {kills.kills} kills, {files}; {spent:.1f} s, {alone:.1f} s undisturbed")
    result = {
        "bench": "kill",
        "kills": kills.kills,
        "runs": len(kills.runs),
        "good": len(good),
        "bad": len(bad),
        "seed": arguments.seed,
        "lines": len(journal_lines(out)),
        "problems": problems,
        "seconds": round(spent, 1),
        "undisturbed_seconds": round(alone, 1),
    }
    print(json.dumps(result))
    return 1 if problems else 0


def plant(tree: Path, recordings: Path, count: int) -> tuple[set[Path], set[Path]]:
    """Copy recordings into nested folders, damaging some of them in one of three ways."""
    sources = sorted(p for p in recordings.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES)
    good, bad = set[Path](), set[Path]()
    for number in range(count):
        source = sources[number % len(sources)]
        folder = tree / f"{number % 7}" / f"part {number % 5}" / f"nº {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{source.stem}.{number}{source.suffix}"
        if number % BAD_EVERY != 3:
            shutil.copyfile(source, target)
            good.add(target)
            continue
        data = source.read_bytes()
        target.write_bytes((data[:40], b"", b"these are words")[len(bad) % 3])
        bad.add(target)
    return good, bad


def moments(
    journal: Path, count: int, longest: float, seed: int
) -> list[Callable[[subprocess.Popen[bytes]], None]]:
    """When to kill: every fifth time during startup, otherwise after a file is done."""

    def early(child: subprocess.Popen[bytes], seconds: float) -> None:
        time.sleep(seconds)

    def late(child: subprocess.Popen[bytes], seconds: float) -> None:
        size = journal.stat().st_size if journal.exists() else 0
        while child.poll() is None:
            if journal.exists() and journal.stat().st_size > size:
                time.sleep(seconds)
                return
            time.sleep(0.001)

    rng = random.Random(seed)
    return [
        partial(early if number % 5 == 4 else late, seconds=rng.uniform(0, longest))
        for number in range(count)
    ]


if __name__ == "__main__":
    sys.exit(main())
