"""Stores by fsspec: their objects as recordings, and a folder in one as a job's sink; and the files
below a location, listed one by one, without a list of all of them in memory.

A tree in S3 is listed page by page. Elsewhere, fsspec lists a folder at a time, so memory grows
with the largest folder. (fsspec's `find` lists a tree as a whole; its `walk` leaves out the folders
below the first one that cannot be listed.)
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, cast

from slimwhisper.audio.samples import RemoteFile
from slimwhisper.audio_formats.names import HEAD, is_hidden
from slimwhisper.errors import (
    AudioError,
    DependencyError,
    OptionError,
    SlimWhisperError,
    StorageError,
)
from slimwhisper.files import (
    LOCAL,
    Fingerprint,
    library_errors,
    protocol_of,
    reason_of,
    redact,
    sink_errors,
)

# fsspec's extra that has the package for a protocol, where their names differ
EXTRAS = {"s3a": "s3", "gs": "gcs", "az": "abfs", "https": "http"}
LISTED = ("s3", "gcs", "abfs", "http", "hf")  # extras whose file systems cache listings
ONE_REQUEST = 32 << 20  # bytes; a larger object is read in blocks
BLOCK = 8 << 20  # bytes
PROBE = "slimwhisper-journal/.probe"  # an empty file, which stays: a key may not allow deleting


def open_filesystem(uri: str) -> tuple[Any, str]:
    """fsspec's file system of a URI, or of a path, and the path in it.

    Credentials and endpoints come from each library's own environment variables and files, and from
    fsspec's configuration (`FSSPEC_S3_ENDPOINT_URL` and the like). Listings are not cached, because
    a bucket may have any number of names.

    Raises OptionError for an unknown protocol, DependencyError if its package is missing.
    """
    import fsspec
    from fsspec.registry import available_protocols

    protocol = protocol_of(uri) or "file"
    if protocol not in available_protocols() or "::" in uri:
        known = "give a path, or s3://, gs://, az:// or hf://"
        raise OptionError(f"{redact(uri)}: unknown protocol; {known}")
    extra = EXTRAS.get(protocol, protocol)
    options = {"use_listings_cache": False} if extra in LISTED else {}
    try:
        return fsspec.core.url_to_fs(uri, **options)
    except ImportError as error:
        package = f"pip install 'fsspec[{extra}]'"
        raise DependencyError(f"{protocol}:// needs another package: {package}") from error
    except Exception as error:  # each library has its own for missing credentials
        what = f"{redact(uri)}: cannot be opened ({reason_of(error)})"
        raise OptionError(f"{what}; check the address and the credentials") from error


def storage_errors(uri: str) -> AbstractContextManager[None]:
    """A context in which a library's errors become StorageErrors that name the location."""
    remedy = "check the address and the credentials"
    return library_errors(StorageError, f"{redact(uri)}: cannot be read or listed", remedy)


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile(RemoteFile):
    """A recording in a store, or a part of one here. It can be pickled.

    `fingerprint.path` names it in messages and journals, without credentials. For an excerpt, its
    times follow as a media fragment (w3.org/TR/media-frags, 4.2.1): `s3://b/a.wav#t=12.5,15`.
    """

    uri: str = field(repr=False)  # of anything in its file system; may contain credentials
    path: str  # in that file system
    fingerprint: Fingerprint
    excerpt: tuple[float, float | None] | None = None

    @staticmethod
    def at(uri: str) -> "StoredFile":
        """The object at a URI, without a request to its store. Raises OptionError,
        DependencyError.
        """
        return StoredFile(uri, open_filesystem(uri)[1], Fingerprint(redact(uri), None, None))

    def __str__(self) -> str:
        return self.fingerprint.path

    @property
    def local(self) -> Path | None:  # type: ignore[override]
        return None if protocol_of(self.uri) else Path(self.path)

    def fetch(self, target: IO[bytes]) -> None:
        try:
            filesystem, path = open_filesystem(self.uri)[0], self.path
            size = self.fingerprint.size
            if size is not None and size <= ONE_REQUEST:
                written = target.write(filesystem.cat_file(path))
            else:
                with filesystem.open(path, "rb", block_size=BLOCK) as file:
                    copyfileobj(file, target, BLOCK)
                    written = target.tell()
        except FileNotFoundError:
            raise AudioError(f"{self}: no such object; check the address") from None
        except SlimWhisperError as error:
            raise StorageError(str(error)) from error
        except Exception as error:  # each library has its own
            reason = f"cannot be read from its store ({reason_of(error)})"
            raise StorageError(f"{self}: {reason}; run the job again") from None
        if size is not None and written != size:
            problem = f"{written} bytes arrived instead of {size}"
            raise StorageError(f"{self}: {problem}; it may have changed: run the job again")


