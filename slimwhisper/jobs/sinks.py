"""Where results go: files in a folder, objects in a store, or a parquet table.

A driver of any kind, in one process or many, needs two things of storage, and no more:

- a source, an iterator of `InputFile` and errors, lazily: `Inputs.files` for paths,
  `StoredArguments.files` for URIs, manifests, tables and archives. An `InputFile` has `path`, which
  `transcribe_many` takes, and `stamp()`, the recording's key. It can be pickled, and sent to the
  worker that fetches and decodes it. `StoredInputs.shards` splits a source into parts that
  several processes can list.
- a `Sink`. It writes a recording's outputs whole, and then marks it in the journal. Its order is
  the guarantee: what is marked `done` has all its outputs, whoever is killed and when.

With one process: `sink = open_sink(...)`, `sink.prepare()`, `journal =
Journal(sink.journal_place, options)`, `sink.start(journal)`; for each recording
`journal.status(stamp)` and `sink.exists`, then `sink.write` or `sink.fail`; in the end
`sink.close()`, then `journal.close()`.

With a driver and workers, the driver does the same up to the two questions. A worker has a sink of
its own with `Journal(sink.journal_place, options, forget=True, worker=NAME)` and
`sink.start(journal, alone=False)`, and writes. Two workers may write the same recording: files and
objects are the same, and of two rows the driver leaves one (`tables.compact`, when all have ended).
"""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.journal import Finished, Journal, Status
from slimwhisper.jobs.logs import JOURNAL_NAME
from slimwhisper.jobs.outputs import (
    Sweeper,
    output_paths,
    outputs_exist,
    prepare_output_dir,
    write_outputs,
)
from slimwhisper.storage import tables
from slimwhisper.storage.digests import Digests
from slimwhisper.storage.outputs import OutputStore
from slimwhisper.storage.stamps import Stamp
from slimwhisper.storage.uris import is_uri
from slimwhisper.types import Transcript
from slimwhisper.writers import FORMATS, write_transcript

PARQUET = "parquet"  # the format that is no file beside the others

Written = Sequence[Path | str]


class Sink(Protocol):
    """Takes the results of a job. One thread calls."""

    @property
    def formats(self) -> tuple[str, ...]:
        """What is written for a recording."""

    @property
    def root(self) -> Path:
        """What `InputFile.output` has to be below."""

    @property
    def journal_place(self) -> Path | OutputStore:
        """Where the journal belongs."""

    def prepare(self) -> None:
        """Find out whether results can be written. Raises OutputError."""

    def start(self, journal: Journal | None, *, alone: bool = True) -> None:
        """Mark finished recordings here; None: nowhere. Of several sinks for one place, that of the
        driver is started first, and `alone`: it mends what a killed job left.
        """

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        """Whether a recording's outputs are there; `marked`: a journal says so."""

    def write(
        self, recording: InputFile, stamp: Stamp, seconds: float | None, transcript: Transcript
    ) -> Written:
        """Write all outputs of a recording, then mark it as done. Raises OutputError."""

    def fail(self, stamp: Stamp, status: Status, seconds: float | None, error: str) -> None:
        """Mark a recording that has no outputs."""

    def close(self) -> None:
        """Write and mark what waits. Raises OutputError."""


class FolderSink:
    """Files in a folder of this machine."""

    def __init__(
        self, folder: Path, formats: tuple[str, ...], layout: Mapping[str, Any] | None = None
    ) -> None:
        self.root, self.formats, self._layout = folder, formats, layout
        self.journal_place = folder / JOURNAL_NAME
        self._journal: Journal | None = None
        self._sweeper = Sweeper()

    def prepare(self) -> None:
        prepare_output_dir(self.root)

    def start(self, journal: Journal | None, *, alone: bool = True) -> None:
        self._journal = journal
        self._sweeps = alone

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        return outputs_exist(recording, self.formats)

    def write(
        self, recording: InputFile, stamp: Stamp, seconds: float | None, transcript: Transcript
    ) -> Written:
        if self._journal is not None and self._sweeps:
            self._sweeper.sweep(recording.output.parent)
        outputs = write_outputs(transcript, recording, self.formats, self._layout)
        if self._journal is not None:
            self._journal.add(stamp, "done", seconds)
        return outputs

    def fail(self, stamp: Stamp, status: Status, seconds: float | None, error: str) -> None:
        if self._journal is not None:
            self._journal.add(stamp, status, seconds, error)

    def close(self) -> None:
        pass


