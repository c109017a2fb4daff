"""Results as parquet: one row for each recording, in files that are whole or absent.

The files lie in the folder `transcripts` of the output folder, so that it can be read as one table:

    pandas.read_parquet("OUT/transcripts")
    duckdb.sql("SELECT path, text FROM 'OUT/transcripts/*.parquet'")

Every row has its recording's key, so the files themselves say what is done: `recover` gives a
journal the rows that a killed job could not mark, and `compact` leaves the newest row of each
recording.
"""

import io
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slimwhisper.errors import DependencyError, OutputError
from slimwhisper.storage.digests import Digests, digest_of
from slimwhisper.storage.outputs import OutputStore
from slimwhisper.storage.stamps import Stamp
from slimwhisper.types import Transcript

FOLDER = "transcripts"
ROWS = 4096  # in a file, at most
CHARACTERS = 16 << 20  # of text in a file, about
PERIOD = 60.0  # seconds that a row waits for others, while rows keep coming
KEYS = ["path", "size", "mtime_ns", "etag", "options", "seconds", "error"]


@dataclass(frozen=True, slots=True)
class Row:
    """A recording's result; either `transcript` or `error`."""

    stamp: Stamp
    seconds: float | None
    transcript: Transcript | None
    error: str | None = None


def schema() -> Any:
    """The columns of a part, a pyarrow.Schema.

    `path`, `size`, `mtime_ns` and `etag` are the recording's key, `options` what its text depends
    on besides (JSON). Times are seconds from the start of the recording. The fields of segments and
    words are those of `Transcript.as_dict`. `words` is null unless they were asked for; `text`,
    `language` and `segments` are null where `error` is not.
    """
    pa, _ = _pyarrow()
    word = [
        *(("word", pa.string()), ("start", pa.float64()), ("end", pa.float64())),
        *(("probability", pa.float64()), ("speaker", pa.string())),
    ]
    segment = [
        *(("id", pa.int32()), ("seek", pa.int64()), ("start", pa.float64()), ("end", pa.float64())),
        *(("text", pa.string()), ("tokens", pa.list_(pa.int32())), ("temperature", pa.float64())),
        *(("avg_logprob", pa.float64()), ("compression_ratio", pa.float64())),
        ("no_speech_prob", pa.float64()),
        *(("speaker", pa.string()), ("flags", pa.list_(pa.string()))),
    ]
    return pa.schema(
        [
            ("path", pa.string()),
            ("size", pa.int64()),
            ("mtime_ns", pa.int64()),
            ("etag", pa.string()),
            ("text", pa.string()),
            ("language", pa.string()),
            ("segments", pa.list_(pa.struct(segment))),
            ("words", pa.list_(pa.struct(word))),
            ("seconds", pa.float64()),
            ("error", pa.string()),
            ("options", pa.string()),
            ("time", pa.timestamp("ms", tz="UTC")),
        ]
    )


class Parts:
    """Writes rows to part after part.

    Raises DependencyError without pyarrow.
    """

    def __init__(self, store: OutputStore) -> None:
        schema()
        self._store = store
        seconds, ns = divmod(time.time_ns(), 10**9)
        started = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{ns:09d}Z"
        self._series = f"{started}-{secrets.token_hex(4)}"  # sorted by time
        self._number = 0
        self.rows: list[Row] = []  # that wait
        self._characters = 0
        self._since = 0.0

    def add(self, row: Row) -> None:
        """Let a row wait for its file."""
        if not self.rows:
            self._since = time.monotonic()
        self.rows.append(row)
        self._characters += _characters(row)

    @property
    def full(self) -> bool:
        """Whether it is time to write the rows that wait."""
        return bool(self.rows) and (
            len(self.rows) >= ROWS
            or self._characters >= CHARACTERS
            or time.monotonic() >= self._since + PERIOD
        )

    def write(self, options: Mapping[str, Any]) -> list[Row]:
        """Write the rows that wait to a new file; returns them. Raises OutputError."""
        rows = self.rows
        if rows:
            name = f"{FOLDER}/part-{self._series}-{self._number:06d}.parquet"
            self._store.put(name, _encoded(_table(rows, options)), new=True)
            self._number += 1
            self.rows, self._characters = [], 0
        return rows


def recover(store: OutputStore) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The rows of all parts, without texts, and their options."""
    for name in _parts(store):
        known: dict[str, dict[str, Any]] = {}
        for key in _keys(store, name, KEYS).to_pylist():
            options = known.setdefault(key["options"], json.loads(key["options"]))
            stamp = Stamp(*(key[k] for k in KEYS[:4]))
            yield Row(stamp, key["seconds"], None, key["error"]), options


def compact(store: OutputStore) -> Digests:
    """Leave only the newest row of each recording; returns the digests of their paths.

    A file is replaced whole. Holds 8 bytes for each row, besides one file.
    """
    seen = Digests()
    for name in reversed(_parts(store)):
        paths = _keys(store, name, ["path"]).column(0).to_pylist()
        keep = [True] * len(paths)
        for at in reversed(range(len(paths))):
            digest = path_digest(paths[at])
            keep[at] = digest not in seen
            seen.add(digest)
        if not all(keep):
            pa, parquet = _pyarrow()
            with store.open(name) as file:
                table = parquet.read_table(file)
            store.put(name, _encoded(table.filter(pa.array(keep))))
    return seen


def path_digest(path: str) -> int:
    """The digest of a row's `path`."""
    return digest_of(_utf8(path).encode())


def _parts(store: OutputStore) -> list[str]:
    """The names of all parts, the oldest first."""
    return [name for name in store.names(FOLDER) if name.endswith(".parquet")]


def _keys(store: OutputStore, name: str, columns: Sequence[str]) -> Any:
    pa, parquet = _pyarrow()
    with store.open(name) as file:
        try:
            return parquet.read_table(file, columns=list(columns))
        except pa.ArrowInvalid as error:
            raise OutputError(
                f"{store.name(name)}: not a result of this command; move it elsewhere"
            ) from error


def _table(rows: Iterable[Row], options: Mapping[str, Any]) -> Any:
    pa, _ = _pyarrow()
    settings = json.dumps(options, sort_keys=True)
    now = int(time.time() * 1000)
    return pa.Table.from_pylist(
        [_columns(row) | {"options": settings, "time": now} for row in rows], schema()
    )


def _columns(row: Row) -> dict[str, Any]:
    stamp = row.stamp
    found: dict[str, Any] = {
        "path": _utf8(stamp.path),
        "size": stamp.size,
        "mtime_ns": stamp.mtime_ns,
        "etag": stamp.etag,
        "seconds": row.seconds,
        "error": row.error and _utf8(row.error),
    }
    return found if row.transcript is None else found | text_columns(row.transcript)


def text_columns(transcript: Transcript) -> dict[str, Any]:
    """A row's `text`, `language`, `segments` and `words`."""
    result = transcript.as_dict()
    words = [segment.pop("words", None) for segment in result["segments"]]
    spoken = [word for given in words if given is not None for word in given]
    asked = any(given is not None for given in words)
    return result | {"words": spoken if asked else None}


def _utf8(text: str) -> str:
    """Names that are not UTF-8 have their bytes as escapes: parquet holds UTF-8 only."""
    return text.encode("utf-8", "backslashreplace").decode()


def _characters(row: Row) -> int:
    return 0 if row.transcript is None else 20 * len(row.transcript.text)  # with its segments


def _encoded(table: Any) -> bytes:
    _, parquet = _pyarrow()
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DependencyError(
            "parquet needs another package: pip install 'slimwhisper[parquet]'"
        ) from error
    return pyarrow, parquet
