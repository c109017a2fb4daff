"""Stores by fsspec: their objects as recordings, and a folder in one as a job's sink."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, cast

from slimwhisper.addresses import is_uri, protocol_of, reason_of, redact
from slimwhisper.audio.samples import RemoteFile
from slimwhisper.errors import (
    AudioError,
    DependencyError,
    OptionError,
    SlimWhisperError,
    StorageError,
)
from slimwhisper.files import Fingerprint, library_errors, sink_errors

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
        found: tuple[Any, str] = fsspec.core.url_to_fs(uri, **options)
        return found
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
        return None if is_uri(self.uri) else Path(self.path)

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
