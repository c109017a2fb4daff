"""Files that are kept for some hours: their age, number and total size are limited."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

KEEP = 6 * 3600.0  # seconds
MAX_COUNT = 1000  # files


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