class StoreFolder:
    """A folder in a store, a `JobSink`. An object appears when all of its bytes have arrived."""

    local = None

    def __init__(self, location: str) -> None:
        """Raises OptionError, DependencyError."""
        self._location = location.rstrip("/")
        self._filesystem, root = open_filesystem(location)
        self._root = root.rstrip("/")

    def name(self, name: str) -> str:
        return f"{redact(self._location)}/{name}"

    def check(self) -> None:
        self.write(PROBE, b"")

    def write(self, name: str, data: bytes) -> None:
        with self._wrap_errors(name, "written"):
            self._filesystem.pipe_file(f"{self._root}/{name}", data)

    def read(self, name: str) -> bytes:
        with self._wrap_errors(name, "read"):
            return cast(bytes, self._filesystem.cat_file(f"{self._root}/{name}"))

    def exists(self, name: str, empty: bool = True) -> bool:
        with self._wrap_errors(name, "looked up"):
            return bool(self._filesystem.exists(f"{self._root}/{name}"))

    def names(self, folder: str) -> list[str]:
        with self._wrap_errors(folder, "listed"):
            try:
                entries = self._filesystem.ls(f"{self._root}/{folder}", detail=True)
            except FileNotFoundError:
                return []
            names = (info["name"].rpartition("/")[2] for info in entries if info["type"] == "file")
            return sorted(f"{folder}/{name}" for name in names if name)

    def _wrap_errors(self, name: str, action: str) -> AbstractContextManager[None]:
        return sink_errors(self.name(name), action, "check the address and credentials")


MAGIC = re.compile(r"[*?\[]")
LINES = 1 << 16  # bytes of lines that are read at a time
# names that fsspec's libraries use for an object's etag (S3, HTTP; Google, Azure; Google; Hugging
# Face), and, where there is none, for the time of its last change
ETAGS = ("ETag", "etag", "md5Hash", "blob_id")
TIMES = ("mtime", "last_modified", "created")

Info = dict[str, Any]  # fsspec's description of a file or folder


