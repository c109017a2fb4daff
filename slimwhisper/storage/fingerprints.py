"""A recording's fingerprint, which identifies it and its state in a journal, and its outcome."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

# failed: because of the recording, which would fail again; unwritten: because of the output folder;
# unread: because of the store that has the recording
Status = Literal["done", "failed", "unwritten", "unread"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a recording and its state: it changes when the recording does."""

    path: str  # absolute, or a URI without credentials
    size: int | None  # bytes; None: the file does not exist
    mtime_ns: int | None
    etag: str | None = None  # of an object in a store, instead of `mtime_ns`

    @staticmethod
    def of(path: Path) -> "Fingerprint":
        """The fingerprint of a file as it is now."""
        absolute = str(path.absolute())
        try:
            stat = path.stat()
        except OSError:
            return Fingerprint(absolute, None, None)
        return Fingerprint(absolute, stat.st_size, stat.st_mtime_ns)


class Outcome(NamedTuple):
    """How a recording ended, for the journal."""

    fingerprint: Fingerprint
    status: Status
    seconds: float | None  # of audio
    error: str | None = None  # why there is no transcript
    empty: bool = False  # an output has nothing in it, as of silence
