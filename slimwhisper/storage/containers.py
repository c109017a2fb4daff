"""Files that name or hold many recordings: manifests, parquet tables, tar archives.

Each is read as a stream. Nothing is kept but the recordings that are waiting, see `longest_first`.
"""

import io
import json
import os
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any, BinaryIO, cast

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, DependencyError, SlimWhisperError
from slimwhisper.storage.files import StoredFile, longest_first, media_fragment, plain
from slimwhisper.storage.held import MAX_MEMBER, HeldBytes
from slimwhisper.storage.listing import LOCAL, Found, Place, answers
from slimwhisper.storage.stamps import Stamp
from slimwhisper.storage.uris import hide, is_uri

OUTSIDE = "outside"  # folder for the outputs of recordings that are not named relatively
BLOCK = 8 << 20  # bytes read of a container at a time
LINES = 1 << 16  # bytes of them at a time
ROWS = 16  # of a table with bytes, read at a time
NAMES = 4096  # rows of a table with names, read at a time
ASKED = 32  # objects whose size and etag are asked for at a time
# columns of a table that may hold recordings, the first that exists counts
AUDIO_COLUMNS = ("audio_filepath", "audio", "path", "uri", "url", "file", "file_name", "bytes")

WRONG_ROW = (ValueError, TypeError, OverflowError)

Member = tuple[StoredFile, str]  # a recording; its outputs, relative, without a format's suffix


def is_container(path: str) -> bool:
    """Whether a path has the suffix of one."""
    return path.lower().endswith(tuple(READERS))


def members(
    place: Place, found: Found, root: str, column: str | None
) -> Iterator[Member | SlimWhisperError]:
    """The recordings of a container.

    Arguments:
        root: below it lie the outputs of recordings that the container holds.
        column: of a table, with the recordings; None: the first of `AUDIO_COLUMNS`.
    """
    path = found.path.lower()
    read = next(read for suffix, read in READERS.items() if path.endswith(suffix))
    try:
        yield from read(place, found, root, column)
    except SlimWhisperError as error:
        yield error


def read_manifest(
    place: Place, found: Found, root: str, column: str | None
) -> Iterator[Member | SlimWhisperError]:
    """JSON lines with the keys of NeMo's manifests (docs.nvidia.com/nemo-framework, "Datasets"):
    audio_filepath, absolute or relative to the manifest, duration in seconds, and offset, with
    which the recording is the `duration` seconds from there.
    """
    name = place.uri_of(found.path)

    def rows() -> Iterator[tuple[float | None, _Reference | SlimWhisperError]]:
        with _opened(place, found) as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    path, offset = row[column or "audio_filepath"], row.get("offset")
                    yield _row(place, found, path, row.get("duration"), offset)
                except (*WRONG_ROW, KeyError, AttributeError, RecursionError):
                    yield (
                        None,
                        AudioError(
                            f"{name}: line {number} is not a JSON object with "
                            f"{column or 'audio_filepath'}; check the manifest"
                        ),
                    )

    return _stamped(longest_first(rows()))


