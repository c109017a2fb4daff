"""A folder for outputs, here or in a store. What is put there is whole, or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from slimwhisper.atomic import PART, atomic_write
from slimwhisper.errors import OutputError, SlimWhisperError
from slimwhisper.storage.uris import LOCAL, is_uri, open_filesystem, protocol_of, reason, shown_uri

PROBE = "slimwhisper-journal/.probe"  # an empty file: not every key may delete


class OutputFolder:
    """A folder by its path or URI; names in it are relative, with `/` between parts.

    In a store, an object appears when all of its bytes have arrived. In a folder of this machine, a
    file is written under another name, and renamed. Any thread may call. It can be pickled.

    Raises OutputError everywhere; the constructor, OptionError and DependencyError.
    """

    def __init__(self, place: str) -> None:
        self.is_local = protocol_of(place) in LOCAL
        self._place = place
        # of a folder of this machine, its path; files are written there without fsspec
        self._root = self._opened[1] if is_uri(place) else place

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """fsspec's file system, and the path in it."""
        filesystem, root = open_filesystem(self._place)
        return filesystem, root.rstrip("/")

    def here(self, name: str) -> Path:
        """The path of a file in a folder of this machine."""
        return Path(self._root) / name

    def name(self, name: str) -> str:
        """A file's path or URI, without credentials."""
        if self.is_local:
            return str(self.here(name))
        return f"{shown_uri(self._place).rstrip('/')}/{name}"

    def check(self) -> None:
        """Find out whether the place can be written to. Raises OutputError."""
        if not self.is_local:
            self.put(PROBE, b"")
            return
        check_folder(self.here(""), "--output_dir")

    def put(self, name: str, data: bytes) -> None:
        """Write a file whole."""
        with self._reported(name, "written"):
            if self.is_local:
                self.here(name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(self.here(name)) as file:
                    file.write(data)
            else:
                self._opened[0].pipe_file(self._path(name), data)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A file, read where it is."""
        with self._reported(name, "read"):
            with self._opened[0].open(self._path(name), "rb") as file:
                yield file

    def get(self, name: str) -> bytes:
        """A file's bytes."""
        with self.open(name) as file:
            return file.read()

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        if self.is_local:
            return os.path.exists(self.here(name))  # noqa: PTH110  (False without permission)
        with self._reported(name, "looked up"):
            return bool(self._opened[0].exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """The names of the files in one folder, sorted; none if there is no such folder."""
        with self._reported(folder, "listed"):
            try:
                found = self._opened[0].ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
            names = (info["name"].rpartition("/")[2] for info in found if info["type"] == "file")
            return sorted(f"{folder}/{name}" for name in names if name)

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    @contextmanager
    def _reported(self, name: str, what: str) -> Iterator[None]:
        try:
            yield
        except SlimWhisperError:
            raise
        except Exception as error:  # each library has its own
            first = "free some space" if self.is_local else "check the address and credentials"
            raise OutputError(
                f"{self.name(name)}: cannot be {what} ({reason(error)}); {first}, "
                "or choose another --output_dir"
            ) from None


def check_folder(folder: Path, flag: str) -> None:
    """Make a folder, and find out whether it can be written to. Raises OutputError with the flag
    that chose it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot write there ({error.strerror}); choose another {flag}"
        ) from error


def sweep(folder: Path, before: float) -> None:
    """Remove the unfinished files that a killed run has left in a folder, if they are older than
    this time. Their recordings are transcribed again.
    """
    with suppress(OSError):  # the folder does not exist yet, or we lack permission
        for path in folder.glob("*".join(PART)):
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)
