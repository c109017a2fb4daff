"""A job on Ray from an S3 server on loopback to itself, whose driver is killed half-way.

Recordings are put as objects, in folders; two workers transcribe them; the driver is killed when
half of them have their texts, and the job is run again. In the end every object must have all its
outputs, byte for byte those that one process writes of the files, and one mark. The last line is a
JSON object; the exit status is 0 if there were no problems. It needs s3fs and moto[server].

    python bench/ray_s3.py MODEL RECORDINGS [--objects 1000] [--errors 0.0] [--slow 0.0]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import s3fs

sys.path.insert(0, str(Path(__file__).parents[1]))
from slimwhisper.audio.formats import AUDIO_SUFFIXES
from tests.support.kills import whole_tree
from tests.support.ray_jobs import RayRun
from tests.support.s3_server import bucket_marks, s3_server

FOLDERS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--errors", type=float, default=0.0, help="share of requests that fail")
    parser.add_argument("--slow", type=float, default=0.0, help="share that wait for 0.5 s")
    a = parser.parse_args()
    flags = ["--model", a.model, "--beam_size", "None", "--batch_size", "1", "--loaders", "0"]
    with tempfile.TemporaryDirectory() as folder, s3_server() as (environment, faults):
        os.environ.update(environment)
        bucket = s3fs.S3FileSystem(use_listings_cache=False)
        expected = fill(bucket, a, Path(folder), flags)
        faults.errors, faults.slow = a.errors, a.slow
        runs = []
        for goal in (a.objects // 2, None):
            run = RayRun("s3://box/in", "-o", "s3://box/out", *flags, "--workers", "2")
            threading.Thread(target=lambda run=run: list(run.events()), daemon=True).start()
            while goal is not None and run.process.poll() is None and texts(bucket) < goal:
                time.sleep(1)
            if goal is not None:
                run.process.kill()
            status = run.wait(None)
            run.close()
            runs.append({"status": status, "texts": texts(bucket), "marks": len(marks(bucket))})
            print(runs[-1], flush=True)
        found = {n.removeprefix("box/out/"): n for n in bucket.find("box/out")}
        found = {n: path for n, path in found.items() if not n.startswith("slimwhisper-journal")}
        problems = [f"{n}: missing or unexpected" for n in found.keys() ^ expected.keys()]
        problems += [
            f"{n}: differs" for n in found.keys() & expected if bucket.cat(found[n]) != expected[n]
        ]
        counts = Counter((line["path"], line["status"]) for line in marks(bucket))
        wanted = Counter((f"s3://{n}", "done") for n in bucket.find("box/in"))
        problems += [f"{path}: {status}" for path, status in (counts - wanted) + (wanted - counts)]
    print(*problems[:20], sep="\n")
    result = {"objects": a.objects, "failed_requests": faults.failed, "runs": runs}
    print(json.dumps(result | {"problems": len(problems)}))
    return 1 if problems else 0


def fill(
    bucket: s3fs.S3FileSystem, a: argparse.Namespace, folder: Path, flags: list[str]
) -> dict[str, bytes]:
    """Put the objects; name of each output -> what one process writes."""
    found = sorted(p for p in a.recordings.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES)
    bucket.mkdir("box")
    for number in range(a.objects):
        source = found[number % len(found)]
        name = f"{number % FOLDERS}/{number:05}{source.suffix}"
        bucket.put_file(str(source), f"box/in/{name}")
        target = folder / "in" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "slimwhisper", "transcribe", f"file://{folder}/in"]
    subprocess.run(
        [*command, "-o", str(folder / "out"), *flags, "--verbose", "False"],
        env=RayRun.environment(),
        check=True,
    )
    return whole_tree(folder / "out")


def texts(bucket: s3fs.S3FileSystem) -> int:
    return sum(name.endswith(".txt") for name in bucket.find("box/out"))


def marks(bucket: s3fs.S3FileSystem) -> list[dict[str, object]]:
    """The marks of recordings that need no other run."""
    lines = bucket_marks(bucket, "box/out")
    return [line for line in lines if line["status"] in ("done", "failed")]


if __name__ == "__main__":
    sys.exit(main())