def read_table(
    place: Place, found: Found, root: str, column: str | None
) -> Iterator[Member | SlimWhisperError]:
    """A parquet table. Its column of recordings has paths or URIs, the bytes of files, or Hugging
    Face's `Audio`: a struct of `bytes` and `path`. With paths, the columns `duration` and `offset`
    mean what they mean in a manifest.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DependencyError(
            "parquet needs another package: pip install 'slimwhisper[parquet]'"
        ) from error
    name = place.uri_of(found.path)
    with _opened(place, found) as file, answers(place.uri):
        try:
            table = parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as error:
            raise AudioError(f"{name}: not a parquet file; write it again") from error
        columns = table.schema_arrow
        asked = (column,) if column else AUDIO_COLUMNS
        chosen = next((c for c in asked if c in columns.names), None)
        if chosen is None:
            raise AudioError(f"{name}: no column {' or '.join(asked)}; name it with --audio_column")
        kind = columns.field(chosen).type
        if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            rows = _table_of_names(place, found, table, chosen)
            yield from _stamped(longest_first(rows))
            return
        number = 0
        for batch in table.iter_batches(ROWS, columns=[chosen]):
            for value in batch.column(0).to_pylist():
                data, path = value, None
                if isinstance(value, dict):
                    data, path = value.get("bytes"), value.get("path")
                yield _embedded(place, found, root, number, data, path)
                number += 1


def read_tar(
    place: Place, found: Found, root: str, column: str | None
) -> Iterator[Member | SlimWhisperError]:
    """A tar archive, such as a shard of webdataset: its members with the suffix of a recording.

    It is read once from its start, so it may be compressed.
    """
    name = place.uri_of(found.path)
    with _opened(place, found) as file, answers(place.uri):
        try:
            with tarfile.open(fileobj=file, mode="r|*", bufsize=BLOCK) as archive:
                for member in archive:
                    suffix = PurePosixPath(member.name).suffix.lower()
                    if not member.isfile() or suffix not in AUDIO_SUFFIXES:
                        continue
                    shown = f"tar://{member.name}::{name}"
                    if member.size > MAX_MEMBER:
                        yield AudioError(f"{shown}: too large for an archive; give it as a file")
                        continue
                    stream = archive.extractfile(member)
                    assert stream is not None
                    stamp = Stamp(shown, member.size, found.mtime_ns, found.etag)
                    yield (
                        StoredFile(place.uri, "", stamp, data=HeldBytes(stream, member.size)),
                        f"{root}/{_inside(member.name)}",
                    )
                    archive.members = []  # type: ignore[attr-defined]  # it would keep all
        except (tarfile.TarError, EOFError) as error:
            raise AudioError(f"{name}: damaged, or not a tar archive; copy it again") from error


Read = Callable[[Place, Found, str, str | None], Iterator[Member | SlimWhisperError]]
READERS: dict[str, Read] = {
    ".jsonl": read_manifest,
    ".json": read_manifest,
    ".parquet": read_table,
    ".tar": read_tar,
    ".tar.gz": read_tar,
    ".tgz": read_tar,
}

_Reference = tuple[str, str, float | None, tuple[float, float | None] | None]


def _row(
    place: Place, found: Found, path: str, duration: Any, offset: Any
) -> tuple[float | None, _Reference]:
    """What a row names: seconds, and (address, outputs, seconds, excerpt). Raises WRONG_ROW."""
    seconds = None if duration is None else float(duration)
    excerpt = None
    if offset is not None:
        start = float(offset)
        excerpt = (start, None if seconds is None else start + seconds)
    if not path or "\0" in path:
        raise ValueError
    path.encode() if is_uri(path) else os.fsencode(path)  # ValueError for what is no name
    address, output = _resolved(place, found, path)
    if excerpt is not None:
        end = "" if excerpt[1] is None else f"-{plain(excerpt[1])}"
        output = f"{output}-{plain(excerpt[0])}{end}"
    return seconds, (address, output, seconds, excerpt)


def _resolved(place: Place, found: Found, path: str) -> tuple[str, str]:
    """The address of what a container names, and where its outputs go."""
    if is_uri(path):
        return path, f"{OUTSIDE}/{below(hide(path).replace('://', '/', 1))}"
    if path.startswith("/"):
        return path, f"{OUTSIDE}/{below(path)}"
    folder = found.path.rpartition("/")[0]
    address = f"{folder}/{path}" if folder else path
    parts = path.split("/")
    output = below(path)
    if ".." in parts or parts[0] == OUTSIDE:
        address = normpath(address)
        output = f"{OUTSIDE}/{below(address)}"
    return place.address_of(address), output


def _inside(path: str) -> str:
    """Where the outputs of an archive's member go: not where those of another one do."""
    parts = path.split("/")
    apart = ".." in parts or parts[0] in ("", OUTSIDE)
    return f"{OUTSIDE}/{below(normpath(path))}" if apart else below(path)


