"""Other systems: the core without what only Unix has, in processes from which it was taken."""

import ast
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import soundfile
import torch

from slimwhisper import devices
from slimwhisper.app import command, connections
from slimwhisper.disk import open_locked
from slimwhisper.errors import DependencyError
from tests.support.command import python
from tests.support.live import serving
from tests.support.paths import PHONE, ROOT, SAMPLES, WORDS, modules

BARE = ROOT / "tests/support/bare"  # a sitecustomize.py: what is taken
bare = partial(python, PYTHONPATH=str(BARE), OMP_NUM_THREADS="1")
UNIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NOT_IMPORTED_YET = UNIX_MODULES | {"msvcrt", "numba", "triton", "winreg"}
UNIX_CALLS = set(
    "fchmod fchown fork getuid geteuid getgid killpg mkfifo pread pwrite sched_getaffinity setsid "
    "statvfs uname O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK".split()
)


def test_what_is_imported_at_the_top() -> None:
    """Nothing that another system, or a machine without a GPU, may lack."""
    assert len(modules()) > 200
    for path in modules():
        name, module = str(path.relative_to(ROOT)), ast.parse(path.read_text())
        found = {alias.name for n in module.body if isinstance(n, ast.Import) for alias in n.names}
        found |= {str(n.module) for n in module.body if isinstance(n, ast.ImportFrom)}
        allowed = {"triton"} if name.startswith("kernels/gpu/") else set()
        assert not {n.partition(".")[0] for n in found} & NOT_IMPORTED_YET - allowed, name
        attributes = (n for n in ast.walk(module) if isinstance(n, ast.Attribute))
        used = {n.attr for n in attributes if ast.unparse(n.value) == "os"}
        assert not used & UNIX_CALLS, name


@pytest.mark.slow
def test_a_folder_and_its_resumption(tmp_path: Path) -> None:
    """Also in a reader process."""
    assert "import of fcntl halted" in bare("-c", "import fcntl").stderr
    folder, texts = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("phone-number.wav", "flight.m4a"):
        shutil.copy(SAMPLES / name, folder)
    flags = ("--model", "digits", "--device", "cpu", "--loaders", "1")
    command = ("-m", "slimwhisper", "transcribe", str(folder), "-o", str(texts), *flags)
    done = bare(*command)
    assert done.returncode == 0 and "2 of 2 files transcribed" in done.stderr, done.stderr
    assert " ".join((texts / "phone-number.txt").read_text().split()) == WORDS
    done = bare(*command)
    assert done.returncode == 0 and "Nothing to do: 2 already done" in done.stderr, done


@pytest.mark.slow
def test_live_from_standard_input(tmp_path: Path) -> None:
    soundfile.read(PHONE, dtype="int16")[0].tofile(tmp_path / "samples")
    command = ("-m", "slimwhisper", "live", "--model", "digits", "--device", "cpu")
    with (tmp_path / "samples").open("rb") as samples:
        done = bare(*command, stdin=samples)
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stdout.split()) == WORDS


@pytest.mark.slow
def test_a_request_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    for name, value in {"PYTHONPATH": BARE, "TMPDIR": uploads, "OMP_NUM_THREADS": 1}.items():
        monkeypatch.setenv(name, str(value))
    with serving(tmp_path / "log", "--device cpu", "--no_page") as (url, _):
        files = {"file": PHONE.read_bytes()}
        answer = httpx.post(f"{url}/v1/audio/transcriptions", files=files, timeout=60)
        assert answer.json()["text"] == WORDS
    assert list(uploads.iterdir()) == [], "no upload is left"


def test_branches_of_other_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "name", "nt")
        assert devices.choose_loaders(3, torch.device("cpu")) == 0
    monkeypatch.setitem(sys.modules, "resource", None)
    assert connections.raise_file_limit() == connections.MAX_FILES
    monkeypatch.setattr(command, "OPEN_FILES", tmp_path / "none")
    with pytest.raises(DependencyError, match="serve needs Linux"):
        command.run_serve(command.argparse.Namespace())


def test_where_a_file_system_has_no_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unsupported = Mock(side_effect=OSError(95, "Operation not supported"))
    monkeypatch.setattr("fcntl.flock", unsupported)
    os.close(open_locked(tmp_path / "file"))
    with pytest.raises(OSError, match="not supported"):
        open_locked(tmp_path / "file", required=True)
