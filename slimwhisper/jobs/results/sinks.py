"""Where results go: files in a folder, objects in a store, or a parquet table; and their marks.

A recording's outputs are written whole, and then it is marked in the journal. So what is marked
`done` has all its outputs, whoever is killed and when.

Of a job with workers, the driver has the sink, with the only journal, and marks what workers report
that they have written. A worker has the sink's `write` alone. So there is one result for every
recording: a worker that dies has reported only what is written. A second worker may write the same
recording, but its files or objects take the place of the first. Rows cannot, so they are written
where they are marked.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import Any

from slimwhisper.errors import AudioError, OutputError, SlimWhisperError, StorageError
from slimwhisper.jobs.journal.journal import Journal
from slimwhisper.outputs.formats import write_transcript
from slimwhisper.outputs.layout import RECORDING
from slimwhisper.storage import tables
from slimwhisper.storage.digests import Digests, digest_of
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.outputs import OutputFolder, sweep
from slimwhisper.storage.stamps import Finished, Status
from slimwhisper.types import Transcript

PARQUET = "parquet"  # the format that is no file beside the others
LONGEST_NAME = 255  # bytes, of every usual file system
FOLDERS = 4096  # remembered as swept; sweeping one again only costs time

Write = Callable[[InputFile, Transcript], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a recording ended, and its outputs. It can be pickled."""

    status: Status
    result: Transcript | SlimWhisperError
    outputs: Sequence[str] = ()
    seconds: float | None = None  # of audio
    elapsed: float | None = None  # seconds since it was given to a worker

    def finished(self, recording: InputFile) -> Finished:
        """What the journal records."""
        error = str(self.result) if isinstance(self.result, SlimWhisperError) else None
        return Finished(recording.stamp, self.status, self.seconds, error)


def write_result(
    write: Write, recording: InputFile, result: Transcript | SlimWhisperError
) -> Ended:
    """Write a transcript; an error that prevents that is in the result."""
    if isinstance(result, SlimWhisperError):
        unread = isinstance(result, StorageError)
        return Ended("unread" if unread else "failed", result)
    try:
        return Ended("done", result, write(recording, result))
    except OutputError as error:
        return Ended("unwritten", error)


@dataclass(frozen=True, slots=True)
class Files:
    """The outputs of recordings: a file, or an object, for each format. It can be pickled."""

    folder: OutputFolder
    formats: tuple[str, ...]
    layout: Mapping[str, Any]  # see `write_transcript`

    def write(self, recording: InputFile, transcript: Transcript) -> Sequence[str]:
        """Write all outputs of a recording. Raises OutputError."""
        layout = {**self.layout, RECORDING: recording.output.rpartition("/")[2]}
        names = self._names(recording)
        for format, name in zip(self.formats, names, strict=True):
            if self._is_input(name, recording):
                place = self.folder.name(name)
                raise OutputError(f"{place}: is the input itself; choose another --output_dir")
            text = StringIO()
            write_transcript(transcript, format, text, layout)
            self.folder.put(name, text.getvalue().encode())
        return [self.folder.name(name) for name in names]

    def exist(self, recording: InputFile) -> bool:
        """Whether all outputs of a recording are there."""
        return all(map(self.folder.exists, self._names(recording)))

    def checked(self, found: InputFile | SlimWhisperError) -> InputFile | SlimWhisperError:
        """The same; an error for a recording whose outputs would have names that are too long."""
        if isinstance(found, SlimWhisperError) or not self.folder.is_local:
            return found
        most = max(len(os.fsencode(name.rpartition("/")[2])) for name in self._names(found))
        if most <= LONGEST_NAME:
            return found
        return AudioError(
            f"{found.path}: its outputs would have names of {most} bytes, and {LONGEST_NAME} are "
            "possible; give it a shorter name"
        )

    def _is_input(self, name: str, recording: InputFile) -> bool:
        source = recording.local if self.folder.is_local else None
        here = os.path.realpath  # of a link in a circle, too
        return source is not None and here(self.folder.here(name)) == here(source)

    def _names(self, recording: InputFile) -> list[str]:
        return [f"{recording.output}.{format}" for format in self.formats]


