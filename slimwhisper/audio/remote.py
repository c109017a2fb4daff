"""What a recording offers that has to be fetched before it is decoded."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO


class RemoteFile(ABC):
    """A recording that is not, or not all of, a file of this machine. `str` names it in messages.

    It is fetched where it is decoded: in a loader's thread, not in the one that lists.
    """

    local: Path | None = None  # the file here that holds it, if there is one
    excerpt: tuple[float, float | None] | None = None  # seconds, start and end; None: all

    @abstractmethod
    def fetch(self, target: IO[bytes]) -> None:
        """Write the file's bytes. Raises AudioError; StorageError if another try may succeed."""
