"""Files that name or hold many recordings: manifests, parquet tables, tar archives.

Each is read as a stream. Nothing is kept but the recordings that are waiting, see `longest_first`.
"""

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import IO, Any

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, DependencyError, SlimWhisperError
from slimwhisper.storage.files import (
    BLOCK,
    InputFile,
    StoredFile,
    longest_first,
    media_fragment,
    plain,
)
from slimwhisper.storage.held import MAX_MEMBER, HeldBytes
from slimwhisper.storage.listing import Place, answers
from slimwhisper.storage.stamps import Stamp
from slimwhisper.storage.uris import hide, is_uri

OUTSIDE = "outside"  # folder for the outputs of recordings that are not named relatively
ROWS = 16  # of a table with bytes, read at a time
NAMES = 4096  # rows of a table with names, read at a time
ASKED = 32  # objects whose size and etag are asked for at a time
# columns of a table that may hold recordings, the first that exists counts
AUDIO_COLUMNS = ("audio_filepath", "audio", "path", "uri", "url", "file", "file_name", "bytes")
# what a row raises that names no recording
WRONG_ROW = (ValueError, TypeError, OverflowError, KeyError, AttributeError, RecursionError)

Found = Iterator[InputFile | SlimWhisperError]
# an address, where its outputs go, seconds, and the excerpt
Reference = tuple[str, str, float | None, tuple[float, float | None] | None]


class Container:
    """One file that names or holds recordings."""

    def __init__(self, place: Place, file: StoredFile, root: str, column: str | None) -> None:
        """root: below it lie the outputs of recordings that the file holds. column: of a table or a
        manifest, with the recordings; None: the usual ones.
        """
        self._place, self._file, self._root, self._column = place, file, root, column

    def recordings(self) -> Found:
        """Every recording, and an error for each that cannot be found or read."""
        path = self._file.path.lower()
        read = next(read for suffix, read in READERS.items() if path.endswith(suffix))
        try:
            with self._place.open(self._file.path) as file, answers(self._place.uri):
                yield from read(self, file)
        except SlimWhisperError as error:
            yield error

    def manifest(self, file: IO[bytes]) -> Found:
        """JSON lines with the keys of NeMo's manifests (docs.nvidia.com/nemo-framework,
        "Datasets"): audio_filepath, absolute or relative to the manifest, duration in seconds, and
        offset, with which the recording is the `duration` seconds from there.
        """
        column = self._column or "audio_filepath"
        rows = ((n, line) for n, line in enumerate(file, start=1) if line.strip())
        wrong = f"line {{}} is not a JSON object with {column}; check the manifest"
        return self._named(rows, json.loads, column, wrong)

    def table(self, file: IO[bytes]) -> Found:
        """A parquet table. Its column of recordings has paths or URIs, the bytes of files, or
        Hugging Face's `Audio`: a struct of `bytes` and `path`. With paths, the columns `duration`
        and `offset` mean what they mean in a manifest.
        """
        pyarrow, parquet = import_pyarrow()
        try:
            table = parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as error:
            raise AudioError(f"{self._file}: not a parquet file; write it again") from error
        columns = table.schema_arrow
        asked = (self._column,) if self._column else AUDIO_COLUMNS
        chosen = next((c for c in asked if c in columns.names), None)
        if chosen is None:
            raise AudioError(
                f"{self._file}: no column {' or '.join(asked)}; name it with --audio_column"
            )
        kind = columns.field(chosen).type
        named = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
        read = [chosen, *(c for c in ("duration", "offset") if named and c in columns.names)]
        batches = table.iter_batches(NAMES if named else ROWS, columns=read)
        rows = enumerate(row for batch in batches for row in batch.to_pylist())
        if named:
            wrong = "row {} names no recording; check the table"
            yield from self._named(rows, dict, chosen, wrong)
            return
        for number, row in rows:
            data: Any = row[chosen]
            path = None
            if isinstance(data, dict):
                data, path = data.get("bytes"), data.get("path")
            name = f"{self._file}#row={number}"
            if isinstance(data, bytes):
                output = f"{number:08d}" + (f"-{PurePosixPath(path).name}" if path else "")
                yield self._held(name, output, io.BytesIO(data), len(data))
            else:
                yield AudioError(f"{name}: no bytes; name the column with --audio_column")

    def tar(self, file: IO[bytes]) -> Found:
        """A tar archive, such as a shard of webdataset: its members with the suffix of a recording.

        It is read once from its start, so it may be compressed.
        """
        try:
            with tarfile.open(fileobj=file, mode="r|*", bufsize=BLOCK) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep all
                    suffix = PurePosixPath(member.name).suffix.lower()
                    if not member.isfile() or suffix not in AUDIO_SUFFIXES:
                        continue
                    name = f"tar://{member.name}::{self._file}"
                    if member.size > MAX_MEMBER:
                        yield AudioError(f"{name}: too large for an archive; give it as a file")
                        continue
                    stream = archive.extractfile(member)
                    assert stream is not None
                    # not where those of another member go
                    parts = member.name.split("/")
                    apart = ".." in parts or parts[0] in ("", OUTSIDE)
                    path = normpath(member.name) if apart else member.name
                    output = f"{OUTSIDE}/{below(path)}" if apart else below(path)
                    yield self._held(name, output, stream, member.size)
        except (tarfile.TarError, EOFError) as error:
            raise AudioError(
                f"{self._file}: damaged, or not a tar archive; copy it again"
            ) from error

    def _held(self, name: str, output: str, source: IO[bytes], size: int) -> InputFile:
        """A recording whose bytes are in the container."""
        stamp = replace(self._file.stamp, path=name, size=size)
        file = StoredFile(self._place.uri, "", stamp, data=HeldBytes(source, size))
        return InputFile(file, f"{self._root}/{output}", stamp)

    def _named(
        self,
        rows: Iterable[tuple[int, Any]],
        parse: Callable[[Any], dict[str, Any]],
        column: str,
        wrong: str,
    ) -> Found:
        """The recordings that numbered rows name, some of the longest first.

        The size and etag of their objects are asked for side by side.
        """

        def references() -> Iterator[tuple[float | None, Reference | SlimWhisperError]]:
            for number, row in rows:
                try:
                    named = self._reference(parse(row), column)
                    yield named[2], named
                except WRONG_ROW:
                    yield None, AudioError(f"{self._file}: {wrong.format(number)}")

        ordered = longest_first(references())
        with ThreadPoolExecutor(ASKED, "slimwhisper-info") as pool:
            while some := list(islice(ordered, ASKED)):
                yield from pool.map(_described, some)

    def _reference(self, row: dict[str, Any], column: str) -> Reference:
        """What a row names. Raises WRONG_ROW."""
        path, duration, offset = row[column], row.get("duration"), row.get("offset")
        seconds = None if duration is None else float(duration)
        if not path or "\0" in path:
            raise ValueError
        path.encode() if is_uri(path) else os.fsencode(path)  # ValueError for what is no name
        address, output = self._resolved(path)
        if offset is None:
            return address, output, seconds, None
        start = float(offset)
        end = None if seconds is None else start + seconds
        excerpt = plain(start) + ("" if end is None else f"-{plain(end)}")
        return address, f"{output}-{excerpt}", seconds, (start, end)

    def _resolved(self, path: str) -> tuple[str, str]:
        """The address of what the container names, and where its outputs go."""
        if is_uri(path):
            return path, f"{OUTSIDE}/{below(hide(path).replace('://', '/', 1))}"
        if path.startswith("/"):
            return path, f"{OUTSIDE}/{below(path)}"
        folder = self._file.path.rpartition("/")[0]
        address = f"{folder}/{path}" if folder else path
        parts, output = path.split("/"), below(path)
        if ".." in parts or parts[0] == OUTSIDE:
            address = normpath(address)
            output = f"{OUTSIDE}/{below(address)}"
        return self._place.address_of(address), output


