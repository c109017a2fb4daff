"""What an attack may leave behind: open files, files on disk, memory."""

import ctypes
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from tests.support.live import Live, eventually

FEW_FILES = 3  # open files that a server may keep for later: of Gradio's threads, of its log
MEMORY = 64 << 20  # bytes by which the process may grow
LIBC = ctypes.CDLL(None)  # glibc
LIBC.mallopt(-8, 1)  # M_ARENA_MAX: one heap for all threads, as of others no end is given back


def open_files() -> int:
    """The open files and sockets of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def disk_bytes() -> int:
    """Bytes of the files in the temporary folder, which tests that attack have to themselves."""
    files = Path(tempfile.gettempdir()).rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def unnamed_bytes() -> int:
    """Bytes of this process's files without a name in the temporary folder."""
    total, folder = 0, tempfile.gettempdir()
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = str(opened.readlink())
            if name.startswith(folder) and name.endswith("(deleted)"):
                total += opened.stat().st_size
    return total


def memory() -> int:
    """Bytes of memory that this process has, without those that it has freed."""
    LIBC.malloc_trim(0)  # else they come and go with the heap's holes
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) << 10


@contextmanager
def unharmed(*servers: Live) -> Iterator[None]:
    """Asserts that the servers answer afterwards, and that nothing is left behind."""
    files, stored, resident = open_files(), disk_bytes(), memory()
    yield
    for live in servers:
        with urlopen(f"{live.url}/health", timeout=10) as answer:
            assert json.load(answer) == {"status": "ready"}
        assert eventually(lambda live=live: live.service.in_flight == 0)  # type: ignore[misc]
    assert eventually(lambda: open_files() <= files + FEW_FILES), "files stay open"
    assert eventually(lambda: disk_bytes() <= stored), "files stay on disk"
    assert eventually(lambda: memory() < resident + MEMORY), "memory is kept"
