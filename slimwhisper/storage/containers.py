"""Finds the recordings of arguments that are URIs, or that name or contain many recordings:
manifests, parquet tables, tar archives.

Each is read as a stream. Only the recordings that wait are in memory, see `longest_first`.
"""

import codecs
import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path, PurePosixPath
from posixpath import commonpath, dirname, join, normpath
from typing import IO, Any, Self

from slimwhisper.audio_formats.names import AUDIO_SUFFIXES, HEAD, Selection, is_hidden
from slimwhisper.errors import AudioError, DependencyError, OptionError, SlimWhisperError
from slimwhisper.files import (
    Fingerprint,
    InputFile,
    container_kind,
    edge,
    is_uri,
    protocol_of,
    redact,
)
from slimwhisper.jobs.inputs import RESULT, Digests, digest_of, kind_of, longest_first
from slimwhisper.jobs.members import MAX_MEMBER, HeldFile
from slimwhisper.storage.stores import MAGIC, Location, StoredFile
from slimwhisper.text import install_command, text_encoding

OUTSIDE = "outside"  # folder for the outputs of recordings that are not named relatively
MAX_SECONDS = 1e9  # of an offset or a duration: 30 years
SECONDS = ", with duration and offset, if given, in seconds"
DATA_ROWS = 16  # rows of a table with bytes, read at a time
NAME_ROWS = 4096  # rows of a table with names, read at a time
INFO_REQUESTS = 32  # objects whose size and etag are requested at a time
# columns of a table that may have the recordings; the first that exists counts
AUDIO_COLUMNS = ("audio_filepath", "audio", "path", "uri", "url", "file", "file_name", "bytes")
# exceptions of a row that does not name a recording
ROW_ERRORS = (ValueError, TypeError, OverflowError, KeyError, AttributeError, RecursionError)

Recordings = Iterator[InputFile | SlimWhisperError]
Found = tuple[float | None, Callable[[], InputFile | SlimWhisperError]]  # seconds, and who finds it


