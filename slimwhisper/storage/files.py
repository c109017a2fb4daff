"""A recording of a job: its fingerprint, and its bytes, fetched when they are needed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from shutil import copyfileobj
from typing import IO, TypeVar

from slimwhisper.audio.sources import RemoteFile
from slimwhisper.errors import AudioError, SlimWhisperError, StorageError
from slimwhisper.storage.fingerprints import Fingerprint
from slimwhisper.storage.members import MemberBytes
from slimwhisper.storage.uris import is_uri, open_filesystem, reason_of, redact_uri

ONE_REQUEST = 32 << 20  # bytes; a larger object is read in blocks
BLOCK = 8 << 20  # bytes
LOOK_AHEAD = 4096  # recordings from which the longest is chosen next

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile(RemoteFile):
    """A recording in a store, an archive or a table, or a local file. It can be pickled.

    `fingerprint.path` names it in messages and journals, without credentials. For an excerpt, its
    times follow as a media fragment (w3.org/TR/media-frags, 4.2.1): `s3://b/a.wav#t=12.5,15`.
    """

    uri: str = field(repr=False)  # of anything in its file system; may contain credentials
    path: str  # in that file system
    fingerprint: Fingerprint
    duration: float | None = None  # seconds, from a manifest
    excerpt: tuple[float, float | None] | None = None
    data: MemberBytes | None = field(default=None, repr=False)  # of an archive or a table

    @staticmethod
    def at(uri: str) -> "StoredFile":
        """The object at a URI, without a request to its store. Raises OptionError,
        DependencyError.
        """
        return StoredFile(uri, open_filesystem(uri)[1], Fingerprint(redact_uri(uri), None, None))

    def __str__(self) -> str:
        return self.fingerprint.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredFile) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.fingerprint.path.rpartition("/")[2]

    @property
    def local(self) -> Path | None:  # type: ignore[override]
        """The local file that contains it; None: there is none."""
        return None if self.data is not None or is_uri(self.uri) else Path(self.path)

    def fetch(self, target: IO[bytes]) -> None:
        if self.data is not None:
            self.data.move_to(target)
            return
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


@dataclass(frozen=True, slots=True)
class InputFile:
    """A recording of a job. It can be pickled."""

    path: Path | StoredFile
    output: str  # path of its outputs in the output folder, without a format's suffix
    fingerprint: Fingerprint

    @property
    def local(self) -> Path | None:
        """The local file that contains it; None: there is none."""
        return self.path if isinstance(self.path, Path) else self.path.local


def media_fragment(start: float, end: float | None) -> str:
    """`t=12.5,15`, or `t=12.5` to the end."""
    return f"t={format_seconds(start)}" + ("" if end is None else f",{format_seconds(end)}")


def format_seconds(seconds: float) -> str:
    """Seconds without an exponent or trailing zeros, to the microsecond."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def longest_first(items: Iterable[tuple[float | None, T]], ahead: int = LOOK_AHEAD) -> Iterator[T]:
    """(seconds or None, item) -> items, each the longest of the next `ahead`.

    Items without a length follow those with one, in their order.
    """
    heap: list[tuple[float, int, T]] = []
    numbers = count()
    for seconds, item in items:
        heappush(heap, (-(seconds or 0.0), next(numbers), item))
        if len(heap) > ahead:
            yield heappop(heap)[2]
    while heap:
        yield heappop(heap)[2]
