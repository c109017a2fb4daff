"""Writes results as parquet, with one row for each recording, to files that appear when complete.

The files are in the folder `transcripts` of the output folder, which can be read as one table:

    pandas.read_parquet("OUT/transcripts")
    duckdb.sql("SELECT path, text FROM 'OUT/transcripts/*.parquet'")

Every row has its recording's fingerprint, so the files themselves say what is done, and not the
journal: the newest row of each recording counts, and a job keeps only that at its end.
"""

import io
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from slimwhisper.errors import OutputError
from slimwhisper.files import InputFile, Outcome, library_errors
from slimwhisper.jobs.inputs import Digests, digest_of
from slimwhisper.jobs.journal import Journal
from slimwhisper.jobs.writers import Files, JobResults, RecordingResult
from slimwhisper.storage.containers import import_pyarrow
from slimwhisper.types import Transcript

FOLDER = "transcripts"
ROWS = 4096  # in a file, at most
CHARACTERS = 1 << 20  # of text in a file, about; its segments take 20 times as much
PERIOD = 60.0  # seconds that a row waits for others, while rows keep coming
TIME = "%Y%m%dT%H%M%S.%f"  # in the names of parts
KEYS = ["path", "size", "mtime_ns", "etag", "options", "error"]


# names and types; [] after a type: a list of them
WORD = "word string, start double, end double, probability double, speaker string"
SEGMENT = (
    "id int32, seek int64, start double, end double, text string, tokens int32[], "
    "temperature double, avg_logprob double, compression_ratio double, no_speech_prob double, "
    "speaker string, flags string[]"
)


def schema() -> Any:
    """The columns of a part, a pyarrow.Schema.

    `path`, `size`, `mtime_ns` and `etag` are the recording's fingerprint, `options` everything else
    that its text depends on (JSON). Times are seconds from the start of the recording. The fields
    of segments and words are those of `Transcript.segment_rows`. `words` is null unless requested;
    `text`, `language` and `segments` are null where `error` is not.
    """
    pa, _ = import_pyarrow()

    def fields(text: str) -> list[tuple[str, Any]]:
        kinds = (field.split() for field in text.split(", "))
        one = {kind: pa.type_for_alias(kind) for kind in ("string", "double", "int32", "int64")}
        return [
            (name, pa.list_(one[kind[:-2]]) if kind.endswith("[]") else one[kind])
            for name, kind in kinds
        ]

    return pa.schema(
        [
            *fields("path string, size int64, mtime_ns int64, etag string"),
            *fields("text string, language string"),
            ("segments", pa.list_(pa.struct(fields(SEGMENT)))),
            ("words", pa.list_(pa.struct(fields(WORD)))),
            *fields("seconds double, error string, options string"),
            ("time", pa.timestamp("ms", tz="UTC")),
        ]
    )