class Location:
    """A file system, and a path in it: of a file, a folder or a pattern.

    Any thread may list.
    """

    def __init__(self, uri: str) -> None:
        """Raises OptionError, DependencyError."""
        self.uri = uri
        self.is_local = protocol_of(uri) in LOCAL
        self._filesystem, self.path = open_filesystem(uri)
        parts = self.path.split("/")
        fixed = len(parts)
        while MAGIC.search(top := "/".join(parts[:fixed])):
            if self.is_local and os.path.exists(top):  # noqa: PTH110  (False without permission)
                break
            fixed -= 1
        self.top, self.pattern = top, parts[fixed:]  # a folder, and the pattern below it, if any
        self.dots = any(part.startswith(".") for part in self.pattern)  # it names hidden files

    def address_of(self, path: str) -> str:
        """The URI of a path in the same file system, with this location's credentials; of a local
        file, its path.
        """
        if self.is_local:
            return path
        path_part = self.path.lstrip("/")
        position = self.uri.rfind(path_part) if path_part else -1
        start = self.uri[:position] if position > 0 else f"{protocol_of(self.uri)}://"
        return start + path.lstrip("/")

    def info(self, path: str) -> StoredFile | None:
        """The file at a path, with its fingerprint; None: there is none. Raises StorageError."""
        with storage_errors(self.uri):
            try:
                info = self._filesystem.info(path)
            except FileNotFoundError:
                return None
        return self._file(info) if info["type"] == "file" else None

    @contextmanager
    def open(self, path: str) -> Iterator[BufferedReader]:
        """A file's bytes, to be read from the start. Raises StorageError, also for what fails while
        they are read.
        """
        with storage_errors(self.uri):
            opened = self._filesystem.open(path, "rb", block_size=BLOCK)
            with BufferedReader(opened, LINES) as file:
                yield file

    def head(self, path: str) -> bytes:
        """A file's first bytes. Raises StorageError."""
        with storage_errors(self.uri):
            return cast(bytes, self._filesystem.cat_file(path, start=0, end=HEAD))

    def files(self, named: bool, takes: Callable[[str], bool]) -> Iterator[StoredFile]:
        """The files of the location. Raises StorageError.

        The location is a file, a folder, of which all files below it are listed whose paths `takes`
        allows, or a pattern, in which `**` stands for any folders. named: its path is probably a
        file's.
        """
        nothing, depth, matches = True, None, re.compile("").match
        if self.pattern:
            from fsspec.utils import glob_translate

            top = MAGIC.sub(r"[\g<0>]", self.top)
            matches = re.compile(glob_translate("/".join([top, *self.pattern]))).match
            depth = None if "**" in self.pattern else len(self.pattern) - 1
            nothing = False
        elif named and (file := self.info(self.path)) is not None:
            yield file
            return
        with storage_errors(self.uri):
            for info in self._tree(self.top, depth):
                nothing = False
                if (file := self._file(info)) and matches(file.path) and takes(file.path):
                    yield file
        if nothing and (file := self.info(self.path)) is not None:
            yield file

    def _tree(self, top: str, depth: int | None) -> Iterator[Info]:
        """All files below a folder, at most `depth` folders down; links to folders are not
        followed.
        """
        if depth is None and protocol_of(self.uri) in ("s3", "s3a"):
            yield from self._pages(top)
            return
        pending = [(top, 0)]
        while pending:
            folder, level = pending.pop()
            try:
                entries = self._filesystem.ls(folder, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                continue
            folders = []
            for info in sorted(entries, key=lambda info: str(info["name"])):
                name = info["name"].rstrip("/")
                if name == folder:  # a file that lists itself, or S3's marker of a folder
                    continue
                if info["type"] == "directory" and (depth is None or level < depth):
                    if self.dots or not is_hidden(name.rpartition("/")[2]):
                        folders.append((name, level + 1))
                # for fsspec, a link to a file is neither a file nor a folder
                if info["type"] == "file" or (self.is_local and Path(name).is_file()):
                    yield info
            pending += reversed(folders)

    def _pages(self, folder: str) -> Iterator[Info]:
        """All files below a folder of S3, page by page (ListObjectsV2: 1,000 names)."""
        bucket, _, key = folder.partition("/")
        request = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/" if key else ""}
        while True:
            page = self._filesystem.call_s3("list_objects_v2", **request)
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):  # S3's consoles mark folders like this
                    yield item | {"name": f"{bucket}/{item['Key']}", "size": item["Size"]}
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _file(self, info: Info) -> StoredFile | None:
        """A file that fsspec describes, with keys that depend on the store; None: it no longer
        exists.
        """
        path, mtime = info["name"], None
        if self.is_local:
            fingerprint = Fingerprint.of(Path(path))
            return None if fingerprint.size is None else StoredFile(self.uri, path, fingerprint)
        etag = next((str(info[key]).strip('"') for key in ETAGS if info.get(key)), None)
        changed = next((info[key] for key in TIMES if info.get(key) is not None), None)
        if etag is None and changed is not None:
            seconds = changed if isinstance(changed, int | float) else changed.timestamp()
            mtime = int(seconds * 1e9)
        name = redact(self.address_of(path))
        return StoredFile(self.uri, path, Fingerprint(name, info.get("size"), mtime, etag))
