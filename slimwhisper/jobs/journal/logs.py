"""Where a journal's lines are kept: in files of a folder, or in objects of a store.

A job appends to `slimwhisper-journal.jsonl`. Nothing can be appended to an object: where outputs go
to a store, a job has a series of objects, `slimwhisper-journal/NAME-000001.jsonl` and so on, and
whoever reads takes those of all jobs.
"""

import fcntl
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ELOOP, ENOSPC
from pathlib import Path

from slimwhisper.errors import OutputError
from slimwhisper.storage.outputs import OutputFolder

JOURNAL_NAME = "slimwhisper-journal.jsonl"
FOLDER = "slimwhisper-journal"  # of objects
OBJECT = 4 << 20  # bytes after which a series gets another object
SYNC = 0.1  # seconds between one time that a file is written to the disk and the next
PERIOD = 5.0  # seconds; a line in a store waits for others no longer, while lines keep coming


logger = logging.getLogger(__name__)


class JournalError(OutputError):
    """Nothing can be marked any more: the job must end."""


class FileLog:
    """Lines in a file of this machine. A killed process loses none; when the power fails, the
    lines of the last tenth of a second may be lost, and their recordings are done again.

    One process holds the file: it is locked until it is closed. One thread appends.
    """

    def __init__(self, path: Path) -> None:
        """Raises OutputError: the file cannot be opened, or another process holds it."""
        self.path = path
        with self._reported():
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self.path, flags, 0o666)
        try:
            self._lock()
            size = os.fstat(self._file).st_size
            self._synced_at = float("-inf")
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except BaseException:
            os.close(self._file)
            raise

    def lines(self) -> Iterator[bytes]:
        """All lines; one may be torn."""
        with self._reported(), open(self._file, "rb", closefd=False) as file:
            file.seek(0)  # they may be read more than once
            yield from file

    def append(self, lines: bytes) -> None:
        """Add whole lines, in one write. Raises OutputError."""
        data = (b"\n" if self._torn else b"") + lines
        with self._reported():
            self._torn = os.write(self._file, data) < len(data)
            if self._torn:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            if time.monotonic() >= self._synced_at + SYNC:  # it takes long in a network's folder
                os.fsync(self._file)
                self._synced_at = time.monotonic()

    def close(self) -> None:
        """Close the file, which releases the lock."""
        try:
            with self._reported():
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"{self.path}: another job is writing to this folder; wait for it to end, "
                "or choose another --output_dir"
            ) from error
        except OSError:  # the file system has no locks
            pass

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"the journal cannot be written ({error.strerror}); free some space"
            if error.errno == ELOOP:
                what = "is a link, which a journal is not written through; remove it"
            raise JournalError(f"{self.path}: {what}, or choose another --output_dir") from error


class StoreLog:
    """Lines in objects. The newest object of a series is put anew, whole, with the lines that have
    come: at most every few seconds, so the last ones before a kill are lost, and their recordings
    are done again, to the same outputs.
    """

    def __init__(self, folder: OutputFolder) -> None:
        """The series' name has an ending that no other run has."""
        self._folder = folder
        self.path = folder.name(f"{FOLDER}/")
        self._series = f"{socket.gethostname()}-{secrets.token_hex(8)}"
        self._number = 0
        self._data = b""  # of the newest object
        self._unsaved = 0  # bytes
        self._saved_at = float("-inf")

    def lines(self) -> Iterator[bytes]:
        """All lines of all jobs, as they were when the log was opened."""
        for name in self._folder.names(FOLDER):
            if name.endswith(".jsonl"):
                yield from self._folder.get(name).splitlines()

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
        """Write what waits. Raises OutputError."""
        self._save()

    def _save(self) -> None:
        if not self._unsaved:
            return
        name = f"{FOLDER}/{self._series}-{self._number:06d}.jsonl"
        self._folder.put(name, self._data)
        self._unsaved, self._saved_at = 0, time.monotonic()
        if len(self._data) >= OBJECT:
            self._number += 1
            self._data = b""