class TableResults(JobResults):
    """Writes rows of a parquet table, to a folder or a store; failed recordings have a row, too.

    Rows wait until there are enough for a file, and are recorded in the journal once it is written.
    So the recordings of rows that wait when a job is killed are transcribed again. Rows that cannot
    be written wait for the next attempt.
    """

    def __init__(self, files: Files, journal: Journal | None, **rules: bool) -> None:
        """Raises DependencyError without pyarrow."""
        self._schema, (self._arrow, self._parquet) = schema(), import_pyarrow()
        super().__init__(files, journal, **rules)
        self._sink = files.sink
        location = [f"{self._sink.name(FOLDER)}/"]
        self.write = lambda recording, transcript: location
        self._number, self._series = 0, f"{self._start()}-{secrets.token_hex(8)}"  # sorted by time
        self._rows: list[tuple[Outcome, Transcript | None]] = []  # that wait
        self._characters, self._since = 0, 0.0
        if self._sink.local is not None:
            self._sweep(self._sink.local / FOLDER)
        self._paths, self._doubled = Digests(), False  # that have a row; some have several
        newest = self._newest()
        if journal is not None:
            journal.read(newest)
        all(newest)  # if there is no journal that has read them

    def _exists(self, recording: InputFile, *, recorded: bool) -> bool:
        return recorded

    def record(self, recording: InputFile, result: RecordingResult) -> None:
        """Write and record the waiting rows if it is time, then let this one wait. Raises
        OutputError if, before a transcript, the rows that wait cannot be written.
        """
        key = _key(recording.fingerprint.path)
        # the row of a file that is gone stays: it may come back
        gone = result.status == "failed" and recording.fingerprint.size is None
        if result.status not in ("done", "failed") or (gone and key in self._paths):
            super().record(recording, result)
            return
        due = time.monotonic() >= self._since + PERIOD or self._characters >= CHARACTERS
        if result.status == "done" and self._rows and (due or len(self._rows) >= ROWS):
            self._write()
        transcript = result.result if isinstance(result.result, Transcript) else None
        if not self._rows:
            self._since = time.monotonic()
        self._rows.append((result.outcome(recording), transcript))
        self._characters += len(transcript.text) if transcript else 0
        self._doubled |= not self._paths.add(key)

    def close(self) -> None:
        """Write and record the rows that wait, and keep only the newest row of each recording: a
        file that changed, or failed before, has several. Raises OutputError.
        """
        self._write()
        if self._doubled:
            self._compact()

    def _write(self) -> None:
        """Write the rows that wait to a new file, and record them."""
        if not self._rows:
            return
        options = {} if self.journal is None else self.journal.recorded
        common = {"options": json.dumps(options, sort_keys=True), "time": int(time.time() * 1000)}
        rows = [_columns(*row) | common for row in self._rows]
        name = f"{FOLDER}/part-{self._series}-{self._number:06d}.parquet"
        self._replace(name, self._arrow.Table.from_pylist(rows, self._schema))
        written = [outcome for outcome, _ in self._rows]
        self._number, self._rows, self._characters = self._number + 1, [], 0
        if self.journal is not None:
            self.journal.add(*written)

    def _parts(self) -> list[str]:
        """The names of all parts, the oldest first."""
        return [name for name in self._sink.names(FOLDER) if name.endswith(".parquet")]

    def _start(self) -> str:
        """The time, or one after the newest part's: the clock may have been set back since."""
        now, newest = datetime.now(UTC), (self._parts() or [""])[-1]
        with suppress(ValueError):  # the name of another program's part
            last = datetime.strptime(newest.partition("Z")[0], f"{FOLDER}/part-{TIME}")
            now = max(now, last.replace(tzinfo=UTC) + timedelta(microseconds=1))
        return f"{now.strftime(TIME)}Z"

    def _newest(self) -> Iterator[dict[str, Any]]:
        """The newest row of each recording, with the fields of a journal's line."""
        parsed = lru_cache(64)(json.loads)
        for name in reversed(self._parts()):
            with self._damage(name):
                for row in self._read(name, KEYS).to_pylist()[::-1]:
                    if self._paths.add(_key(row["path"])):
                        row["status"] = "done" if row["error"] is None else "failed"
                        yield row | {"options": parsed(row["options"]), "time": 0}
                    else:
                        self._doubled = True

    def _compact(self) -> None:
        """Keep only the newest row of each recording.

        Each file is replaced atomically. Takes memory for one file, and 8 bytes for each row.
        """
        seen = Digests()
        for name in reversed(self._parts()):
            with self._damage(name):
                table = self._read(name)  # once: another task may replace it
                keep = [seen.add(_key(path)) for path in table["path"].to_pylist()[::-1]][::-1]
            if not all(keep):
                self._replace(name, table.filter(self._arrow.array(keep)))

    def _replace(self, name: str, table: Any) -> None:
        """Write a part, whole or not at all."""
        buffer = io.BytesIO()
        self._parquet.write_table(table, buffer, compression="zstd")
        self._sink.write(name, buffer.getvalue())

    def _read(self, name: str, columns: list[str] | None = None) -> Any:
        return self._parquet.read_table(io.BytesIO(self._sink.read(name)), columns=columns)

    def _damage(self, name: str) -> AbstractContextManager[None]:
        """A context in which any error of a library tells that this part is not to be read."""
        what = f"{self._sink.name(name)}: not a table that slimwhisper wrote"
        return library_errors(OutputError, what, "move it elsewhere")


def _columns(outcome: Outcome, transcript: Transcript | None) -> dict[str, Any]:
    columns = {
        **asdict(outcome.fingerprint),
        "path": _utf8(outcome.fingerprint.path),
        "seconds": outcome.seconds,
        "error": outcome.error and _utf8(outcome.error),
    }
    return columns if transcript is None else columns | text_columns(transcript)


def text_columns(transcript: Transcript) -> dict[str, Any]:
    """A row's `text`, `language`, `segments` and `words`."""
    segments = transcript.segment_rows()
    words = [segment.pop("words", None) for segment in segments]
    found = None if all(w is None for w in words) else [w for each in words for w in each or ()]
    plain = {"text": transcript.text, "language": transcript.language}
    return {**plain, "segments": segments, "words": found}


def _key(path: str) -> int:
    return digest_of(_utf8(path).encode())


def _utf8(text: str) -> str:
    """The text with escapes for bytes that are not UTF-8, which parquet cannot store."""
    return text.encode("utf-8", "backslashreplace").decode()