class StoreSink:
    """Objects in a store. An object is there whole or not at all, and a second result of a
    recording takes the place of the first.
    """

    def __init__(
        self, store: OutputStore, formats: tuple[str, ...], layout: Mapping[str, Any] | None = None
    ) -> None:
        self.root, self.formats, self._layout = Path(), formats, layout
        self.journal_place = self._store = store
        self._journal: Journal | None = None

    def prepare(self) -> None:
        self._store.check()

    def start(self, journal: Journal | None, *, alone: bool = True) -> None:
        self._journal = journal

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        """A journal is believed: each look would be a request."""
        return marked or all(self._store.exists(name) for name in self._names(recording))

    def write(
        self, recording: InputFile, stamp: Stamp, seconds: float | None, transcript: Transcript
    ) -> Written:
        names = self._names(recording)
        for format, name in zip(self.formats, names, strict=True):
            text = StringIO()
            write_transcript(transcript, format, text, self._layout)
            self._store.put(name, text.getvalue().encode())
        if self._journal is not None:
            self._journal.add(stamp, "done", seconds)
        return [self._store.name(name) for name in names]

    def fail(self, stamp: Stamp, status: Status, seconds: float | None, error: str) -> None:
        if self._journal is not None:
            self._journal.add(stamp, status, seconds, error)

    def close(self) -> None:
        pass

    def _names(self, recording: InputFile) -> list[str]:
        return [path.as_posix() for path in output_paths(recording, self.formats)]


class TableSink:
    """Rows of a parquet table, here or in a store; a recording that failed has a row as well.

    Rows wait for others. They are marked once their file is there, so those that wait when a job is
    killed are done again.
    """

    def __init__(self, store: OutputStore) -> None:
        """Raises DependencyError without pyarrow."""
        self.root, self.formats = Path(), (PARQUET,)
        self._store = store
        self.journal_place: Path | OutputStore = store
        if store.is_local:
            self.journal_place = Path(store.folder) / JOURNAL_NAME
        self._parts = tables.Parts(store)
        self._journal: Journal | None = None
        self._earlier = Digests()  # paths that have a row
        self._replaced = False

    def prepare(self) -> None:
        if self._store.is_local:
            prepare_output_dir(Path(self._store.folder))
        else:
            self._store.check()

    def start(self, journal: Journal | None, *, alone: bool = True) -> None:
        self._journal = journal
        if not alone:
            return
        if self._store.is_local:
            Sweeper().sweep(Path(self._store.folder) / tables.FOLDER)
        self._earlier = tables.compact(self._store)
        if journal is not None:
            for row, options in tables.recover(self._store):
                status: Status = "done" if row.error is None else "failed"
                journal.adopt((row.stamp, status, row.seconds, row.error), options)

    def exists(self, recording: InputFile, *, marked: bool) -> bool:
        return marked

    def write(
        self, recording: InputFile, stamp: Stamp, seconds: float | None, transcript: Transcript
    ) -> Written:
        self._add(tables.Row(stamp, seconds, transcript))
        return [self._store.name(f"{tables.FOLDER}/")]

    def fail(self, stamp: Stamp, status: Status, seconds: float | None, error: str) -> None:
        if status == "failed":
            self._add(tables.Row(stamp, seconds, None, error))
        elif self._journal is not None:
            self._journal.add(stamp, status, seconds, error)

    def close(self) -> None:
        self._flush()
        if self._replaced:
            tables.compact(self._store)

    def _add(self, row: tables.Row) -> None:
        self._parts.add(row)
        # a result takes the place of an earlier one, of a file that has changed or had failed
        self._replaced |= tables.path_digest(row.stamp.path) in self._earlier
        if self._parts.full:
            try:
                self._flush()
            except BaseException:
                self._parts.drop_last()  # the others wait for the next attempt
                raise

    def _flush(self) -> None:
        options = {} if self._journal is None else self._journal.recorded
        written = self._parts.write(options)
        if self._journal is not None and written:
            self._journal.add_all([_finished(row) for row in written])


def _finished(row: tables.Row) -> Finished:
    return row.stamp, "done" if row.error is None else "failed", row.seconds, row.error


def open_sink(output_dir: str, format: str, layout: Mapping[str, Any] | None = None) -> Sink:
    """The sink for `--output_dir`, a path or a URI, and `--output_format`.

    Raises OptionError, DependencyError.
    """
    if format == PARQUET:
        return TableSink(OutputStore(output_dir))
    formats = tuple(FORMATS) if format == "all" else (format,)
    if not is_uri(output_dir):
        return FolderSink(Path(output_dir), formats, layout)
    store = OutputStore(output_dir)
    if store.is_local:
        return FolderSink(Path(store.folder), formats, layout)
    return StoreSink(store, formats, layout)
