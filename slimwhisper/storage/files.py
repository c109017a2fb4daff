"""One recording in a store: its key, and its bytes when they are wanted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from shutil import copyfileobj
from typing import IO, TypeVar

from slimwhisper.audio.remote import RemoteFile
from slimwhisper.errors import AudioError, SlimWhisperError, StorageError
from slimwhisper.storage.held import HeldBytes
from slimwhisper.storage.stamps import Stamp
from slimwhisper.storage.uris import hide, is_uri, open_filesystem, reason

ONE_REQUEST = 32 << 20  # bytes; a larger object is read in blocks
BLOCK = 8 << 20  # bytes
LOOK_AHEAD = 4096  # recordings among which the longest goes first

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile(RemoteFile):
    """A recording in a store, an archive or a table, or a file here. It can be pickled.

    `stamp.path` names it in messages and journals, without credentials. An excerpt has its times
    at the end, as a media fragment (w3.org/TR/media-frags, 4.2.1): `s3://b/a.wav#t=12.5,15`.
    """

    uri: str = field(repr=False)  # any in its file system; may hold credentials
    path: str  # in that file system
    stamp: Stamp
    duration: float | None = None  # seconds, where a manifest says so
    excerpt: tuple[float, float | None] | None = None
    data: HeldBytes | None = field(default=None, repr=False)  # of a member of an archive or a table

    @staticmethod
    def at(uri: str) -> "StoredFile":
        """The object at a URI, about which its store is not asked. Raises OptionError,
        DependencyError.
        """
        return StoredFile(uri, open_filesystem(uri)[1], Stamp(hide(uri), None, None))

    def __str__(self) -> str:
        return self.stamp.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredFile) and self.stamp == other.stamp

    def __hash__(self) -> int:
        return hash(self.stamp)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.stamp.path.rpartition("/")[2]

    @property
    def local(self) -> Path | None:  # type: ignore[override]
        """The file of this machine that holds it."""
        return None if self.data is not None or is_uri(self.uri) else Path(self.path)

    def fetch(self, target: IO[bytes]) -> None:
        if self.data is not None:
            self.data.move_to(target)
            return
        try:
            filesystem, path = open_filesystem(self.uri)[0], self.path
            size = self.stamp.size
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
            raise StorageError(
                f"{self}: the store does not give it ({reason(error)}); run the job again"
            ) from None
        if size is not None and written != size:
            raise StorageError(
                f"{self}: {written} of its {size} bytes arrived; run the job again, "
                "or list it anew if it has changed"
            )


@dataclass(frozen=True, slots=True)
class InputFile:
    """A recording of a job. It can be pickled."""

    path: Path | StoredFile
    output: str  # relative to the output folder: its outputs, without a format's suffix
    stamp: Stamp

    @property
    def local(self) -> Path | None:
        """The file of this machine that holds it."""
        return self.path if isinstance(self.path, Path) else self.path.local


def media_fragment(start: float, end: float | None) -> str:
    """`t=12.5,15`, or `t=12.5` to the end."""
    return f"t={plain(start)}" + ("" if end is None else f",{plain(end)}")


def plain(seconds: float) -> str:
    """Seconds without an exponent or trailing zeros, to the microsecond."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def longest_first(found: Iterable[tuple[float | None, T]], ahead: int = LOOK_AHEAD) -> Iterator[T]:
    """(seconds or None, what lasts that long) -> what, the longest of the next `ahead` first.

    What has no length follows those that have one, in its own order.
    """
    heap: list[tuple[float, int, T]] = []
    numbers = count()
    for seconds, what in found:
        heappush(heap, (-(seconds or 0.0), next(numbers), what))
        if len(heap) > ahead:
            yield heappop(heap)[2]
    while heap:
        yield heappop(heap)[2]