def below(path: str) -> str:
    """A relative path, without what leads out of a folder."""
    return "/".join(part for part in path.split("/") if part not in ("", ".", ".."))


def _table_of_names(
    place: Place, found: Found, table: Any, column: str
) -> Iterator[tuple[float | None, _Reference | SlimWhisperError]]:
    name = place.uri_of(found.path)
    extra = [c for c in ("duration", "offset") if c in table.schema_arrow.names]
    number = 0
    for batch in table.iter_batches(NAMES, columns=[column, *extra]):
        for row in batch.to_pylist():
            try:
                yield _row(place, found, row[column], row.get("duration"), row.get("offset"))
            except WRONG_ROW:
                yield (
                    None,
                    AudioError(f"{name}: row {number} names no recording; check the table"),
                )
            number += 1


def _embedded(
    place: Place,
    found: Found,
    root: str,
    number: int,
    data: bytes | None,
    path: str | None,
) -> Member | SlimWhisperError:
    """A recording whose bytes are in a table."""
    name = f"{place.uri_of(found.path)}#row={number}"
    if not isinstance(data, bytes):
        return AudioError(f"{name}: no bytes; name the column with --audio_column")
    row = f"{number:08d}" + (f"-{PurePosixPath(path).name}" if path else "")
    stamp = Stamp(name, len(data), found.mtime_ns, found.etag)
    held = HeldBytes(io.BytesIO(data), len(data))
    return StoredFile(place.uri, "", stamp, data=held), f"{root}/{row}"


def _stamped(
    rows: Iterable[_Reference | SlimWhisperError],
) -> Iterator[Member | SlimWhisperError]:
    """Each with the size and etag of its object, asked for side by side, in their order."""
    Answer = Member | SlimWhisperError
    waiting: deque[Answer | Future[Answer]] = deque()
    with ThreadPoolExecutor(ASKED, "slimwhisper-info") as pool:
        try:
            for row in rows:
                if isinstance(row, SlimWhisperError):
                    waiting.append(row)
                elif is_uri(row[0]):
                    waiting.append(pool.submit(_described, row))
                else:
                    waiting.append(_described(row))
                if len(waiting) > ASKED:
                    yield _answer(waiting.popleft())
            while waiting:
                yield _answer(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _answer(
    found: "Member | SlimWhisperError | Future[Member | SlimWhisperError]",
) -> Member | SlimWhisperError:
    return found.result() if isinstance(found, Future) else found


def _described(row: _Reference) -> Member | SlimWhisperError:
    address, output, seconds, excerpt = row
    try:
        if is_uri(address):
            place = Place(address)
            found = place.info(place.path)
            path, name = place.path, hide(address)
            stamp = (
                Stamp(name, None, None)
                if found is None
                else Stamp(name, found.size, found.mtime_ns, found.etag)
            )
        else:
            path, stamp = address, Stamp.of(Path(address))
    except SlimWhisperError as error:
        return error
    if excerpt is not None:
        name = f"{stamp.path}#{media_fragment(*excerpt)}"
        stamp = Stamp(name, stamp.size, stamp.mtime_ns, stamp.etag)
    return StoredFile(address, path, stamp, duration=seconds, excerpt=excerpt), output


@contextmanager
def _opened(place: Place, found: Found) -> Iterator[BinaryIO]:
    """A container's bytes, to be read from the start. Raises StorageError."""
    with answers(place.uri):
        if place.protocol in LOCAL:
            file = cast(BinaryIO, Path(found.path).open("rb"))
        else:
            remote = place.filesystem.open(found.path, "rb", block_size=BLOCK)
            file = cast(BinaryIO, io.BufferedReader(remote, LINES))
    with file:
        yield file
