"""Jobs on Ray in processes of their own, whose workers can be found and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.paths import ROOT

MARK = "SLIMWHISPER_TEST_JOB"  # in the environment of all processes of a job
PATIENCE = 240.0  # seconds until a job counts as hanging
# one window at a time and one thread, so that numbers do not depend on how many there are
FLAGS = "--model digits --beam_size None --batch_size 1 --loaders 0 --threads 1".split()
# Ray gives its workers a niceness of 15: on a busy machine they would hardly run
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}


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

    def raylet(self) -> int:
        """The process of Ray with the object store."""
        (package,) = find_spec("ray").submodule_search_locations
        (found,) = self.processes(f"{package}/core/src/ray/raylet/raylet")
        return found

    def ports(self) -> Iterator[int]:
        """The TCP ports at which the job's processes listen for other hosts too."""
        sockets: set[str] = set()
        for pid in [self.process.pid, *self.processes()]:
            with suppress(OSError):
                sockets |= {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()  # proc(5): local address, state (0A: listens), inode
                address, port = fields[1].split(":")
                here = address.endswith("0100007F") or address == "0" * 24 + "01000000"
                if fields[3] == "0A" and not here and f"socket:[{fields[9]}]" in sockets:
                    yield int(port, 16)

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


def ray_run(*arguments: str | Path, poison: Sequence[str] = ()) -> closing[RayRun]:
    return closing(RayRun(*arguments, poison=poison))
