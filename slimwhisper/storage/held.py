"""Bytes of members of archives and tables, from when they are read until they are decoded."""

import weakref
from errno import EDQUOT, ENOSPC
from io import BytesIO
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from threading import Condition
from typing import IO, Any

from slimwhisper.errors import StorageError

MAX_MEMBER = 1 << 30  # bytes of one member
MAX_HELD = 2 * MAX_MEMBER  # bytes of all that wait in this process
IN_MEMORY = 1 << 20  # bytes; a larger member is in an unnamed file in the folder TMPDIR
BLOCK = 1 << 20  # bytes

_released = Condition()
_held = 0  # bytes


class HeldBytes:
    """A member's bytes, which are given once. Its copies in other processes have all of them."""

    def __init__(self, source: IO[bytes], size: int, wait: bool = True) -> None:
        """Takes `size` bytes. wait: until there is room, which those make that are decoded.

        Raises StorageError if the disk is full.
        """
        _take(size, wait)
        self._file: IO[bytes] = SpooledTemporaryFile(IN_MEMORY)
        self._release = weakref.finalize(self, _give, self._file, size)
        try:
            copyfileobj(source, self._file, BLOCK)
        except OSError as error:
            self._release()
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            raise StorageError(
                f"no room for an archive's member in the temporary folder ({error.strerror}): free "
                "space there, or set TMPDIR to a folder that has it"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        self._file.seek(0)
        return _received, (self._file.read(),)

    def move_to(self, target: IO[bytes]) -> None:
        """Write the bytes; they are no longer held then."""
        self._file.seek(0)
        copyfileobj(self._file, target, BLOCK)
        self._release()


def _received(data: bytes) -> HeldBytes:
    """One that was sent here by another process, which has waited."""
    return HeldBytes(BytesIO(data), len(data), wait=False)


def _take(size: int, wait: bool) -> None:
    global _held
    with _released:
        while wait and _held and _held + size > MAX_HELD:
            _released.wait()
        _held += size


def _give(file: IO[bytes], size: int) -> None:
    global _held
    file.close()
    with _released:
        _held -= size
        _released.notify_all()
