"""Jobs on Ray in processes of their own, whose workers can be found and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from slimwhisper.errors import SlimWhisperError
from slimwhisper.storage.containers import Member
from slimwhisper.storage.inputs import Shard
from tests.support.paths import ROOT

MARK = "SLIMWHISPER_TEST_JOB"  # in the environment of all processes of a job
PATIENCE = 240.0  # seconds until a job counts as hanging
# one window at a time, so that numbers do not depend on how many are decoded together
FLAGS = ("--model", "digits", "--beam_size", "None", "--batch_size", "1", "--loaders", "0")
# Ray gives its workers a niceness of 15: on a busy machine they would hardly run
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class DyingShard(Shard):
    """A part of the inputs that kills those who list it first, so many of them."""

    deaths: int = 0

    def recordings(self) -> Iterator[Member | SlimWhisperError]:
        counts = Path(self.base) / f"{self.deaths}.deaths"
        with counts.open("a") as file:
            file.write("x")
        if counts.stat().st_size <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from Shard.recordings(self)


class RayRun:
    """`slimwhisper transcribe ... --engine ray`, with JSON lines."""

    def __init__(self, *arguments: str | Path, poison: Sequence[str] = ()) -> None:
        """poison: names of recordings that kill every worker which opens them."""
        self.mark = uuid4().hex
        environment = self.environment() | {
            MARK: self.mark,
            "SLIMWHISPER_TEST_POISON": "/".join(poison),
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "slimwhisper", "transcribe", *map(str, arguments)),
                *("--engine", "ray", "--device", "cpu", "--log_json", "True"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def environment() -> dict[str, str]:
        """Of a process that finds this tree, and whose workers do."""
        paths = [str(ROOT), str(ROOT / "tests" / "support" / "poison")]
        return {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}

    def events(self) -> Iterator[dict[str, Any]]:
        """What it prints, as it comes."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):
                yield json.loads(line)

    def wait(self, patience: float | None = PATIENCE) -> int:
        return self.process.wait(patience)

    def processes(self, title: str = "") -> list[int]:
        """The job's processes whose command line starts like this."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                if marked and (folder / "cmdline").read_bytes().startswith(title.encode()):
                    found.append(int(folder.name))
        return [pid for pid in found if pid != self.process.pid]

    def workers(self) -> list[int]:
        return self.processes("ray::Worker")

    def kill_worker(self, which: int) -> bool:
        """SIGKILL to one of the workers that there are."""
        workers = self.workers()
        if workers:
            with suppress(ProcessLookupError):
                os.kill(sorted(workers)[which % len(workers)], signal.SIGKILL)
                return True
        return False

    def close(self) -> None:
        """End what is left."""
        for _ in range(50):
            left = self.processes()
            if self.process.poll() is None:
                self.process.kill()
            elif not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def ray_run(*arguments: str | Path, poison: Sequence[str] = ()) -> Iterator[RayRun]:
    run = RayRun(*arguments, poison=poison)
    try:
        yield run
    finally:
        run.close()