class _Member(tarfile.TarInfo):
    """A member of an archive. An invalid header is an error, not the archive's end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Container:
    """One file that names or contains recordings."""

    location: Location
    file: StoredFile
    root: str  # folder for the outputs of recordings inside the file
    column: str | None  # of a table or a manifest, with the recordings; None: common names
    selection: Selection  # chooses an archive's members

    def recordings(self) -> Recordings:
        """Every recording, and an error for each that cannot be found or read."""
        try:
            with self.location.open(self.file.path) as file:
                yield from edge(str(container_kind(self.file.path)))(self, file)
        except SlimWhisperError as error:
            yield error

    def manifest(self, file: BufferedReader) -> Recordings:
        """JSON lines with the keys of NeMo's manifests (docs.nvidia.com/nemo-framework,
        "Datasets"): audio_filepath, absolute or relative to the manifest, and duration, in seconds.
        With offset, the recording is the excerpt of `duration` seconds from there.
        """
        column = self.column or "audio_filepath"
        encoding = text_encoding(file.peek(HEAD)[:HEAD])
        if encoding is None:
            raise AudioError(f"{self.file}: is no text, so no manifest; give recordings by name")
        lines: Iterable[Any] = codecs.getreader(encoding)(file) if "16" in encoding else file
        rows = ((n, line) for n, line in enumerate(lines, start=1) if line.strip())
        problem = f"is not a JSON object with {column}{SECONDS}; check the manifest"
        return self._named_recordings(rows, column, "line", problem)

    def table(self, file: BufferedReader) -> Recordings:
        """A parquet table. Its column of recordings has paths or URIs, the bytes of files, or
        Hugging Face's `Audio`: a struct of `bytes` and `path`. With paths, the columns `duration`
        and `offset` are used as in a manifest.
        """
        pyarrow, parquet = import_pyarrow()
        try:
            table = parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as error:
            raise AudioError(f"{self.file}: not a parquet file; write it again") from error
        columns = table.schema_arrow
        names = (self.column,) if self.column else AUDIO_COLUMNS
        column = next((c for c in names if c in columns.names), None)
        if column is None:
            raise AudioError(f"{self.file}: no column {' or '.join(names)}; set --audio_column")
        kind = columns.field(column).type  # or a dictionary's, as of pandas' categories
        has_names = str(getattr(kind, "value_type", kind)).startswith(("string", "large_string"))
        read = [column, *(c for c in ("duration", "offset") if has_names and c in columns.names)]
        batches = table.iter_batches(NAME_ROWS if has_names else DATA_ROWS, columns=read)
        rows = enumerate(row for batch in batches for row in batch.to_pylist())
        problem = f"does not name a recording{SECONDS}; check the table"
        if has_names:
            yield from self._named_recordings(rows, column, "row", problem)
            return
        for number, row in rows:
            audio = row[column] if isinstance(row[column], dict) else {"bytes": row[column]}
            data, path = audio.get("bytes"), audio.get("path")
            name = f"{self.file}#row={number}"
            if isinstance(data, bytes):
                output = f"{number:08d}" + (f"-{PurePosixPath(path).name}" if path else "")
                yield from self._member(name, output, io.BytesIO(data), len(data))
            elif path:
                named = [(number, {column: path})]
                yield from self._named_recordings(named, column, "row", problem)
            else:
                yield AudioError(f"{name}: has no bytes; name the column with --audio_column")

    def tar(self, file: BufferedReader) -> Recordings:
        """A tar archive, such as a webdataset shard: the members with the suffix of a recording.

        It is read once, from its start, so it may be compressed.
        """
        takes, outputs = self.selection.takes, Digests()
        # tarfile itself does not check gzip's sums, and stops after the first part of several
        data: Any = gzip.open(file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        try:
            with tarfile.open(None, "r|*", data, tarinfo=_Member, ignore_zeros=True) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # would grow with the file
                    path, output = member.name, safe_relative(member.name)
                    stream: Any = archive.extractfile(member) if member.isfile() else None
                    hidden = any(map(is_hidden, output.split("/")[:-1]))
                    if hidden or not (stream or member.islnk() or member.issym()):
                        continue
                    if not takes(path, lambda: stream and stream.peek(HEAD)[:HEAD]):  # noqa: B023
                        continue
                    name = f"tar://{path}::{self.file}"
                    # so that its outputs cannot collide with another member's
                    if ".." in path.split("/") or path.startswith(("/", f"{OUTSIDE}/")):
                        output = f"{OUTSIDE}/{safe_relative(normpath(path))}"
                    if not stream:
                        what = f"a link to {member.linkname}"
                    elif member.size > MAX_MEMBER:
                        what = "larger than 1 GiB"
                    elif not outputs.add(digest_of(output)):
                        what = "not the first of this name"
                    else:
                        yield from self._member(name, output, stream, member.size)
                        continue
                    yield AudioError(f"{name}: is {what}; give it as a file")
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise AudioError(f"{self.file}: damaged or not a tar archive; copy it again") from error

    def _member(self, name: str, output: str, source: IO[bytes], size: int) -> Recordings:
        """A recording whose bytes are in the container."""
        fingerprint = replace(self.file.fingerprint, path=name, size=size)
        try:
            yield InputFile(HeldFile(name, source, size), f"{self.root}/{output}", fingerprint)
        except SlimWhisperError as error:
            yield error

    def _named_recordings(
        self, rows: Iterable[tuple[int, Any]], column: str, unit: str, problem: str
    ) -> Recordings:
        """The recordings that numbered rows name, longer ones first within a look-ahead.

        The sizes and etags of their objects are requested in parallel.
        """

        def found() -> Iterator[Found]:
            for number, row in rows:
                try:
                    yield self._reference(row, column)
                except ROW_ERRORS:
                    yield None, partial(AudioError, f"{self.file}: {unit} {number} {problem}")

        ordered = longest_first(found())
        with ThreadPoolExecutor(INFO_REQUESTS, "slimwhisper-info") as pool:
            while batch := list(islice(ordered, INFO_REQUESTS)):
                yield from pool.map(lambda find: find(), batch)

    def _reference(self, row: dict[str, Any] | str | bytes, column: str) -> Found:
        """The recording that a row, or its JSON, names. Raises one of ROW_ERRORS."""
        row = row if isinstance(row, dict) else json.loads(row)
        path, seconds, start = row[column], _seconds(row, "duration"), _seconds(row, "offset")
        if not path or "\0" in path:
            raise ValueError
        path.encode() if is_uri(path) else os.fsencode(path)  # ValueError for an invalid name
        address, output = self._resolved(path)
        if start is None:
            return seconds, partial(_find, address, output)
        end = None if seconds is None else start + seconds
        excerpt = "-".join(format_times(start, end))
        return seconds, partial(_find, address, f"{output}-{excerpt}", (start, end))

    def _resolved(self, path: str) -> tuple[str, str]:
        """The address of a path in the container, and the location of its outputs."""
        if is_uri(path):
            return path, f"{OUTSIDE}/{safe_relative(redact(path).replace('://', '/', 1))}"
        if path.startswith("/"):
            return path, f"{OUTSIDE}/{safe_relative(path)}"
        address = join(dirname(self.file.path), path)
        output = safe_relative(f"{dirname(self.root)}/{path}")
        if ".." in path.split("/") or output.startswith(f"{OUTSIDE}/"):
            address = normpath(address)
            output = f"{OUTSIDE}/{safe_relative(address)}"
        return self.location.address_of(address), output


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet. Raises DependencyError."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DependencyError(f"parquet needs pyarrow: {install_command('parquet')}") from error
    return pyarrow, parquet


def safe_relative(path: str) -> str:
    """A relative path that stays in its folder: without empty parts, `.` and `..`."""
    return "/".join(part for part in path.split("/") if part not in ("", ".", ".."))


def _seconds(row: dict[str, Any], key: str) -> float | None:
    """A row's duration or offset. Raises one of ROW_ERRORS."""
    value = row.get(key)
    if isinstance(value, bool) or not 0 <= float(value or 0) < MAX_SECONDS:
        raise ValueError
    return None if value is None else float(value)