READERS: dict[str, Callable[[Container, IO[bytes]], Found]] = {
    ".jsonl": Container.manifest,
    ".json": Container.manifest,
    ".parquet": Container.table,
    ".tar": Container.tar,
    ".tar.gz": Container.tar,
    ".tgz": Container.tar,
}


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet. Raises DependencyError."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DependencyError(
            "parquet needs another package: pip install 'slimwhisper[parquet]'"
        ) from error
    return pyarrow, parquet


def is_container(path: str) -> bool:
    """Whether a path has the suffix of one."""
    return path.lower().endswith(tuple(READERS))


def below(path: str) -> str:
    """A relative path, without what leads out of a folder."""
    return "/".join(part for part in path.split("/") if part not in ("", ".", ".."))


def _described(row: Reference | SlimWhisperError) -> InputFile | SlimWhisperError:
    """A recording with the size and etag of its object, or the time of its file."""
    if isinstance(row, SlimWhisperError):
        return row
    address, output, seconds, excerpt = row
    path, stamp = address, Stamp.of(Path(address))
    if is_uri(address):
        try:
            place = Place(address)
            path, found = place.path, place.info(place.path)
        except SlimWhisperError as error:
            return error
        stamp = Stamp("", None, None) if found is None else found.stamp
        stamp = replace(stamp, path=hide(address))
    if excerpt is not None:
        stamp = replace(stamp, path=f"{stamp.path}#{media_fragment(*excerpt)}")
    file = StoredFile(address, path, stamp, duration=seconds, excerpt=excerpt)
    return InputFile(file, output, stamp)