class Sink:
    """Writes and marks the results of a job: files or objects. One thread marks.

    `write` may be sent to other processes.
    """

    def __init__(
        self, files: Files, journal: Journal | None, *, skip_existing: bool, retry_failed: bool
    ) -> None:
        self.write: Write = files.write
        self.journal = journal
        self._files = files
        self._skip_existing, self._retry_failed = skip_existing, retry_failed
        began = time.time()
        # what a killed run has left half written, in the folders that this run writes to
        self._sweep = lru_cache(FOLDERS)(lambda folder: sweep(folder, began))

    def done_before(self, recording: InputFile) -> Status | None:
        """The status of a recording that needs no work, from an earlier run."""
        status = None if self.journal is None else self.journal.status(recording.stamp)
        if status == "failed":
            return None if self._retry_failed else status
        if status == "done" or self._skip_existing:
            return "done" if self._exists(recording, marked=status == "done") else None
        return None

    def _exists(self, recording: InputFile, *, marked: bool) -> bool:
        """Whether the outputs are there. In a store the journal is believed: each look would be a
        request.
        """
        return (marked and not self._files.folder.is_local) or self._files.exist(recording)

    def read(self, recording: InputFile, format: str) -> bytes | None:
        """An output of an earlier run; None: there is none, or it cannot be read."""
        try:
            return self._files.folder.get(f"{recording.output}.{format}")
        except OutputError:
            return None

    def mark(self, recording: InputFile, ended: Ended) -> None:
        """Mark a recording that has been written, or has no outputs. Raises JournalError."""
        if self.journal is not None:
            if self._files.folder.is_local:
                self._sweep(self._files.folder.here(recording.output).parent)
            self.journal.add(ended.finished(recording))

    def close(self) -> None:
        """Write and mark what waits. Raises OutputError."""


class TableSink(Sink):
    """Rows of a parquet table, here or in a store; a recording that failed has a row as well.

    Rows wait for others. They are in the journal once their file is there, so those that wait when
    a job is killed are done again. Rows that cannot be written wait for the next attempt.
    """

    def __init__(self, files: Files, journal: Journal | None, **rest: bool) -> None:
        """Raises DependencyError without pyarrow."""
        super().__init__(files, journal, **rest)
        folder = files.folder
        place = [f"{folder.name(tables.FOLDER)}/"]
        self.write = lambda recording, transcript: place
        self._parts = tables.Parts(folder)
        if folder.is_local:
            self._sweep(folder.here(tables.FOLDER))
        self._paths = Digests()  # that have a row
        self._doubled = False
        for finished, options in tables.recover(folder):
            self._note(finished)
            if journal is not None:
                journal.adopt(finished, options)

    def _exists(self, recording: InputFile, *, marked: bool) -> bool:
        return marked

    def mark(self, recording: InputFile, ended: Ended) -> None:
        """Write and mark the rows that have waited long enough, then let this one wait. Raises
        OutputError, for a transcript, if those before it cannot be written.
        """
        if ended.status not in ("done", "failed"):
            super().mark(recording, ended)
            return
        if ended.status == "done" and self._parts.full:
            self._flush()
        transcript = ended.result if isinstance(ended.result, Transcript) else None
        self._parts.add(ended.finished(recording), transcript)
        self._note(ended.finished(recording))

    def close(self) -> None:
        """Write and mark the rows that wait, and leave one row for each recording: the newest, of
        a file that has changed or had failed. Raises OutputError.
        """
        self._flush()
        if self._doubled:
            tables.compact(self._files.folder)

    def _note(self, finished: Finished) -> None:
        path = finished.stamp.path.encode(errors="surrogatepass")
        self._doubled |= not self._paths.add(digest_of(path))

    def _flush(self) -> None:
        written = self._parts.write({} if self.journal is None else self.journal.recorded)
        if self.journal is not None:
            self.journal.add(*written)
