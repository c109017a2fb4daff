"""A server under load: python bench/serve.py FOLDER [--model digits] [--at_once 64]

Starts `slimwhisper serve`, sends every recording of FOLDER one after the other, then the same ones
AT_ONCE at a time. Reports the speedup, whether the texts are the same, how full the batch was, and
the server's memory, open files and processes before and after --requests more. Ends in one line of
JSON.
"""

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from prometheus_client.parser import text_string_to_metric_families
from timing import children, machine

from slimwhisper.audio_formats.names import AUDIO_SUFFIXES

ROUTE = "/v1/audio/transcriptions"


@contextmanager
def serving(*flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address and the process of a server, which ends with the block, also at SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "slimwhisper", "serve", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_ready(url):
            if process.poll() is not None:
                raise SystemExit("the server did not start: run `slimwhisper serve` to see why")
            time.sleep(0.1)
        yield url, process
    finally:
        process.terminate()
        process.wait(60)


def is_ready(url: str) -> bool:
    """Whether a server answers."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health").is_success
    return False


async def sent(url: str, paths: Sequence[Path], at_once: int) -> tuple[list[str], list[float]]:
    """The texts, and each request's seconds, with `at_once` requests in flight."""
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits()) as client:

        async def one(path: Path) -> tuple[str, float]:
            async with gate:
                since = time.perf_counter()
                files = {"file": (path.name, path.read_bytes())}
                response = (await client.post(ROUTE, files=files)).raise_for_status()
                return response.json()["text"], time.perf_counter() - since

        pairs = await asyncio.gather(*map(one, paths))
    return [text for text, _ in pairs], [spent for _, spent in pairs]


def metrics(url: str) -> dict[str, float]:
    """The server's metrics without labels."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def grown(url: str, before: dict[str, float]) -> dict[str, float]:
    """By how much the server's metrics have grown."""
    return {name: value - before.get(name, 0.0) for name, value in metrics(url).items()}


def held(pid: int) -> dict[str, float]:
    """What a process uses: MB of memory, open files, child processes (Linux)."""
    resident = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]
    return {
        "mb": int(resident) / 1024,
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "children": len(children(pid)),
    }


def measured(url: str, paths: Sequence[Path], at_once: int) -> tuple[list[str], dict[str, Any]]:
    """The texts, and the speed, latencies and batch fill of one pass."""
    before, since = metrics(url), time.perf_counter()
    texts, waits = asyncio.run(sent(url, paths, at_once))
    spent, counts = time.perf_counter() - since, grown(url, before)
    steps, filled = (counts[f"slimwhisper_{name}_total"] for name in ("steps", "filled_slots"))
    return texts, {
        "at_once": at_once,
        "seconds": round(spent, 2),
        "times_real": round(counts["slimwhisper_audio_seconds_total"] / spent, 1),
        "median_wait": round(statistics.median(waits), 3),
        "p95_wait": round(float(np.quantile(waits, 0.95)), 3),
        "longest_wait": round(max(waits), 3),
        "batch_fill": round(filled / max(steps, 1), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--at_once", type=int, default=64)
    parser.add_argument("--count", type=int, default=64, help="recordings of the folder")
    parser.add_argument("--requests", type=int, default=1000, help="for what the server holds")
    args = parser.parse_args()
    results = sorted(p for p in args.folder.iterdir() if p.suffix in AUDIO_SUFFIXES)
    paths = results[:: max(len(results) // args.count, 1)][: args.count]
    flags = ["--model", args.model, "--queue", str(2 * args.at_once)]
    with serving(*flags) as (url, process):
        asyncio.run(sent(url, paths[:2], 2))  # warm-up
        alone, one = measured(url, paths, 1)
        together, many = measured(url, paths, args.at_once)
        print(f"{len(paths)} recordings one by one: {one}")
        print(f"{args.at_once} at a time:          {many}")
        ratio = one["seconds"] / many["seconds"]
        different = sum(a != b for a, b in zip(alone, together, strict=True))
        print(f"{ratio:.2f} times as fast; texts that differ: {different}")
        before, during = held(process.pid), []
        for _ in range(0, args.requests, len(paths)):
            asyncio.run(sent(url, paths, args.at_once))
            during.append(round(held(process.pid)["mb"]))
        after = held(process.pid)
        print(f"held before {args.requests} more requests: {before}, after: {after}")
    result = {
        "bench": "serve",
        "machine": machine(torch.device("cpu")),
        "model": args.model,
        "recordings": len(paths),
        "alone": one,
        "together": many,
        "ratio": round(ratio, 2),
        "different": different,
        "requests": args.requests,
        "before": before,
        "after": after,
        "mb_during": during,
        "exit": process.returncode,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
