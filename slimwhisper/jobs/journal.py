"""The journal of a folder job: one JSON line per finished file, so that a killed job can resume.

A line is appended in one write, once all outputs of the file are in place. So a file marked `done`
is complete, and only the last line of a journal can be torn.
"""

import fcntl
import json
import os
import re
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EACCES, EAGAIN, ENOSPC
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import OutputError

JOURNAL_NAME = "slimwhisper-journal.jsonl"
MERGE = 1 << 15  # new digests collected in a set before they join the sorted array

# a quote inside a JSON string is escaped, so this has one meaning
WRITTEN = re.compile(
    rb'\{"path": ("[^"\\]*(?:\\.[^"\\]*)*"), "size": (\d+), "mtime_ns": (\d+), '
    rb'"options": (\{.*\}), "status": ("done"|"failed"), "seconds": [^"]*, "error": .*\}\n'
)

# failed: the recording is at fault and would fail again; unwritten: the output folder is at fault
Status = Literal["done", "failed", "unwritten"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of a file; it changes when the file does."""

    path: str  # absolute
    size: int | None  # bytes; None: the file does not exist
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


@dataclass(frozen=True, slots=True)
class Line:
    """A finished file."""

    stamp: Stamp
    status: Status
    seconds: float | None
    error: str | None = None


class Digests:
    """A set of 64-bit numbers, 8 bytes each: 8 MB for a million files."""

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
            # Replace the array before emptying the set: another thread may be searching. Not by
            # np.union1d, whose table of hashes takes ten times the memory of the array.
            new = np.sort(np.fromiter(self._new, np.uint64, len(self._new)))
            merged = np.concatenate((self._sorted, new))
            merged.sort(kind="stable")  # merges two sorted runs
            self._sorted = merged
            self._new = set()


class Journal:
    """A journal, locked for one job while it is open.

    Arguments:
        options: what a transcript depends on besides its recording. Lines with other options do
            not count.
        variants: more options; a line counts with any one of the variants. New lines record the
            first, or the one given to `record_variant`.
        forget: ignore the lines of earlier runs.
    Raises:
        OutputError: the journal cannot be opened, or another job holds it.
    """

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        *,
        variants: Sequence[Mapping[str, Any]] = ({},),
        forget: bool = False,
    ) -> None:
        self.path = path
        self._options = dict(options)
        self._accepted = [_canonical(self._options | dict(variant)) for variant in variants]
        self.record_variant(variants[0])
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

    def record_variant(self, variant: Mapping[str, Any]) -> None:
        """Record these options in new lines, next to those that all variants share."""
        self._recorded = self._options | dict(variant)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EAGAIN, EACCES):
                raise OutputError(
                    f"{self.path}: another job is writing to this folder; wait for it to end, "
                    "or choose another --output_dir"
                ) from error
            # otherwise the file system has no locks

    def _read(self) -> NDArray[np.uint64]:
        """The digests of all lines that mark a file done or failed."""
        digests = array("Q")
        with open(self._file, "rb", closefd=False) as file:
            options: dict[bytes, bytes] = {}  # as written -> as in a digest
            for line in file:
                digest = _written_digest(line, options)
                if digest is not None:
                    digests.append(digest)
                    continue
                for record in _records([line]):
                    if record.get("status") not in ("done", "failed"):
                        continue
                    path, size = record.get("path", ""), record.get("size")
                    stamp = Stamp(path, size, record.get("mtime_ns"))
                    written = _canonical(record.get("options"))
                    digests.append(_digest(stamp, written, record["status"]))
        return np.frombuffer(digests, np.uint64) if digests else np.zeros(0, np.uint64)

    def status(self, stamp: Stamp, *, before: bool = False) -> Status | None:
        """Whether a file in this state is done or failed; `before`: in an earlier run."""
        if stamp.size is None:
            return None
        statuses: tuple[Status, ...] = ("done", "failed")
        for status in statuses:
            for options in self._accepted:
                digest = _digest(stamp, options, status)
                if digest in self.earlier or (not before and digest in self._now):
                    return status
        return None

    def add(
        self, stamp: Stamp, status: Status, seconds: float | None, error: str | None = None
    ) -> None:
        """Append a finished file; the line is on disk when this returns."""
        self.add_all([Line(stamp, status, seconds, error)])

    def add_all(self, lines: Sequence[Line]) -> None:
        """Append finished files in one write; all lines are on disk when this returns.

        If the process is killed meanwhile, the first of them are whole and one at most is torn.
        """
        if not lines:
            return
        moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        # ASCII, so that names that are not UTF-8 survive as escaped surrogates
        text = "".join(json.dumps(self._record(line, moment)) + "\n" for line in lines)
        data = (("\n" if self._torn else "") + text).encode("ascii")
        try:
            written = os.write(self._file, data)
            self._torn = written < len(data)
            if self._torn:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(self._file)
        except OSError as failure:
            raise self._unwritable(failure) from failure
        options = _canonical(self._recorded)
        for line in lines:
            if line.status != "unwritten":
                self._now.add(_digest(line.stamp, options, line.status))

    def _record(self, line: Line, moment: str) -> dict[str, Any]:
        stamp, seconds = line.stamp, line.seconds
        return {
            "path": stamp.path,
            "size": stamp.size,
            "mtime_ns": stamp.mtime_ns,
            "options": self._recorded,
            "status": line.status,
            "seconds": None if seconds is None else round(seconds, 3),
            "error": line.error,
            "time": moment,
        }

    def close(self) -> None:
        """Close the file, which releases the lock."""
        os.close(self._file)

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self.path}: the journal cannot be written ({error.strerror}); free some space, "
            "or choose another --output_dir"
        )


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; torn or damaged lines are ignored."""
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
    """64 bits: two of a million files collide by chance once in 10^7 jobs."""
    text = json.dumps([stamp.path, stamp.size, stamp.mtime_ns, options, status])
    return _digest_of(text.encode("ascii"))


def _digest_of(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _written_digest(line: bytes, options: dict[bytes, bytes]) -> int | None:
    """The digest of a line just as `Journal` writes it, ten times faster than from its parts.

    None for any other line. `options` is what has been found so far.
    """
    found = WRITTEN.fullmatch(line)
    if found is None:
        return None
    path, size, mtime_ns, given, status = found.groups()
    if given not in options:
        try:
            canonical = _canonical(json.loads(given))
        except ValueError:
            return None
        options[given] = json.dumps(canonical).encode("ascii")
    parts = (path, size, mtime_ns, options[given], status)
    return _digest_of(b"[" + b", ".join(parts) + b"]")