def _find(
    address: str, output: str, excerpt: tuple[float, float | None] | None = None
) -> InputFile | SlimWhisperError:
    """The recording at an address, with the size and etag of its object, or the time of its file.
    excerpt: its start and end, in seconds.
    """
    path, fingerprint = address, Fingerprint.of(Path(address))
    if is_uri(address):
        try:
            location = Location(address)
            path, stored = location.path, location.info(location.path) or StoredFile.at(address)
        except SlimWhisperError as error:
            return error
        fingerprint = replace(stored.fingerprint, path=redact(address))
    elif kind_of(Path(address)) == "special":  # reading a pipe would block until a process writes
        return AudioError(f"{address}: not a regular file; drop it from the list")
    if excerpt is not None:
        fragment = f"t={','.join(format_times(*excerpt))}"
        fingerprint = replace(fingerprint, path=f"{fingerprint.path}#{fragment}")
    return InputFile(StoredFile(address, path, fingerprint, excerpt), output, fingerprint)


def format_times(*times: float | None) -> list[str]:
    """Those in seconds that are known, to the microsecond, without trailing zeros."""
    return [f"{t:.6f}".rstrip("0").rstrip(".") for t in times if t is not None]


class StoredInputs:
    """A job's `JobSource` whose arguments are URIs, or containers of recordings.

    An argument is a file, a folder (with its subfolders), a pattern, or a container of recordings.
    Outputs mirror the tree below the common folder of all arguments.
    """

    is_one_file = False

    def __init__(self, arguments: Sequence[str], column: str | None = None) -> None:
        """column: of tables, with the recordings. Raises OptionError, DependencyError."""
        self._locations = [Location(argument) for argument in dict.fromkeys(arguments)]
        self._column = column
        self.selection = Selection()
        if len({protocol_of(location.uri) for location in self._locations}) > 1:
            raise OptionError("stores of several kinds cannot be mixed; run a job for each kind")
        folders = [_root(location) for location in self._locations]
        self._base = folders[0] if len(folders) == 1 else commonpath(folders)
        self.is_job = len(folders) != 1 or not _is_recording(self._locations[0].path)

    def list(self) -> Iterator[InputFile | SlimWhisperError]:
        for location in self._locations:
            try:
                yield from self._recordings_at(location)
            except SlimWhisperError as error:
                yield error

    def _recordings_at(self, location: Location) -> Iterator[InputFile | SlimWhisperError]:
        nothing = True
        for file in location.files(_is_file(location.path), partial(self._takes, location)):
            nothing = False
            # with its suffix: a store may have `a.mp3` and `a.wav`, and is too large to search for
            # such pairs
            output = safe_relative(file.path.removeprefix(self._base))
            if container_kind(file.path):
                container = Container(location, file, output, self._column, self.selection)
                yield from container.recordings()
            else:
                yield InputFile(file, output, file.fingerprint)
        if nothing:
            yield AudioError(f"{redact(location.uri)}: no recordings there; check the address")

    def _takes(self, location: Location, path: str) -> bool:
        """Whether to read a file that a folder has or a pattern matches."""
        below = path.removeprefix(location.top)
        *folders, name = below.split("/")
        if RESULT.search(below) or (any(map(is_hidden, folders)) and not location.dots):
            return False
        suffix = PurePosixPath(location.pattern[-1]).suffix if location.pattern else ""
        if suffix and not MAGIC.search(suffix):  # "*.dat" means all such files
            return location.dots or not is_hidden(name)
        # not in a folder, where a container may be the result of another job
        if location.pattern and container_kind(path) not in (None, ".json"):
            return True
        return self.selection.takes(path, partial(location.head, path), location.dots)


def _is_recording(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in AUDIO_SUFFIXES


def _is_file(path: str) -> bool:
    return _is_recording(path) or container_kind(path) is not None


def _root(location: Location) -> str:
    """The folder of a location whose tree the outputs mirror."""
    path = location.top.rstrip("/")
    return path.rpartition("/")[0] if not location.pattern and _is_file(path) else path
