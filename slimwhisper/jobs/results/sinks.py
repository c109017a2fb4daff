"""Where results go: files in a folder, objects in a store, or a parquet table.

A job, in one process or many, needs two things of storage, and no more:

- a source, an iterator of `InputFile` and errors, lazily: `Inputs.files` for paths,
  `StoredArguments.files` for URIs, manifests, tables and archives. An `InputFile` has `path`, which
  `transcribe_many` takes, and `stamp()`, the recording's key. It can be pickled, and sent to the
  worker that fetches and decodes it.
- a `Sink`, from `open_sink`. It writes a recording's outputs whole, and marks recordings. What is
  marked `done` has all its outputs, whoever is killed and when, because callers write first.

`sink.prepare()`, `journal = Journal(sink.journal_place, options)`, `sink.start(journal)`; for each
recording `journal.status(stamp)` and `sink.exists`, then `write_result` and `sink.mark`; in the end
`sink.close()`, then `journal.close()`.

Of a job with workers, only the driver does this, and keeps the only journal. A worker opens a sink
of its own, which is never started, and calls `write_result`; the driver marks what workers report.
So there is one result for every recording. The driver knows which report of a recording is the
first, and marks that one; a worker that dies has reported only what is written. Journals of
workers would have lines of recordings that the driver has given to another worker by then. A
second worker may write the same recording, but its files or objects take the place of the first.
Rows cannot: so a table's results go to the driver, which writes the row when it marks
(`Sink.is_table`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

from slimwhisper.errors import OutputError, SlimWhisperError, StorageError
from slimwhisper.jobs.inputs.inputs import InputFile
from slimwhisper.jobs.journal.journal import Finished, Journal
from slimwhisper.jobs.journal.logs import JOURNAL_NAME, JournalError
from slimwhisper.jobs.results.files import (
    Sweeper,
    output_paths,
    outputs_exist,
    prepare_output_dir,
    write_outputs,
)
from slimwhisper.jobs.results.marks import Mark, Outputs, Written
from slimwhisper.outputs.formats import formats_of, write_transcript
from slimwhisper.outputs.layout import RECORDING
from slimwhisper.storage import tables
from slimwhisper.storage.digests import Digests
from slimwhisper.storage.outputs import OutputStore
from slimwhisper.storage.uris import is_uri
from slimwhisper.types import Transcript

PARQUET = "parquet"  # the format that is no file beside the others
WITH_ROW = ("done", "failed")


class Sink(ABC):
    """Takes the results of a job. One thread calls."""

    is_table = False  # results become rows, as they are marked
    longest_name = inf  # bytes that the name of an output may have

    def __init__(
        self,
        root: Path,
        formats: tuple[str, ...],
        journal_place: Path | OutputStore,
        layout: Mapping[str, Any] | None = None,
    ) -> None:
        """root: what `InputFile.output` has to be below. formats: what is written for a recording.
        journal_place: where the journal belongs. layout: see `write_transcript`.
        """
        self.root, self.formats, self.journal_place = root, formats, journal_place
        self._layout = layout or {}
        self._journal: Journal | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Find out whether results can be written. Raises OutputError."""

    def start(self, journal: Journal | None) -> None:
        """Mark finished recordings here; None: nowhere. Mends what a killed job left."""
        self._journal = journal

    @abstractmethod
    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        """Whether a recording's outputs are there; `marked`: a journal says so."""

    @abstractmethod
    def write(self, recording: InputFile, transcript: Transcript) -> Outputs:
        """Write all outputs of a recording; for a row, make room. Raises OutputError."""

    def read(self, recording: InputFile, format: str) -> bytes | None:
        """An output of an earlier run; None: there is none, or it cannot be read."""
        return None

    def mark(self, marks: Sequence[Mark]) -> None:
        """Mark recordings that `write` has written, or that have no outputs, all in one write."""
        if self._journal is not None:
            self._journal.add_all([mark.finished for mark in marks])

    def sweep(self, folders: Iterable[Path]) -> None:  # noqa: B027 - only files are half written
        """Once all workers have ended: remove what dead ones have left half written."""

    def close(self) -> None:  # noqa: B027 - only rows wait
        """Write and mark what waits. Raises OutputError."""

    def layout(self, recording: InputFile) -> dict[str, Any]:
        """The layout, and the name by which RTTM calls the recording."""
        return {**self._layout, RECORDING: recording.output.name}


class FolderSink(Sink):
    """Files in a folder of this machine."""

    longest_name = 255.0  # of every usual file system

    def __init__(
        self, folder: Path, formats: tuple[str, ...], layout: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder, formats, folder / JOURNAL_NAME, layout)
        self._sweeper = Sweeper()

    def prepare(self) -> None:
        prepare_output_dir(self.root)

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        return outputs_exist(recording, self.formats)

    def write(self, recording: InputFile, transcript: Transcript) -> Outputs:
        return write_outputs(transcript, recording, self.formats, self.layout(recording))

    def read(self, recording: InputFile, format: str) -> bytes | None:
        try:
            return output_paths(recording, [format])[0].read_bytes()
        except OSError:
            return None

    def mark(self, marks: Sequence[Mark]) -> None:
        if self._journal is not None:
            for mark in marks:
                self._sweeper.sweep(mark.recording.output.parent)
        super().mark(marks)

    def sweep(self, folders: Iterable[Path]) -> None:
        sweeper = Sweeper()
        for folder in folders:
            sweeper.sweep(folder)


