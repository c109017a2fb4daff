"""Writes outputs atomically, to a local folder or to a store."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from slimwhisper.atomic import PART, atomic_write
from slimwhisper.errors import OutputError, SlimWhisperError
from slimwhisper.storage.uris import LOCAL, is_uri, open_filesystem, protocol_of, reason_of, redact
from slimwhisper.text import error_line

PROBE = "slimwhisper-journal/.probe"  # an empty file, which stays: a key may not allow deleting


class OutputFolder:
    """A folder by its path or URI; names in it are relative, with `/` between parts.

    In a store, an object appears when all of its bytes have arrived. In a local folder, a file is
    written under another name, and renamed. Any thread may call. It can be pickled.

    All methods raise OutputError; the constructor, OptionError and DependencyError.
    """

    def __init__(self, location: str) -> None:
        self.is_local = protocol_of(location) in LOCAL
        self._location = location
        # path of a local folder, to which files are written without fsspec
        self._root = self._opened[1] if is_uri(location) else location

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """fsspec's file system, and the path in it."""
        filesystem, root = open_filesystem(self._location)
        return filesystem, root.rstrip("/")

    def local_path(self, name: str) -> Path:
        """The path of a file in a local folder."""
        return Path(self._root) / name

    def name(self, name: str) -> str:
        """A file's path or URI, without credentials."""
        if self.is_local:
            return str(self.local_path(name))
        return f"{redact(self._location).rstrip('/')}/{name}"

    def check(self) -> None:
        """Check that files can be written. Raises OutputError."""
        if not self.is_local:
            self.put(PROBE, b"")
            return
        check_folder(self.local_path(""), "--output_dir")

    def put(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        with self._wrap_errors(name, "written"):
            if self.is_local:
                self.local_path(name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(self.local_path(name)) as file:
                    file.write(data)
            else:
                self._opened[0].pipe_file(self._path(name), data)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it, without a copy."""
        with self._wrap_errors(name, "read"):
            with self._opened[0].open(self._path(name), "rb") as file:
                yield file

    def get(self, name: str) -> bytes:
        """A file's bytes."""
        with self.open(name) as file:
            return file.read()

    def exists(self, name: str, empty: bool = True) -> bool:
        """Whether there is a file of this name. empty: one of no bytes counts, as it does in a
        store.
        """
        if self.is_local:
            with suppress(OSError):  # also without permission
                return self.local_path(name).stat().st_size > 0 or empty
            return False
        with self._wrap_errors(name, "looked up"):
            return bool(self._opened[0].exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """The names of the files in one folder, sorted; none if there is no such folder."""
        with self._wrap_errors(folder, "listed"):
            try:
                entries = self._opened[0].ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
            names = (info["name"].rpartition("/")[2] for info in entries if info["type"] == "file")
            return sorted(f"{folder}/{name}" for name in names if name)

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    @contextmanager
    def _wrap_errors(self, name: str, action: str) -> Iterator[None]:
        try:
            yield
        except SlimWhisperError:
            raise
        except Exception as error:  # each library has its own
            remedy = "free some space" if self.is_local else "check the address and credentials"
            what = f"{self.name(name)}: cannot be {action} ({reason_of(error)})"
            raise OutputError(f"{what}; {remedy}, or choose another --output_dir") from None


def check_folder(folder: Path, flag: str) -> None:
    """Make a folder, and check that files can be written there. Raises OutputError, which names
    the flag that chose it.
    """
    with output_errors(f"{folder}: cannot be written to", flag):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def output_errors(what: str, flag: str) -> Iterator[None]:
    """Turn an OSError into an OutputError of one line. flag: what chose the place."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{what} ({error_line(error)}); choose another {flag}") from error


def sweep(folder: Path, before: float) -> None:
    """Remove unfinished files that a killed run left in a folder, if they are older than this
    time. Their recordings will be transcribed again.
    """
    with suppress(OSError):  # the folder does not exist yet, or permission is denied
        for path in folder.glob("*".join(PART)):
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)
