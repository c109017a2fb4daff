"""Stores a journal's lines, in a file of a folder or in objects of a store.

In a folder, a job appends to `slimwhisper-journal.jsonl`, and a part of a job to a file such as
`slimwhisper-journal-1-of-8.jsonl`; all of them are read. Nothing can be appended to an object: in a
store, each job writes a series of objects, `slimwhisper-journal/NAME-000001.jsonl` and so on, and
reads those of all jobs.
"""

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ELOOP, ENOSPC
from pathlib import Path

from slimwhisper.disk import open_locked
from slimwhisper.errors import OutputError
from slimwhisper.files import JobSink

JOURNAL_NAME = "slimwhisper-journal.jsonl"
FOLDER = "slimwhisper-journal"  # of objects
PARTS = "slimwhisper-journal-*-of-*.jsonl"
OBJECT = 4 << 20  # bytes after which a series gets another object
SYNC = 0.1  # shortest time between two fsyncs, in seconds
PERIOD = 5.0  # shortest time between two writes to a store, in seconds


logger = logging.getLogger(__name__)


class JournalError(OutputError):
    """Outcomes can no longer be recorded, so the job has to end."""


def file_name(shard: tuple[int, int] | None) -> str:
    """The name of the file of a job, or of a part of one: its number, and that of all parts."""
    return JOURNAL_NAME if shard is None else PARTS.replace("*", "{}").format(*shard)


class FileLog:
    """Lines in a local file. A killed process loses none; a power failure may lose the lines of the
    last tenth of a second, whose recordings are then transcribed again.

    The file is locked for one process until it is closed. One thread appends.
    """

    moved = False  # the folder was not the same during the job

    def __init__(self, path: Path) -> None:
        """Raises OutputError: the file cannot be opened, or another process has locked it."""
        self.path = path
        self._synced_at = float("-inf")
        self._open()

    def _open(self) -> None:
        with self._wrap_errors():
            try:
                self._file = open_locked(self.path)
            except BlockingIOError as error:
                raise OutputError(
                    f"{self.path}: another job is writing to this folder; wait for it to end, "
                    "or choose another --output_dir"
                ) from error
            if size := os.lseek(self._file, 0, os.SEEK_END):
                os.lseek(self._file, size - 1, os.SEEK_SET)
            self._torn = size > 0 and os.read(self._file, 1) != b"\n"

    def lines(self) -> Iterator[bytes]:
        """All lines of all parts, the own ones at the end; some may be incomplete."""
        with self._wrap_errors():
            folder = self.path.parent
            for path in (folder / JOURNAL_NAME, *sorted(folder.glob(PARTS))):
                if path != self.path and path.is_file():
                    with path.open("rb") as file:
                        yield from file
        with self._wrap_errors(), open(self._file, "rb", closefd=False) as file:
            file.seek(0)  # they may be read more than once
            yield from file

    def append(self, lines: bytes) -> None:
        """Add whole lines, in one write. Raises OutputError."""
        data = (b"\n" if self._torn else b"") + lines
        with self._wrap_errors():
            self._torn = os.write(self._file, data) < len(data)
            if self._torn:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            if time.monotonic() >= self._synced_at + SYNC:  # slow on a network drive
                self._sync()
                self._synced_at = time.monotonic()

    def _sync(self) -> None:
        """Store the lines: all of them in a new file, if the folder was deleted or replaced."""
        here = os.fstat(self._file)
        try:
            same = os.path.samestat(self.path.stat(), here)
        except OSError:
            same = False
        if not same:
            self.moved, old = True, self._file
            what = "was deleted or replaced, or its folder was, during the job"
            logger.warning("%s: %s; run it again for outputs that are gone", self.path, what)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            with os.fdopen(old, "rb") as file:
                file.seek(0)
                for line in file:
                    os.write(self._file, line)
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        try:
            with self._wrap_errors():
                self._sync()
        finally:
            os.close(self._file)

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"the journal cannot be written ({error.strerror}); free some space"
            if error.errno == ELOOP:
                what = "the journal must not be a link; remove it"
            raise JournalError(f"{self.path}: {what}, or choose another --output_dir") from error


class StoreLog:
    """Lines in objects. The newest object of a series is replaced with one that has the new lines,
    at most every few seconds. So a kill loses the last lines, and their recordings are transcribed
    again, to the same outputs.
    """

    moved = False

    def __init__(self, sink: JobSink) -> None:
        """The name of the series is unique to this run."""
        self._sink = sink
        self.path = sink.name(f"{FOLDER}/")
        self._series = f"{socket.gethostname()}-{secrets.token_hex(8)}"
        self._number = 0
        self._data = b""  # of the newest object
        self._unsaved = 0  # bytes
        self._saved_at = float("-inf")

    def lines(self) -> Iterator[bytes]:
        """All lines of all jobs, as they were when the log was opened."""
        for name in self._sink.names(FOLDER):
            if name.endswith(".jsonl"):
                yield from self._sink.read(name).splitlines()

    def append(self, lines: bytes) -> None:
        self._data += lines
        self._unsaved += len(lines)
        if len(self._data) >= OBJECT or time.monotonic() >= self._saved_at + PERIOD:
            try:
                self._save()
            except OutputError as error:  # the next line tries again, and then `close`
                self._saved_at = time.monotonic()
                logger.warning("%s", error)

    def close(self) -> None:
        """Write the lines that wait. Raises OutputError."""
        self._save()

    def _save(self) -> None:
        if not self._unsaved:
            return
        name = f"{FOLDER}/{self._series}-{self._number:06d}.jsonl"
        self._sink.write(name, self._data)
        self._unsaved, self._saved_at = 0, time.monotonic()
        if len(self._data) >= OBJECT:
            self._number += 1
            self._data = b""
