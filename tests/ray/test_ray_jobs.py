"""`transcribe --engine ray` with real processes: the outputs of one process, whoever dies, and
whatever is full.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any, Self
from urllib.request import urlopen
from uuid import uuid4

import pytest

from slimwhisper.cli import main
from tests.support.kills import journal_lines, whole_tree
from tests.support.paths import BROKEN, ROOT
from tests.support.spoken import SAMPLES
from tests.support.waiting import eventually

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.slow
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        self.process.stdout.close()


def plant(folder: Path, copies: int) -> Path:
    """Recordings of some seconds each, in two folders, and one that is none."""
    for number in range(copies):
        (folder / str(number % 2)).mkdir(parents=True, exist_ok=True)
        for name in ("phone-number.wav", "door-code.mp3", "countdown.flac"):
            shutil.copy(SAMPLES / name, folder / str(number % 2) / f"{number}.{name}")
    shutil.copy(BROKEN, folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("in"), 4)


@pytest.fixture(scope="module")
def one(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one process has written."""
    out = tmp_path_factory.mktemp("one")
    status = main(["transcribe", str(folder), "-o", str(out), *FLAGS, "--verbose", "False"])
    assert status == 1 and len(journal_lines(out)) == 13
    return out


def statuses(out: Path) -> Counter[str]:
    lines = journal_lines(out)
    assert len({line["path"] for line in lines}) == len(lines)
    return Counter(line["status"] for line in lines)


def events_of(*arguments: Any, status: int = 1) -> list[dict[str, Any]]:
    """What a job of two workers tells until its end."""
    with RayRun(*arguments, *FLAGS, "--workers", "2") as run:
        events = list(run.events())
        assert run.wait() == status
    return events


def test_two_workers_write_what_one_process_writes(folder: Path, one: Path, tmp_path: Path) -> None:
    events = events_of(folder, "-o", tmp_path)
    assert whole_tree(tmp_path) == whole_tree(one)
    assert statuses(tmp_path) == statuses(one) == {"done": 12, "failed": 1}
    options = [{json.dumps(line["options"]) for line in journal_lines(o)} for o in (one, tmp_path)]
    assert options[0] == options[1]
    of = {kind: [e for e in events if e["event"] == kind] for kind in ("start", "file", "summary")}
    assert of["start"][0]["model"] == "digits" and len(of["file"]) == 13
    assert of["summary"][0]["done"] == 12 and of["summary"][0]["failed"] == 1
    assert len([e for e in events if e["event"] == "segment"]) > 10
    assert any("digits" in e["message"] for e in events if e["event"] == "warning")


@pytest.mark.parametrize("format", ["txt", "parquet"])
def test_stored_inputs(tmp_path: Path, format: str) -> None:
    """A folder, an archive, whose members hold their bytes, and a manifest with an excerpt."""
    recordings = plant(tmp_path / "in", 1)
    with tarfile.open(tmp_path / "in" / "a.tar", "w") as archive:
        archive.add(recordings / "0", "tar")
        archive.add(recordings / "broken.m4a", "broken.m4a")
    excerpt = {"audio_filepath": "0/0.countdown.flac", "offset": 0.0, "duration": 2.0}
    (tmp_path / "in" / "m.jsonl").write_text(json.dumps(excerpt))
    inputs = [f"file://{tmp_path}/in/{name}" for name in ("0", "a.tar", "m.jsonl")]
    one, two = tmp_path / "one", tmp_path / "two"
    flags = ("-f", format, "--verbose", "False")
    assert main(["transcribe", *inputs, "-o", str(one), *FLAGS, *flags]) == 1
    for _ in range(1 if format == "txt" else 2):  # the second run has nothing to do
        events = events_of(*inputs, "-o", two, *flags)
    assert statuses(two) == statuses(one) == {"done": 7, "failed": 1}
    if format == "txt":
        assert whole_tree(two) == whole_tree(one) and len(whole_tree(one)) == 7
        return
    assert events[-1]["skipped"] == 7 and events[-1]["failed_earlier"] == 1
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = [parquet.read_table(out / "transcripts").drop_columns(["time"]) for out in (one, two)]
    found = [sorted(table.to_pylist(), key=lambda row: row["path"]) for table in tables]
    assert found[0] == found[1] and len(found[0]) == 8


def test_workers_die(folder: Path, one: Path, tmp_path: Path) -> None:
    """One by chance: what it had is done by another; and those that open a certain recording: it
    alone is reported.
    """
    bad = folder / "0" / "2.door-code.mp3"
    with RayRun(folder, "-o", tmp_path, *FLAGS, "--workers", "2", poison=[bad.name]) as run:
        wait_for_lines(tmp_path, 1)
        os.kill(min(run.processes("ray::MapWorker")), signal.SIGKILL)
        files = [event for event in run.events() if event["event"] == "file"]
        assert run.wait() == 1
    (error,) = [e["error"] for e in files if e["path"] == str(bad)]
    assert error.startswith(f"{bad}: 2 workers died")
    stem = str(bad.relative_to(folder).with_suffix(""))
    expected = whole_tree(one)
    left = {name: data for name, data in expected.items() if not name.startswith(f"{stem}.")}
    assert whole_tree(tmp_path) == left and len(left) == len(expected) - 5
    assert statuses(tmp_path) == {"done": 11, "failed": 2}


