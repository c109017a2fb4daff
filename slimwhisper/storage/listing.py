"""Lists the files below a location one by one, without a list of all of them in memory.

A tree in S3 is listed page by page. Elsewhere, fsspec lists a folder at a time, so memory grows
with the largest folder. (fsspec's `find` lists a tree as a whole; its `walk` leaves out the folders
below the first one that cannot be listed.)
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from slimwhisper.addresses import LOCAL, protocol_of, redact
from slimwhisper.audio.headers import HEAD, is_hidden
from slimwhisper.files import Fingerprint
from slimwhisper.storage.stores import BLOCK, StoredFile, open_filesystem, storage_errors

MAGIC = re.compile(r"[*?\[]")
LINES = 1 << 16  # bytes of lines that are read at a time
# names that fsspec's libraries use for an object's etag (S3, HTTP; Google, Azure; Google; Hugging
# Face), and, where there is none, for the time of its last change
ETAGS = ("ETag", "etag", "md5Hash", "blob_id")
TIMES = ("mtime", "last_modified", "created")

Info = dict[str, Any]  # fsspec's description of a file or folder


class Location:
    """A file system, and a path in it: of a file, a folder or a pattern.

    Any thread may list.
    """

    def __init__(self, uri: str) -> None:
        """Raises OptionError, DependencyError."""
        self.uri = uri
        self.is_local = protocol_of(uri) in LOCAL
        self._filesystem, self.path = open_filesystem(uri)
        parts = self.path.split("/")
        fixed = len(parts)
        while MAGIC.search(top := "/".join(parts[:fixed])):
            if self.is_local and os.path.exists(top):  # noqa: PTH110  (False without permission)
                break
            fixed -= 1
        self.top, self.pattern = top, parts[fixed:]  # a folder, and the pattern below it, if any
        self.dots = any(part.startswith(".") for part in self.pattern)  # it names hidden files

    def address_of(self, path: str) -> str:
        """The URI of a path in the same file system, with this location's credentials; of a local
        file, its path.
        """
        if self.is_local:
            return path
        path_part = self.path.lstrip("/")
        position = self.uri.rfind(path_part) if path_part else -1
        start = self.uri[:position] if position > 0 else f"{protocol_of(self.uri)}://"
        return start + path.lstrip("/")

    def info(self, path: str) -> StoredFile | None:
        """The file at a path, with its fingerprint; None: there is none. Raises StorageError."""
        with storage_errors(self.uri):
            try:
                info = self._filesystem.info(path)
            except FileNotFoundError:
                return None
        return self._file(info) if info["type"] == "file" else None

    @contextmanager
    def open(self, path: str) -> Iterator[BufferedReader]:
        """A file's bytes, to be read from the start. Raises StorageError."""
        with storage_errors(self.uri):
            if self.is_local:
                file: Any = Path(path).open("rb")
            else:
                file = BufferedReader(self._filesystem.open(path, "rb", block_size=BLOCK), LINES)
            with file:
                yield cast(BufferedReader, file)

    def head(self, path: str) -> bytes:
        """A file's first bytes. Raises StorageError."""
        with storage_errors(self.uri):
            return cast(bytes, self._filesystem.cat_file(path, start=0, end=HEAD))

    def files(self, named: bool, takes: Callable[[str], bool]) -> Iterator[StoredFile]:
        """The files of the location. Raises StorageError.

        The location is a file, a folder, of which all files below it are listed whose paths `takes`
        allows, or a pattern, in which `**` stands for any folders. named: its path is probably a
        file's.
        """
        nothing, depth, matches = True, None, re.compile("").match
        if self.pattern:
            from fsspec.utils import glob_translate

            top = MAGIC.sub(r"[\g<0>]", self.top)
            matches = re.compile(glob_translate("/".join([top, *self.pattern]))).match
            depth = None if "**" in self.pattern else len(self.pattern) - 1
            nothing = False
        elif named and (file := self.info(self.path)) is not None:
            yield file
            return
        with storage_errors(self.uri):
            for info in self._tree(self.top, depth):
                nothing = False
                if (file := self._file(info)) and matches(file.path) and takes(file.path):
                    yield file
        if nothing and (file := self.info(self.path)) is not None:
            yield file

    def _tree(self, top: str, depth: int | None) -> Iterator[Info]:
        """All files below a folder, at most `depth` folders down; links to folders are not
        followed.
        """
        if depth is None and protocol_of(self.uri) in ("s3", "s3a"):
            yield from self._pages(top)
            return
        pending = [(top, 0)]
        while pending:
            folder, level = pending.pop()
            try:
                entries = self._filesystem.ls(folder, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                continue
            folders = []
            for info in sorted(entries, key=lambda info: str(info["name"])):
                name = info["name"].rstrip("/")
                if name == folder:  # a file that lists itself, or S3's marker of a folder
                    continue
                if info["type"] == "directory" and (depth is None or level < depth):
                    if self.dots or not is_hidden(name.rpartition("/")[2]):
                        folders.append((name, level + 1))
                # for fsspec, a link to a file is neither a file nor a folder
                if info["type"] == "file" or (self.is_local and Path(name).is_file()):
                    yield info
            pending += reversed(folders)

    def _pages(self, folder: str) -> Iterator[Info]:
        """All files below a folder of S3, page by page (ListObjectsV2: 1,000 names)."""
        bucket, _, key = folder.partition("/")
        request = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/" if key else ""}
        while True:
            page = self._filesystem.call_s3("list_objects_v2", **request)
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):  # S3's consoles mark folders like this
                    yield item | {"name": f"{bucket}/{item['Key']}", "size": item["Size"]}
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _file(self, info: Info) -> StoredFile | None:
        """A file that fsspec describes, with keys that depend on the store; None: it no longer
        exists.
        """
        path, mtime = info["name"], None
        if self.is_local:
            fingerprint = Fingerprint.of(Path(path))
            return None if fingerprint.size is None else StoredFile(self.uri, path, fingerprint)
        etag = next((str(info[key]).strip('"') for key in ETAGS if info.get(key)), None)
        changed = next((info[key] for key in TIMES if info.get(key) is not None), None)
        if etag is None and changed is not None:
            seconds = changed if isinstance(changed, int | float) else changed.timestamp()
            mtime = int(seconds * 1e9)
        name = redact(self.address_of(path))
        return StoredFile(self.uri, path, Fingerprint(name, info.get("size"), mtime, etag))
