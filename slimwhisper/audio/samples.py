"""A recording's samples, float32 at 16 kHz, read in parts: no reader holds all of them.

Only this module knows where they are: in the caller's array, in memory or in a temporary file.
"""

import os
import tempfile
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import IO, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import AudioError
from slimwhisper.types import SAMPLE_RATE

SPOOL_SECONDS = 600  # longer recordings are kept on disk
SAMPLE_BYTES = 2  # of int16


class Samples(Protocol):
    """The interface through which a recording is read."""

    def __len__(self) -> int:
        """The number of samples."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32 [stop - start] in [-1, 1], shorter where it would leave [0, len)."""

    def close(self) -> None:
        """Free memory and files; nothing may be read afterwards. A second call does nothing."""


class ArraySamples:
    """The samples of a float32 array [n], whose memory is shared."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        """array [n], 16 kHz."""
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start]: a view."""
        return self._array[max(start, 0) : max(stop, 0)]

    def close(self) -> None:
        """Nothing: the memory is the caller's."""


class StoredSamples:
    """Samples kept as int16: in memory up to SPOOL_SECONDS, else all in a temporary file.

    The file is unnamed, in the folder TMPDIR, and is deleted with this object. It is not
    memory-mapped: pages that were read would count as memory of this process. Several threads may
    read at the same time.
    """

    _array: NDArray[np.int16]
    _file: BinaryIO | None = None

    def __init__(self, name: str, pieces: Iterable[NDArray[np.int16]]) -> None:
        """Store all of `pieces`, each int16 [n]; `name` is for messages.

        Raises AudioError if the disk is full, and whatever `pieces` raises.
        """
        length, in_memory = 0, SPOOL_SECONDS * SAMPLE_RATE * SAMPLE_BYTES
        try:
            with tempfile.SpooledTemporaryFile(in_memory) as file:
                for piece in pieces:
                    file.write(piece.tobytes())
                    length += len(piece)
                file.flush()  # os.pread bypasses Python's buffer
                self._take(file, length)
        except OSError as error:
            raise no_room(name, error) from error

    @classmethod
    def of_file(cls, file: IO[bytes]) -> "StoredSamples":
        """Those that a temporary file holds; it may be closed then."""
        self = cls.__new__(cls)
        self._take(file, os.fstat(file.fileno()).st_size // SAMPLE_BYTES)
        return self

    def _take(self, file: IO[bytes], length: int) -> None:
        self._length, self._array = length, np.zeros(0, np.int16)
        if length <= SPOOL_SECONDS * SAMPLE_RATE:
            file.seek(0)
            self._array = np.frombuffer(file.read(SAMPLE_BYTES * length), np.int16)
        else:
            self._file = os.fdopen(os.dup(file.fileno()), "rb")
            self._close_file = weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32, converted from int16."""
        start = max(start, 0)
        count = max(min(stop, self._length) - start, 0)
        if self._file is None:
            values = self._array[start : start + count]
        else:
            data = os.pread(self._file.fileno(), SAMPLE_BYTES * count, SAMPLE_BYTES * start)
            values = np.frombuffer(data, np.int16, count)
        return np.multiply(values, np.float32(1 / 32768), dtype=np.float32)

    def close(self) -> None:
        self._array = np.zeros(0, np.int16)
        if self._file is not None:
            self._close_file()


def no_room(name: str, error: OSError) -> AudioError:
    """The error of samples that cannot be stored."""
    hour = 3600 * SAMPLE_RATE * SAMPLE_BYTES / 1e6
    return AudioError(
        f"{name}: no room for its samples in {tempfile.tempdir or 'a temporary folder'} "
        f"({error.strerror or error}): they take {hour:.0f} MB for each hour of audio; "
        "free space there, or set TMPDIR to a folder that has it"
    )


class Excerpts:
    """Regions of other samples, one after the other."""

    def __init__(self, samples: Samples, regions: Sequence[tuple[int, int]]) -> None:
        """`regions`: [start, stop) in `samples`; parts outside [0, len) are left out."""
        self._samples = samples
        clipped = [(max(start, 0), min(stop, len(samples))) for start, stop in regions]
        self._regions = [(start, stop) for start, stop in clipped if start < stop]
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

    def close(self) -> None:
        self._samples.close()

    def original(self, position: int, *, end: bool = False) -> int:
        """The index in the other samples of the sample at `position`, an index here.

        A border between two regions is the start of the later one or, with `end`, the end of the
        earlier one. Positions past the last region continue after its end.
        """
        bisect = bisect_left if end else bisect_right
        region = max(bisect(self._starts, position) - 1, 0)
        return position - self._starts[region] + self._regions[region][0]
