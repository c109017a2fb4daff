"""Stores the page's files in a folder that is private to this process and removed when it ends.

Their age, number and total size are limited.
"""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from slimwhisper.disk import open_locked

PREFIX = "slimwhisper-page-"
KEEP = 6 * 3600.0  # seconds
MAX_COUNT = 1000  # files
LOCK = "lock"  # the file that its process has locked
FILES = "files"  # the subfolder for Gradio's uploads; its protocol shows clients their paths

QUIET = {  # no telemetry, and no table of all events rebuilt after each one
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "100",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}


@contextmanager
def page_folder() -> Iterator[Path]:
    """A new folder that only this user can read, for Gradio's files too; removed at the end.

    Gradio reads the folder and the settings in QUIET from environment variables, whenever it needs
    them. Folders of killed processes are removed first.
    """
    folder, lock = _locked_folder()
    _sweep(folder)
    variables = {"GRADIO_TEMP_DIR": str(folder / FILES), **QUIET}
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield folder
    finally:
        for name in variables:
            os.environ.pop(name)
        os.environ.update(before)
        os.close(lock)  # Windows removes no open files
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder() -> tuple[Path, int]:
    """A new folder, and the descriptor of its lock, which is held until the process ends."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError, BlockingIOError):  # another process has swept it already
            return folder, open_locked(folder / LOCK)


def _sweep(own_folder: Path) -> None:
    """Remove the folders beside `own_folder` whose process has ended."""
    for folder in own_folder.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, or just removed
            status = folder.lstat()
            # no other user can put a link in the place of this user's folder
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == own_folder.stat().st_uid
            if mine and (folder / LOCK).exists():  # else it is just being made
                os.close(open_locked(folder / LOCK, required=True))
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False)
class TempFiles:
    """Files that are stored and removed together."""

    path: Path  # of the file, or of a folder of files
    size: int = 0  # bytes that have arrived
    files: int = 0  # their number, once all have arrived
    since: float | None = None  # when all had arrived, in seconds; None: they are still arriving


T = TypeVar("T", bound=TempFiles)


class Store(Generic[T]):
    """The entries in a folder; the oldest is removed first."""

    def __init__(
        self, folder: Path, max_bytes: int, keep: float = KEEP, max_count: int = MAX_COUNT
    ) -> None:
        """folder: for the files; it is created. max_bytes: of all entries. keep: seconds."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self._max_bytes, self._keep, self._max_count = max_bytes, keep, max_count
        self.entries: dict[str, T] = {}  # by the names in the folder; the oldest first

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size for entry in self.entries.values())

    def room(self) -> int:
        """The limit of `size`, in bytes: never more than half of the space that the disk has."""
        return min(self._max_bytes, (shutil.disk_usage(self.folder).free + self.size) // 2)

    def drop(self, entry: T) -> None:
        """Remove an entry now, even if its files are still arriving."""
        self.entries.pop(entry.path.name, None)
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.path.unlink()

    def remove_old(self) -> None:
        """Remove old entries, then the oldest while the limits are exceeded.

        Entries that are still arriving stay, and so does the only entry within its time.
        """
        oldest = time.monotonic() - self._keep
        for entry in list(self.entries.values()):
            if entry.since is None:
                continue
            files = sum(other.files for other in self.entries.values())
            many = files > max(self._max_count, entry.files)
            over = len(self.entries) > 1 and (many or self.size > self.room())
            if entry.since > oldest and not over:
                break
            self.drop(entry)
