"""Holds the bytes of members of archives and tables, from reading them until decoding them."""

import weakref
from errno import EDQUOT, ENOSPC
from io import BytesIO
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from threading import Condition
from typing import IO, TYPE_CHECKING, Any

from slimwhisper.audio.samples import RemoteFile
from slimwhisper.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import SupportsRead

MAX_MEMBER = 1 << 30  # bytes of one member
MAX_RESERVED = 2 * MAX_MEMBER  # bytes of all that wait in this process
IN_MEMORY = 1 << 20  # bytes; a larger member is in an unnamed file in the folder TMPDIR
BLOCK = 1 << 20  # bytes

_condition = Condition()
_reserved = 0  # bytes


class HeldFile(RemoteFile):
    """A recording whose bytes are here; they can be fetched once. A pickled copy has its own."""

    def __init__(
        self, name: str, source: "SupportsRead[bytes]", size: int, wait: bool = True
    ) -> None:
        """Copies `size` bytes. wait: until other members have been decoded and there is room.

        Raises StorageError if the disk is full.
        """
        global _reserved
        self._name = name
        with _condition:
            while wait and _reserved and _reserved + size > MAX_RESERVED:
                _condition.wait()
            _reserved += size
        self._file: IO[bytes] = SpooledTemporaryFile(IN_MEMORY)
        self._release = weakref.finalize(self, _free, self._file, size)
        try:
            copyfileobj(source, self._file, BLOCK)
        except OSError as error:
            self._release()
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            what = f"no room in the temporary folder ({error.strerror})"
            raise StorageError(f"{name}: {what}; free space there, or set TMPDIR") from error

    def __str__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        self._file.seek(0)
        data = self._file.read()
        return HeldFile, (self._name, BytesIO(data), len(data), False)  # it has waited for room

    def fetch(self, target: IO[bytes]) -> None:
        """Write the bytes, and free them here."""
        self._file.seek(0)
        copyfileobj(self._file, target, BLOCK)
        self._release()


def _free(file: IO[bytes], size: int) -> None:
    global _reserved
    file.close()
    with _condition:
        _reserved -= size
        _condition.notify_all()
