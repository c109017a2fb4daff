"""A recording's samples at 16 kHz: from a path, bytes or a file object, piece by piece; and kept,
for reading in parts, in the caller's array, in memory or in a temporary file, by channels too.
"""

import io
import os
import struct
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import AudioError, StorageError
from slimwhisper.text import error_line
from slimwhisper.types import SAMPLE_RATE

MAX_CHANNELS = 8  # of an array, or of a file that is split
STEREO = ("left", "right")  # the names of two channels; of more, "channel 1", "channel 2", ...
SPOOL_SECONDS = 600  # longer recordings are stored on disk
SAMPLE_BYTES = 2  # of int16
BLOCK = 1 << 19  # samples per read
PLAIN_WAV = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)  # a format chunk
PLAIN_HEAD = b"WAVEfmt \x10\0\0\0" + PLAIN_WAV + b"data"  # between the file's and the samples' size
# who reads all other files, as "module:name"; it is imported for the first of them
OTHERS = "slimwhisper.audio_formats.pieces:pieces_of"


Span = tuple[int, int]  # samples [start, stop)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a recording."""

    allow_truncated: bool | None = False  # a file that ends early; None: messages do not offer it
    split: bool = False  # keep the channels, do not mix them
    audio_track: str | int | None = None  # a number from 1, or a language; None: FFmpeg's choice
    seconds: float = inf  # the longest recording


def silence(count: int) -> NDArray[np.int16]:
    """A piece [count] of the silence that a file's clock has, without memory: `is_silence`."""
    return np.broadcast_to(np.int16(0), count)


def is_silence(piece: NDArray[np.int16]) -> bool:
    """Whether a piece is the silence that a file's clock has, and not the file's own."""
    return not any(piece.strides)


class Samples(Protocol):
    """The interface for reading a recording."""

    def __len__(self) -> int:
        """The number of samples."""

    @property
    def silences(self) -> Sequence[Span]:
        """Where a file has no sound by its clock: before it begins, and in gaps."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32 [stop - start] in [-1, 1]; samples outside [0, len) are left out."""

    def close(self) -> None:
        """Free memory and files; nothing may be read afterwards. A second call does nothing."""


class ArraySamples:
    """The samples of a float32 array [n], whose memory is shared."""

    silences: Sequence[Span] = ()

    def __init__(self, array: NDArray[np.float32]) -> None:
        """array [n], 16 kHz."""
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start]: a view."""
        return self._array[max(start, 0) : max(stop, 0)]

    def close(self) -> None:
        """Does nothing: the memory is the caller's."""


def _add_span(spans: list[Span], start: int, stop: int) -> None:
    """Add a span behind the others; those that touch are one."""
    if spans and spans[-1][1] == start:
        start, _ = spans.pop()
    spans.append((start, stop))


