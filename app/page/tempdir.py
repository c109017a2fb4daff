"""The page's files: in a folder that is private to this process and removed when it ends.

They are kept for some hours; their age, number and total size are limited.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

PREFIX = "slimwhisper-serve-"
KEEP = 6 * 3600.0  # seconds
MAX_COUNT = 1000  # files
FILES = "files"  # the subfolder for Gradio's uploads; its protocol shows clients their paths

QUIET = {  # no telemetry, and no table of all events rebuilt after each one
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "100",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}


@contextmanager
def page_folder() -> Iterator[Path]:
    """A new folder that only this user can read, for Gradio's files too; removed at the end.

    Gradio reads the folder and the settings in QUIET from environment variables, each time it needs
    them. Folders of processes that were killed are removed first.
    """
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY)  # held until the process ends
    fcntl.flock(lock, fcntl.LOCK_SH)
    wanted = {"GRADIO_TEMP_DIR": str(folder / FILES), **QUIET}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield folder
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or just removed
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@dataclass(eq=False)
class Kept:
    """Files that are kept and removed together."""

    path: Path  # of the file, or of a folder of files
    size: int = 0  # bytes that have arrived
    files: int = 0  # once all have arrived
    since: float | None = None  # when that was, in seconds; None: they still arrive


T = TypeVar("T", bound=Kept)


class Store(Generic[T]):
    """What is kept in a folder; the oldest goes first."""

    def __init__(
        self, folder: Path, max_bytes: int, keep: float = KEEP, max_count: int = MAX_COUNT
    ) -> None:
        """folder: for the files; it is created. max_bytes: of all together. keep: seconds."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self._max_bytes, self._keep, self._max_count = max_bytes, keep, max_count
        self.kept: dict[str, T] = {}  # by the names in the folder; the oldest first

    @property
    def size(self) -> int:
        """Bytes of all together."""
        return sum(each.size for each in self.kept.values())

    def room(self) -> int:
        """Bytes that all together may have: never more than half of what the disk has for them."""
        return min(self._max_bytes, (shutil.disk_usage(self.folder).free + self.size) // 2)

    def drop(self, each: T) -> None:
        """Remove something now, with what has arrived of it."""
        self.kept.pop(each.path.name, None)
        if each.path.is_dir():
            shutil.rmtree(each.path, ignore_errors=True)
        else:
            with suppress(OSError):
                each.path.unlink()

    def forget(self) -> None:
        """Remove what is too old, then the oldest while the limits are exceeded.

        What still arrives stays, and so does what is there alone.
        """
        oldest = time.monotonic() - self._keep
        for each in list(self.kept.values()):
            if each.since is None:
                continue
            many = sum(one.files for one in self.kept.values()) > max(self._max_count, each.files)
            over = len(self.kept) > 1 and (many or self.size > self.room())
            if each.since > oldest and not over:
                break
            self.drop(each)
