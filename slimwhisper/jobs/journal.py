"""The journal of a folder job: one JSON line for every file that is finished with.

A killed run is resumed from it. A line is added, in one write, once all outputs of its file are in
place; so what is written `done` is whole, and at most the last line can be torn.
"""

import fcntl
import json
import os
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from errno import EACCES, EAGAIN, ENOSPC
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import OutputError

NAME = "slimwhisper-journal.jsonl"
MERGE = 1 << 15  # new digests kept in a set before they join the sorted array

# failed: the recording's fault, and the same again next time; unwritten: the output folder's
Status = Literal["done", "failed", "unwritten"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """One state of a file: it changes when the file does."""

    path: str  # absolute
    size: int | None  # bytes; None: there is no such file
    mtime_ns: int | None

    @staticmethod
    def of(path: Path) -> "Stamp":
        """The file as it is now."""
        absolute = str(path.absolute())
        try:
            stat = path.stat()
        except OSError:
            return Stamp(absolute, None, None)
        return Stamp(absolute, stat.st_size, stat.st_mtime_ns)


class Digests:
    """A set of 64-bit numbers that takes 8 bytes each: a million files are 8 MB."""

    def __init__(self, digests: NDArray[np.uint64] | None = None) -> None:
        self._sorted = np.sort(np.zeros(0, np.uint64) if digests is None else digests)
        self._new: set[int] = set()

    def __contains__(self, digest: int) -> bool:
        if digest in self._new:
            return True
        at = int(np.searchsorted(self._sorted, np.uint64(digest)))
        return at < len(self._sorted) and int(self._sorted[at]) == digest

    def add(self, digest: int) -> None:
        self._new.add(digest)
        if len(self._new) >= MERGE:
            # the new array stands before the set is emptied: another thread may be looking
            new = np.fromiter(self._new, np.uint64, len(self._new))
            self._sorted = np.union1d(self._sorted, new)
            self._new = set()


class Journal:
    """A journal open for one job, which nobody else writes to meanwhile.

    Arguments:
        options: what a transcript depends on beside its recording; lines with others do not count.
        forget: do not look at the lines of earlier runs.
    Raises:
        OutputError: it cannot be opened, or another job holds it.
    """

    def __init__(self, path: Path, options: Mapping[str, Any], *, forget: bool = False) -> None:
        self.path = path
        self._options = json.loads(json.dumps(options))
        self._key = _canonical(self._options)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock()
            self.earlier = Digests(None if forget else self._read())
            size = os.fstat(self._file).st_size
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except BaseException:
            os.close(self._file)
            raise
        self._now = Digests()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EAGAIN, EACCES):
                raise OutputError(
                    f"{self.path}: another job is writing to this folder; wait for it to end, "
                    "or choose another --output_dir"
                ) from error
            # else: a file system without locks

    def _read(self) -> NDArray[np.uint64]:
        """The digests of all lines that settle a file."""
        digests = array("Q")
        with open(self._file, "rb", closefd=False) as file:
            for record in _records(file):
                if record.get("status") not in ("done", "failed"):
                    continue
                stamp = Stamp(record.get("path", ""), record.get("size"), record.get("mtime_ns"))
                digests.append(_digest(stamp, _canonical(record.get("options")), record["status"]))
        return np.frombuffer(digests, np.uint64) if digests else np.zeros(0, np.uint64)

    def status(self, stamp: Stamp, *, before: bool = False) -> Status | None:
        """What became of a file in this state with these options; `before`: before this run."""
        if stamp.size is None:
            return None
        statuses: tuple[Status, ...] = ("done", "failed")
        for status in statuses:
            digest = _digest(stamp, self._key, status)
            if digest in self.earlier or (not before and digest in self._now):
                return status
        return None

    def add(
        self, stamp: Stamp, status: Status, seconds: float | None, error: str | None = None
    ) -> None:
        """Write down that a file is finished with; on the disk when this returns."""
        record = {
            "path": stamp.path,
            "size": stamp.size,
            "mtime_ns": stamp.mtime_ns,
            "options": self._options,
            "status": status,
            "seconds": None if seconds is None else round(seconds, 3),
            "error": error,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        # ASCII: names that are not UTF-8 survive as escaped surrogates
        line = ("\n" if self._torn else "") + json.dumps(record) + "\n"
        data = line.encode("ascii")
        try:
            written = os.write(self._file, data)
            self._torn = written < len(data)
            if self._torn:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(self._file)
        except OSError as failure:
            raise self._unwritable(failure) from failure
        if status != "unwritten":
            self._now.add(_digest(stamp, self._key, status))

    def close(self) -> None:
        """Let go of it; the lock ends with it."""
        os.close(self._file)

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self.path}: the journal cannot be written ({error.strerror}); free some space, "
            "or choose another --output_dir"
        )


def _records(lines: Iterator[bytes] | Any) -> Iterator[dict[str, Any]]:
    """The lines that can be read; a torn one, or one that somebody edited, settles nothing."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _canonical(options: Any) -> str:
    return json.dumps(options, sort_keys=True)


def _digest(stamp: Stamp, options: str, status: str) -> int:
    """64 bits: among a million files two agree by chance once in 10^7 jobs."""
    text = json.dumps([stamp.path, stamp.size, stamp.mtime_ns, options, status])
    return int.from_bytes(blake2b(text.encode("ascii"), digest_size=8).digest(), "little")