class StoredSamples:
    """Samples as int16: in memory up to SPOOL_SECONDS, else all in a temporary file. Those of
    several channels are stored in turn, and counted and read as if they were one.

    The file is unnamed, in the folder TMPDIR, and is deleted with this object. It is not
    memory-mapped, as pages that were read would count as memory of this process. Several threads
    may read at the same time.
    """

    def __init__(self, name: str, pieces: Iterable[NDArray[np.int16]]) -> None:
        """Store all of `pieces`, each int16 [n] or [n, channels]; `name` is for messages.

        Raises StorageError if the disk is full, and whatever `pieces` raises.
        """
        in_memory = round(SPOOL_SECONDS * SAMPLE_RATE) * SAMPLE_BYTES
        self._file = tempfile.SpooledTemporaryFile(in_memory)
        self._close_file = weakref.finalize(self, _close, self._file)
        self._lock = threading.Lock()  # of the file's position
        self._length, self.channels = 0, 1
        self.silences: list[Span] = []  # in samples of one channel
        try:
            for piece in pieces:
                if piece.ndim == 2:
                    self.channels = piece.shape[1]
                if is_silence(piece):
                    start = self._length // self.channels
                    _add_span(self.silences, start, start + len(piece))
                self._length += piece.size
                with _disk_errors(name):
                    self._file.write(piece.tobytes())
            with _disk_errors(name):
                self._file.flush()  # a full disk is noticed here
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32, converted from int16."""
        start = max(start, 0)
        count = max(min(stop, self._length) - start, 0)
        with self._lock:
            self._file.seek(SAMPLE_BYTES * start)
            data = self._file.read(SAMPLE_BYTES * count)
        values = np.frombuffer(data, np.int16, count)
        return np.multiply(values, np.float32(1 / 32768), dtype=np.float32)

    def close(self) -> None:
        self._close_file()


@contextmanager
def _disk_errors(name: str) -> Iterator[None]:
    """OSError -> StorageError: the recording can be read once there is space."""
    try:
        yield
    except OSError as error:
        hour = 3600 * SAMPLE_RATE * SAMPLE_BYTES / 1e6
        where = f"{tempfile.tempdir or 'a temporary folder'} ({error.strerror or error})"
        what = f"no space for its samples in {where}: {hour:.0f} MB for each hour of audio"
        remedy = "free space there, or set TMPDIR to a folder with space"
        raise StorageError(f"{name}: {what}; {remedy}") from error


class Excerpts:
    """Regions of other samples, one after the other."""

    def __init__(self, samples: Samples, regions: Sequence[tuple[int, int]]) -> None:
        """`regions`: [start, stop) in `samples`; parts outside [0, len) are left out."""
        self._samples = samples
        self._regions: list[Span] = []
        for start, stop in ((max(a, 0), min(b, len(samples))) for a, b in regions):
            if start < stop:
                _add_span(self._regions, start, stop)
        # where each region begins here, then the length
        lengths = (stop - start for start, stop in self._regions)
        *self._starts, self._length = accumulate(lengths, initial=0)

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32, across the regions."""
        start, stop = max(start, 0), min(stop, self._length)
        parts = [np.zeros(0, np.float32)]
        region = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            offset = self._regions[region][0] - self._starts[region]
            end = min(stop + offset, self._regions[region][1])
            parts.append(self._samples.read(start + offset, end))
            start = end - offset
            region += 1
        return np.concatenate(parts)

    @property
    def silences(self) -> Sequence[Span]:
        """Those of the other samples, as far as they are in the regions."""
        found = []
        for at, (start, stop) in zip(self._starts, self._regions, strict=True):
            spans = ((max(a, start), min(b, stop)) for a, b in self._samples.silences)
            found += [(a - start + at, b - start + at) for a, b in spans if a < b]
        return found

    def close(self) -> None:
        self._samples.close()

    def original(self, position: int, *, end: bool = False) -> int:
        """The index in the other samples of the sample at `position`, an index here.

        A border between two regions is the start of the later one or, with `end`, the end of the
        earlier one. Positions past the last region continue after its end.
        """
        region = max((bisect_left if end else bisect_right)(self._starts, position) - 1, 0)
        return position - self._starts[region] + self._regions[region][0]

    def original_span(self, start: int, stop: int) -> tuple[int, int]:
        """The indices in the other samples of a stretch that lies in one region, such as a word: in
        that of its middle. What of it reaches into a neighbouring region is cut off.
        """
        region = max(bisect_right(self._starts, (start + stop) // 2) - 1, 0)
        first, last = self._regions[region]
        offset = first - self._starts[region]
        if region + 1 < len(self._regions):
            stop = min(stop, last - offset)
        return max(start, self._starts[region]) + offset, stop + offset


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # a full disk has been reported
        file.close()


class Channel:
    """One channel of stored samples."""

    def __init__(self, stored: StoredSamples, number: int) -> None:
        """number: from 0."""
        self._stored, self._number = stored, number
        self.silences: Sequence[Span] = stored.silences  # of all channels

    def __len__(self) -> int:
        return len(self._stored) // self._stored.channels

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32."""
        count = self._stored.channels
        block = self._stored.read(max(start, 0) * count, max(stop, 0) * count)
        return np.ascontiguousarray(block[self._number :: count])

    def close(self) -> None:
        """Close the stored samples, and so all channels."""
        self._stored.close()


def channels_of(stored: StoredSamples) -> list[Channel]:
    """The channels of stored samples."""
    return [Channel(stored, number) for number in range(stored.channels)]


def named_channels(
    channels: Sequence[Samples], names: Sequence[str], label: str
) -> dict[str, Samples]:
    """The channels by their names: those given, else "left" and "right" of two, and "channel 1" and
    so on of more. label: the recording, for messages.

    Raises AudioError for one channel, more than `MAX_CHANNELS`, another number of names, and if all
    channels are the same.
    """
    count = len(channels)
    if count < 2:
        what = "has one channel, so there are none to split; leave them mixed, which is the default"
        raise AudioError(f"{label}: {what}, or give a recording with a channel for each speaker")
    if count > MAX_CHANNELS:
        what = f"has {count} channels; channels splits up to {MAX_CHANNELS}"
        raise AudioError(f"{label}: {what}, so give a recording of some of them")
    if names and len(names) != count:
        what = f"has {count} channels, but channel_names has {len(names)}"
        raise AudioError(f"{label}: {what}; give one name for each channel")
    if _are_same(channels):
        what = f"its {count} channels are the same, so each word would be there {count} times"
        raise AudioError(f"{label}: {what}; leave them mixed, which is the default")
    names = names or (STEREO if count == 2 else [f"channel {i + 1}" for i in range(count)])
    return dict(zip(names, channels, strict=True))


def _are_same(channels: Sequence[Samples]) -> bool:
    """Whether channels are equal, and not silent. Reads up to the first difference."""
    silent = True
    for start in range(0, len(channels[0]), BLOCK):
        first, *others = (channel.read(start, start + BLOCK) for channel in channels)
        if not all(np.array_equal(first, other) for other in others):
            return False
        silent = silent and not first.any()
    return not silent


class RemoteFile(ABC):
    """A recording that is not a file of this machine, or only a part of one. `str` is its name in
    messages. It is fetched in the thread that decodes it.
    """

    local: Path | None = None  # the file of this machine that holds it, if there is one
    excerpt: tuple[float, float | None] | None = None  # seconds, start and end; None: all

    @abstractmethod
    def fetch(self, target: IO[bytes]) -> None:
        """Write the file's bytes. Raises AudioError; StorageError if another try may succeed."""


Source = str | os.PathLike[str] | bytes | BinaryIO  # a file, or its bytes


def open_source(source: Source | RemoteFile) -> tuple[str, BinaryIO]:
    """A name for messages, and a seekable, non-empty file at its start; the caller closes it."""
    name = "audio data"
    file: BinaryIO
    try:
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            name = name_for_messages(path)
            if not path or "\0" in path:
                raise FileNotFoundError
            file = cast(BinaryIO, Path(path).open("rb"))
            if not file.seekable():  # a named pipe
                with file:
                    file = io.BytesIO(file.read())
        elif isinstance(source, RemoteFile):
            name = name_for_messages(str(source))
            file = _fetch(name, source)
        else:
            data: Any = source
            if hasattr(source, "read"):
                data = source.read()
            elif not isinstance(source, (bytes, bytearray, memoryview)):
                kind = f"is of type {type(source).__name__}"
                raise AudioError(f"{name}: {kind}; give a path, bytes, a file or an array")
            if isinstance(data, str):
                raise AudioError(f"{name}: is text; open the file in binary mode ('rb')")
            file = io.BytesIO(data)
    except (OSError, ValueError) as error:  # ValueError: a closed file, undecodable text
        reasons: dict[type[Exception], str] = {
            FileNotFoundError: "no such file; check the path",
            NotADirectoryError: "no such file; check the path",
            IsADirectoryError: "is a folder; give a file in it",
        }
        other = f"cannot be opened ({error_line(error)}); check the file and its permissions"
        kind = AudioError if isinstance(error, (ValueError, *reasons)) else StorageError
        raise kind(f"{name}: {reasons.get(type(error), other)}") from error
    if not file.read(1):
        file.close()
        raise AudioError(f"{name}: is empty (0 bytes); copy or record it again")
    file.seek(0)
    return name, file


def _fetch(name: str, source: RemoteFile) -> BinaryIO:
    """A remote file's bytes, at their start, in a file that has a name while it is open."""
    if source.local is not None:
        return cast(BinaryIO, source.local.open("rb"))
    with _disk_errors(name), ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile())
        source.fetch(file)
        file.seek(0)
        stack.pop_all()
    return cast(BinaryIO, file)


def name_for_messages(path: str) -> str:
    """A path for messages, on one line."""
    return path if path.isprintable() and path else repr(path)


def pieces_of(name: str, file: BinaryIO, how: ReadOptions) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of `file`, which is at its start: at least one sample, or an error. If
    channels are not mixed, those of more than one come as [n, channels].
    """
    head, size = file.read(44), file.seek(0, os.SEEK_END)
    file.seek(0)
    is_plain = head[:4] == b"RIFF" and head[8:40] == PLAIN_HEAD
    stated = int.from_bytes(head[40:], "little")
    if is_plain and 0 < stated == size - len(head) and how.audio_track is None:
        return plain_pieces(name, file, len(head), size)
    return resolve_name(OTHERS)(name, file, how)


def read_file(source: Source | RemoteFile, how: ReadOptions) -> tuple[str, StoredSamples]:
    """A file's name for messages, and its samples; of its channels in turn, if they are split."""
    name, file = open_source(source)
    with file:
        return name, StoredSamples(name, pieces_of(name, file, how))


def plain_pieces(name: str, file: BinaryIO, start: int, stop: int) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of 16-bit samples at 16 kHz, one channel, between two positions."""
    file.seek(start)
    left = (stop - start) // SAMPLE_BYTES
    while left:
        data = file.read(SAMPLE_BYTES * min(BLOCK, left))
        if len(data) < SAMPLE_BYTES:
            what = f"the last {left / SAMPLE_RATE:.1f} s cannot be read"
            raise AudioError(f"{name}: {what}; copy the file again")
        piece = np.frombuffer(data, np.int16, len(data) // SAMPLE_BYTES)
        left -= piece.size
        yield piece