def wait_for_lines(out: Path, count: int) -> None:
    while len(journal_lines(out)) < count:
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Whether another host that asks for metrics would be answered."""
    for address in (socket.gethostbyname(socket.gethostname()), "127.0.0.1"):
        try:
            with urlopen(f"http://{address}:{port}/metrics", timeout=5) as response:
                return response.status == 200
        except (OSError, HTTPException):  # no such address, no HTTP, or not allowed
            pass
    return False


def test_no_metrics_for_other_hosts(folder: Path, tmp_path: Path) -> None:
    """What listens is Ray's own, which has a token."""
    with RayRun(folder, "-o", tmp_path, *FLAGS, "--workers", "1") as run:
        wait_for_lines(tmp_path, 2)
        ports = list(run.ports())
        assert len(ports) > 2 and not any(map(answers, ports))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_driver_resumes(folder: Path, one: Path, tmp_path: Path, number: int) -> None:
    """Ctrl-C first finishes what is decoding, and leaves no process."""
    with RayRun(folder, "-o", tmp_path, *FLAGS, "--workers", "2") as run:
        wait_for_lines(tmp_path, 2)
        run.process.send_signal(number)
        if number == signal.SIGINT:
            events = list(run.events())
            assert run.wait() == events[-1]["status"] == 130
            assert eventually(lambda: not run.processes(), 10), "a worker takes a moment"
            ended = {e["path"] for e in events if e["event"] == "file"}
            assert ended == {line["path"] for line in journal_lines(tmp_path)}
            assert 2 <= events[-1]["done"] <= 12 and not list(tmp_path.rglob("*.part"))
        run.wait()
    before = len(journal_lines(tmp_path))
    events = events_of(folder, "-o", tmp_path)
    assert events[-1]["done"] + events[-1]["failed"] == 13 - before
    assert statuses(tmp_path) == {"done": 12, "failed": 1}
    assert whole_tree(tmp_path) == whole_tree(one)


def test_a_raylet_dies(folder: Path, one: Path, tmp_path: Path) -> None:
    """Workers go on as long as they can; else the job ends with a report. The next one resumes."""
    with RayRun(folder, "-o", tmp_path, *FLAGS, "--workers", "2") as run:
        wait_for_lines(tmp_path, 2)
        os.kill(run.raylet(), signal.SIGKILL)
        errors = [event["message"] for event in run.events() if event["event"] == "error"]
        assert run.wait() == 1
        assert "Ray stopped unexpectedly" in errors[-1] if errors else statuses(tmp_path)["done"]
    events_of(folder, "-o", tmp_path)
    assert statuses(tmp_path) == {"done": 12, "failed": 1}
    assert whole_tree(tmp_path) == whole_tree(one)


BEFORE = """
import sys
import ray
if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8, log_to_driver=False)
"""
AFTER = """
    import pyarrow.parquet as pq
    table = pq.read_table("transcripts")
    assert table.schema.field("segments").equals(slimwhisper.ray.SCHEMA.field("segments"))
    print(table.drop_columns(["segments"]).to_pandas().to_json(orient="records"))
"""


def example() -> str:
    """The one of docs/guides/scale.md, for a small model and one worker on a CPU."""
    text = (ROOT / "docs/guides/scale.md").read_text()
    (found,) = re.findall(r"^```py\n(.*?)^```", text, re.S | re.M)
    small = found.replace("turbo", "digits").replace("num_gpus=1", "num_cpus=1")
    small = small.replace("size=8", "size=1").replace("batch_size=64", "batch_size=2")
    return BEFORE + indent(small, "    ") + AFTER


def test_ray_data(tmp_path: Path) -> None:
    """From parquet to parquet; what rows may have is tested beside."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = SAMPLES / "door-code.mp3"
    data = (SAMPLES / "countdown.flac").read_bytes()
    table = pa.table({"path": [str(name), "unread", str(BROKEN)], "bytes": [None, data, None]})
    (tmp_path / "recordings").mkdir()
    pq.write_table(table, tmp_path / "recordings" / "0.parquet")
    script = tmp_path / "script.py"
    script.write_text(example())
    environment = RayRun.environment()
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = {row["path"]: row for row in json.loads(done.stdout.splitlines()[-1])}
    assert [w["word"] for w in found[str(name)]["words"]] == " four| zero| seven| seven".split("|")
    assert found["unread"]["text"].split()[0] == "nine" and found["unread"]["error"] is None
    assert "not audio" in found[str(BROKEN)]["error"] and found[str(BROKEN)]["text"] is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """Every recording is whole or reported; with more space the next run does the rest."""
    recordings = tmp_path / "in"
    recordings.mkdir()
    for number in range(16):
        (recordings / f"{number:02}.mp3").write_bytes((SAMPLES / "door-code.mp3").read_bytes())
    one, out = tmp_path / "one", small_disk / "out"
    quiet = ("--verbose", "False")
    assert main(["transcribe", str(recordings), "-o", str(one), *FLAGS, *quiet]) == 0
    events = events_of(recordings, "-o", out, *quiet)
    assert not list(out.rglob("*.part"))
    ended = {Path(e["path"]).stem: e for e in events if e["event"] == "file"}
    whole = {name for name, event in ended.items() if event["status"] == "done"}
    assert len(whole) < 16  # none, where the workers have filled it before the driver's first line
    for name in ended.keys() - whole:
        assert "No space left on device" in ended[name]["error"]
    expected = whole_tree(one)
    found = whole_tree(out)
    assert all(found[n] == data for n, data in expected.items() if Path(n).stem in whole)
    marked = Counter(
        Path(line["path"]).stem for line in journal_lines(out) if line["status"] == "done"
    )
    assert marked.keys() <= whole and set(marked.values()) <= {1}
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    events_of(recordings, "-o", out, *quiet, status=0)
    assert whole_tree(out) == expected
    done = [line["path"] for line in journal_lines(out) if line["status"] == "done"]
    assert len(done) == len(set(done)) == 16
