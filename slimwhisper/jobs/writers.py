"""Writes results to files in a folder, objects in a store or a parquet table, and records them.

A recording's outputs are written first, and then it is recorded in the journal, so `done` always
means that all outputs exist, even after a kill.

In a job with workers, the driver has the results and the only journal; workers have only their
`write`, and report each result after they have written it. If a worker dies, another may write the
same recording again: its files or objects replace the earlier ones. Rows of a table could not be
replaced, so the driver writes them, together with their records.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from slimwhisper.errors import (
    AudioError,
    OutputError,
    ReaderKilledError,
    SlimWhisperError,
    StorageError,
)
from slimwhisper.files import InputFile, JobSink, Outcome, Status, sweep
from slimwhisper.jobs.journal import Journal
from slimwhisper.outputs import FORMATS, RECORDING
from slimwhisper.types import Transcript

PARQUET = "parquet"  # the format that writes a table, not a file for each recording
LONGEST_NAME = 255  # bytes, in common file systems
OTHERS_WRITE = 3600.0  # seconds after which another job's unfinished file is a killed one's
FOLDERS = 4096  # remembered as swept; sweeping one again only costs time

Write = Callable[[InputFile, Transcript], Sequence[str]]


@dataclass(frozen=True, slots=True)
class RecordingResult:
    """How a recording ended, and its outputs. It can be pickled."""

    status: Status
    result: Transcript | SlimWhisperError
    outputs: Sequence[str] = ()
    seconds: float | None = None  # of audio
    elapsed: float | None = None  # seconds since it was given to a worker

    def outcome(self, recording: InputFile) -> Outcome:
        """The record for the journal."""
        error = str(self.result) if isinstance(self.result, SlimWhisperError) else None
        return Outcome(recording.fingerprint, self.status, self.seconds, error, recording.output)


def write_result(
    write: Write, recording: InputFile, result: Transcript | SlimWhisperError
) -> RecordingResult:
    """Write a transcript; the result has the error if that fails."""
    if isinstance(result, SlimWhisperError):
        unread = isinstance(result, StorageError | ReaderKilledError)
        return RecordingResult("unread" if unread else "failed", result)
    try:
        return RecordingResult("done", result, write(recording, result))
    except OutputError as error:
        return RecordingResult("unwritten", error)


@dataclass(frozen=True, slots=True)
class Files:
    """The outputs of recordings: a file, or an object, for each format. It can be pickled."""

    sink: JobSink
    formats: tuple[str, ...]
    layout: Mapping[str, Any]  # see `OutputFormat.write`

    def write(self, recording: InputFile, transcript: Transcript) -> Sequence[str]:
        """Write all outputs of a recording. Raises OutputError."""
        layout = {**self.layout, RECORDING: recording.output.rpartition("/")[2]}
        names = self._names(recording)
        for format, name in zip(self.formats, names, strict=True):
            if self._is_input(name, recording):
                path = self.sink.name(name)
                raise OutputError(f"{path}: would overwrite the input; choose another --output_dir")
            self.sink.write(name, FORMATS[format].render(transcript, layout))
        return [self.sink.name(name) for name in names]

    def exist(self, recording: InputFile, *, empty: bool = False) -> bool:
        """Whether all outputs of a recording exist, and have something in them, or may be empty."""
        return all(self.sink.exists(name, empty) for name in self._names(recording))

    def check_name(self, entry: InputFile | SlimWhisperError) -> InputFile | SlimWhisperError:
        """The same; an error for a recording whose outputs would have names that are too long."""
        if isinstance(entry, SlimWhisperError) or self.sink.local is None:
            return entry
        longest = max(len(os.fsencode(name.rpartition("/")[2])) for name in self._names(entry))
        if longest <= LONGEST_NAME:
            return entry
        what = f"an output's name would have {longest} bytes, more than {LONGEST_NAME}"
        return AudioError(f"{entry.path}: {what}; rename the recording")

    def _is_input(self, name: str, recording: InputFile) -> bool:
        folder, source, real_path = self.sink.local, recording.local, os.path.realpath
        if folder is None or source is None:
            return False
        return real_path(folder / name) == real_path(source)  # of a link in a circle, too

    def _names(self, recording: InputFile) -> list[str]:
        return [f"{recording.output}.{format}" for format in self.formats]


class JobResults:
    """Writes and records the results of a job, a file for each format. One thread records.

    `write` may be sent to other processes.
    """

    def __init__(
        self,
        files: Files,
        journal: Journal | None,
        *,
        skip_existing: bool,
        retry_failed: bool,
        alone: bool = True,
    ) -> None:
        """alone: no other job writes to this folder at the same time."""
        self.write: Write = files.write
        self.files, self.journal = files, journal
        self._skip_existing, self._retry_failed = skip_existing, retry_failed
        began = time.time() - (0 if alone else OTHERS_WRITE)
        # removes files that a killed run left unfinished, in the folders that this run writes to
        self._sweep = lru_cache(FOLDERS)(lambda folder: sweep(folder, began))

    def earlier_status(self, recording: InputFile) -> Status | None:
        """The status of a recording that needs no work, from an earlier run."""
        status = None if self.journal is None else self.journal.status(recording)
        if status == "failed":
            return None if self._retry_failed else status
        may_exist = status == "done" or self._skip_existing
        return "done" if may_exist and self._exists(recording, recorded=bool(status)) else None

    def _exists(self, recording: InputFile, *, recorded: bool) -> bool:
        """Whether the outputs exist, as they were written or corrected: one that has been emptied
        does not count. In a store the journal is trusted, as each check would be a request.
        """
        if recorded and self.files.sink.local is None:
            return True
        empty = self.journal is not None and self.journal.is_empty(recording)
        return self.files.exist(recording, empty=empty)

    def record(self, recording: InputFile, result: RecordingResult) -> None:
        """Record a recording that has been written, or has no outputs. Raises JournalError."""
        if self.journal is not None:
            outcome = result.outcome(recording)
            if (folder := self.files.sink.local) is not None:
                self._sweep((folder / recording.output).parent)
                empty = result.status == "done" and not self.files.exist(recording)
                outcome = outcome._replace(empty=empty)
            self.journal.add(outcome)

    def close(self) -> None:
        """Write and record the results that wait. Raises OutputError."""
