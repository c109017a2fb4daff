"""The interface of recordings that are fetched before they are decoded."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO


class RemoteFile(ABC):
    """A recording that is not a file of this machine, or only a part of one. `str` is its name in
    messages. It is fetched in the thread that decodes it.
    """

    local: Path | None = None  # the file of this machine that holds it, if there is one
    excerpt: tuple[float, float | None] | None = None  # seconds, start and end; None: all

    @abstractmethod
    def fetch(self, target: IO[bytes]) -> None:
        """Write the file's bytes. Raises AudioError; StorageError if another try may succeed."""
