"""A folder for outputs, here or in a store. What is put there is whole, or not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from slimwhisper.atomic import atomic_write
from slimwhisper.errors import OutputError, SlimWhisperError
from slimwhisper.storage.uris import is_uri, open_filesystem, protocol_of, reason, shown_uri

PROBE = "slimwhisper-journal/.probe"  # an empty file: not every key may delete


class OutputStore:
    """A folder by its URI or path; names in it are relative, with `/` between parts.

    In a store, an object appears when all of its bytes have arrived. In a folder of this machine, a
    file is written under another name, and renamed. Any thread may call.

    Raises OutputError everywhere; the constructor, OptionError and DependencyError.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.is_local = not is_uri(place) or protocol_of(place) in ("file", "local")
        self._filesystem, root = open_filesystem(place)
        self.folder = root.rstrip("/")  # in its file system

    def __str__(self) -> str:
        return shown_uri(self.place)

    def name(self, name: str) -> str:
        """A file's path or URI, without credentials."""
        return f"{str(self).rstrip('/')}/{name}"

    def check(self) -> None:
        """Find out whether the place can be written to. Raises OutputError."""
        self.put(PROBE, b"")

    def put(self, name: str, data: bytes, *, new: bool = False) -> None:
        """Write a file whole.

        `new`: nothing of that name may be there. Where a store can, the write itself depends on
        that (S3: `If-None-Match`; Google: `ifGenerationMatch`; Azure: `overwrite=False`).
        """
        path = self._path(name)
        with self._reported(name):
            if self.is_local:
                _put_here(Path(path), data, new)
                return
            if new:
                try:
                    self._filesystem.pipe_file(path, data, mode="create")
                    return
                except (NotImplementedError, TypeError):  # the store has no such condition
                    if self._filesystem.exists(path):
                        raise FileExistsError("there is another file of this name") from None
            self._filesystem.pipe_file(path, data)

    def get(self, name: str) -> bytes:
        """A file's bytes."""
        with self._reported(name, "read"):
            data: bytes = self._filesystem.cat_file(self._path(name))
            return data

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A file, read where it is."""
        with self._reported(name, "read"), self._filesystem.open(self._path(name), "rb") as file:
            yield file

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        with self._reported(name, "looked up"):
            return bool(self._filesystem.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """The names of the files in one folder, sorted; none if there is no such folder."""
        with self._reported(folder, "listed"):
            try:
                found = self._filesystem.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
            names = (info["name"].rpartition("/")[2] for info in found if info["type"] == "file")
            return sorted(f"{folder}/{name}" for name in names if name)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @contextmanager
    def _reported(self, name: str, what: str = "written") -> Iterator[None]:
        try:
            yield
        except SlimWhisperError:
            raise
        except Exception as error:  # each library has its own
            raise OutputError(
                f"{self.name(name)}: cannot be {what} ({reason(error)}); check the address and "
                "credentials, or choose another --output_dir"
            ) from None


def _put_here(path: Path, data: bytes, new: bool) -> None:
    if new and path.exists():
        raise FileExistsError("there is another file of this name")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)
