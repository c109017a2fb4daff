"""A recording's key in a journal, which one it is and in which state; and how it ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

# failed: the recording is at fault and would fail again; unwritten: the output folder is at fault;
# unread: the store that has the recording is
Status = Literal["done", "failed", "unwritten", "unread"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of a recording; it changes when the recording does."""

    path: str  # absolute, or a URI without credentials
    size: int | None  # bytes; None: the file does not exist
    mtime_ns: int | None
    etag: str | None = None  # of an object in a store, instead of `mtime_ns`

    @staticmethod
    def of(path: Path) -> "Stamp":
        """The file as it is now."""
        absolute = str(path.absolute())
        try:
            stat = path.stat()
        except OSError:
            return Stamp(absolute, None, None)
        return Stamp(absolute, stat.st_size, stat.st_mtime_ns)


class Finished(NamedTuple):
    """How a recording ended, as a journal says it."""

    stamp: Stamp
    status: Status
    seconds: float | None  # of audio
    error: str | None = None  # why there is no transcript