class StoreSink(Sink):
    """Objects in a store. An object is there whole or not at all, and a second result of a
    recording takes the place of the first.
    """

    def __init__(
        self, store: OutputStore, formats: tuple[str, ...], layout: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(Path(), formats, store, layout)
        self._store = store

    def prepare(self) -> None:
        self._store.check()

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        """A journal is believed: each look would be a request."""
        return marked or all(self._store.exists(name) for name in self._names(recording))

    def write(self, recording: InputFile, transcript: Transcript) -> Outputs:
        names = self._names(recording)
        for format, name in zip(self.formats, names, strict=True):
            text = StringIO()
            write_transcript(transcript, format, text, self.layout(recording))
            self._store.put(name, text.getvalue().encode())
        return [self._store.name(name) for name in names]

    def read(self, recording: InputFile, format: str) -> bytes | None:
        try:
            return self._store.get(output_paths(recording, [format])[0].as_posix())
        except OutputError:
            return None

    def _names(self, recording: InputFile) -> list[str]:
        return [path.as_posix() for path in output_paths(recording, self.formats)]


class TableSink(Sink):
    """Rows of a parquet table, here or in a store; a recording that failed has a row as well.

    Rows wait for others. They are in the journal once their file is there, so those that wait when
    a job is killed are done again. Rows that cannot be written wait for the next attempt.
    """

    is_table = True

    def __init__(self, store: OutputStore) -> None:
        """Raises DependencyError without pyarrow."""
        place = Path(store.folder) / JOURNAL_NAME if store.is_local else store
        super().__init__(Path(), (PARQUET,), place)
        self._store = store
        self._parts = tables.Parts(store)
        self._earlier = Digests()  # paths that have a row
        self._replaced = False

    def prepare(self) -> None:
        if self._store.is_local:
            prepare_output_dir(Path(self._store.folder))
        else:
            self._store.check()

    def start(self, journal: Journal | None) -> None:
        super().start(journal)
        if self._store.is_local:
            Sweeper().sweep(Path(self._store.folder) / tables.FOLDER)
        self._earlier = tables.compact(self._store)
        if journal is not None:
            for row, options in tables.recover(self._store):
                journal.adopt(_finished(row), options)

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        return marked

    def write(self, recording: InputFile, transcript: Transcript) -> Outputs:
        if self._parts.full:  # the rows that wait could not be written, or it is time
            self._flush()
        return [self._store.name(f"{tables.FOLDER}/")]

    def mark(self, marks: Sequence[Mark]) -> None:
        rows = [mark for mark in marks if mark.written.status in WITH_ROW]
        for mark in rows:
            result = mark.written.result
            transcript = result if isinstance(result, Transcript) else None
            self._parts.add(tables.Row(mark.stamp, mark.seconds, transcript, mark.error))
            # a result takes the place of an earlier one, of a file that has changed or had failed
            self._replaced |= tables.path_digest(mark.stamp.path) in self._earlier
        super().mark([mark for mark in marks if mark.written.status not in WITH_ROW])
        if rows and self._parts.full:
            try:
                self._flush()
            except JournalError:
                raise
            except OutputError:  # `write` tries again, and says so
                pass

    def close(self) -> None:
        self._flush()
        if self._replaced:
            tables.compact(self._store)

    def _flush(self) -> None:
        options = {} if self._journal is None else self._journal.recorded
        written = self._parts.write(options)
        if self._journal is not None:
            self._journal.add_all([_finished(row) for row in written])


def _finished(row: tables.Row) -> Finished:
    return row.stamp, "done" if row.error is None else "failed", row.seconds, row.error


def write_result(
    sink: Sink, recording: InputFile, result: Transcript | SlimWhisperError
) -> Written:
    """Write a transcript; an error that prevents that is in the result. Raises JournalError."""
    if isinstance(result, SlimWhisperError):
        return Written("unread" if isinstance(result, StorageError) else "failed", result)
    try:
        outputs = sink.write(recording, result)
        spoken = [s for s in result.segments if s.text.strip()]
        return Written("done", result, outputs, len(spoken), sum(bool(s.flags) for s in spoken))
    except JournalError:
        raise
    except OutputError as error:
        return Written("unwritten", error)


def open_sink(output_dir: str, format: str, layout: Mapping[str, Any] | None = None) -> Sink:
    """The sink for `--output_dir`, a path or a URI, and `--output_format`.

    Raises OptionError, DependencyError.
    """
    if format == PARQUET:
        return TableSink(OutputStore(output_dir))
    formats = formats_of(format, layout)
    if not is_uri(output_dir):
        return FolderSink(Path(output_dir), formats, layout)
    store = OutputStore(output_dir)
    if store.is_local:
        return FolderSink(Path(store.folder), formats, layout)
    return StoreSink(store, formats, layout)
