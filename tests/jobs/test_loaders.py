"""Jobs whose files are decoded by other processes: the same results, and no process left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from slimwhisper import devices
from slimwhisper.api import SlimWhisper
from slimwhisper.audio_formats import readers
from slimwhisper.cli import main
from slimwhisper.cores import Cores
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.jobs.journal import JOURNAL_NAME
from slimwhisper.types import Transcript
from tests.support.paths import BROKEN, PHONE, SAMPLES
from tests.support.waiting import eventually
from tests.support.windows import random_model

QUICK: dict[str, Any] = {"language": "en", "sample_len": 4, "temperature": 0}
GOOD = ["phone-number.wav", "door-code.mp3", "flight.m4a"]


@pytest.fixture(scope="module")
def model() -> SlimWhisper:
    return SlimWhisper(random_model())


@pytest.fixture
def started() -> Iterator[Any]:
    """Starts the workers of the test; all must have ended with it."""
    kind = readers.ReaderProcess
    with patch.object(kind, "__init__", autospec=True, side_effect=kind.__init__) as start:
        yield start
    workers = [call.args[0] for call in start.call_args_list]
    assert workers and all(worker.returncode is not None for worker in workers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three good files, and four that fail in different ways."""
    for path in (*(SAMPLES / name for name in GOOD), BROKEN):
        shutil.copy(path, tmp_path)
    (tmp_path / "cut.flac").write_bytes((SAMPLES / "countdown.flac").read_bytes()[:90_000])
    (tmp_path / "empty.wav").touch()
    return tmp_path


def outcomes(model: SlimWhisper, paths: list[Path], **options: Any) -> dict[str, Any]:
    """Text and segments of each file, or the message of its error and its class."""
    found: dict[str, Any] = {}
    for path, result in model.transcribe_many(paths, **QUICK, **options):
        failed = isinstance(result, SlimWhisperError)
        found[path.name] = (type(result), str(result)) if failed else result.text
    return found


def test_the_same_results(model: SlimWhisper, folder: Path, started: Any) -> None:
    paths = [*sorted(folder.iterdir()), folder / "gone.wav", folder / "a\nb.wav", folder]
    for cut in (False, True):
        threads = outcomes(model, paths, loaders=0, allow_truncated=cut)
        assert started.call_count == 2 * cut
        assert outcomes(model, paths, loaders=2, allow_truncated=cut) == threads
        assert sum(isinstance(text, str) for text in threads.values()) == 3 + cut
    assert isinstance(threads["cut.flac"], str)


@pytest.mark.parametrize("end", ["closed", "failed", "sources"])
def test_no_process_is_left(
    model: SlimWhisper, folder: Path, started: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """After the caller stops early, the engine fails, or the list of sources does."""

    def sources() -> Iterator[Path]:
        for _ in range(4):
            yield from (folder / name for name in GOOD)
        if end == "sources":
            raise OSError("the folder is gone")

    results: Any = model.transcribe_many(sources(), loaders=2, batch_size=1, **QUICK)
    assert isinstance(next(results)[1], Transcript)
    if end == "closed":
        results.close()
        return
    if end == "failed":
        monkeypatch.setattr("slimwhisper.engine.engine.Engine.step", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError if end == "failed" else OSError):
        list(results)


def test_what_only_this_process_opens(model: SlimWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, and /dev/stdin and its like, are read here."""
    monkeypatch.setattr(readers, "ReaderProcess", lambda: pytest.fail("a worker was started"))
    read_end, write_end = os.pipe()
    writer = subprocess.Popen(["cat", PHONE], stdout=write_end)
    os.close(write_end)
    sources: list[Any] = [PHONE.read_bytes(), f"/dev/fd/{read_end}"]
    found = [result for _, result in model.transcribe_many(sources, loaders=2, **QUICK)]
    assert writer.wait(20) == 0
    os.close(read_end)
    assert len({result.text for result in found if isinstance(result, Transcript)}) == 1


def test_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes on a GPU or on 8 cores."""
    monkeypatch.setattr(devices, "WORKERS", 5)
    kinds = (torch.device("cpu"), torch.device("cuda"))
    for quota, expected in ((4.0, [0, 5]), (8.0, [5, 5])):  # of 64 cores
        cores = Cores(64, 64, 32, quota)
        monkeypatch.setattr(devices, "find_cores", lambda cores=cores: cores)
        assert [devices.choose_loaders(None, kind) for kind in kinds] == expected
    assert devices.choose_loaders(3, kinds[0]) == 3
    with pytest.raises(OptionError, match="loaders -1"):
        devices.choose_loaders(-1, kinds[0])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGKILL", -9)])
def test_an_interrupt_leaves_no_process(folder: Path, name: str, status: int) -> None:
    """Ctrl-C reaches the whole group of a terminal's processes; the files in progress finish."""
    for number in range(300):
        (folder / f"more-{number}.wav").symlink_to(PHONE)
    command = [sys.executable, "-m", "slimwhisper", "transcribe", str(folder), "--loaders", "2"]
    child = subprocess.Popen(
        [*command, "--model", "digits", "-o", str(folder / "out"), "-f", "txt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in child.stdout:
        if "more-" in line:  # the first of them is done
            break
    children = Path(f"/proc/{child.pid}/task").glob("*/children")
    workers = [pid for thread in children for pid in thread.read_text().split()]
    assert len(workers) == 2
    os.killpg(child.pid, signal.Signals[name])
    _, err = child.communicate(timeout=60)
    assert child.returncode == status
    assert "its decoder failed" not in err and "Traceback" not in err
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10)


def test_a_recording_whose_readers_are_killed_stays_open(tmp_path: Path, capsys: Any) -> None:
    """As a system kills them that is short of memory: the next run reads the file."""
    killed = f"import os, {readers.__name__} as r; r._send = lambda *_: os.kill(os.getpid(), 9)"
    command = [*"transcribe --model digits --loaders 2 --journal True -f txt -o".split()]
    command += [str(tmp_path), str(PHONE)]
    with patch.object(readers, "COMMAND", [sys.executable, "-c", f"{killed}; r.main()"]):
        assert main(command) == 1
    assert "phone-number.wav: its decoder was killed twice" in capsys.readouterr().err
    (line,) = (tmp_path / JOURNAL_NAME).read_text().splitlines()
    assert json.loads(line)["status"] == "unread"
    assert main(command) == 0
    assert (tmp_path / "phone-number.txt").read_text().startswith("five five five")
