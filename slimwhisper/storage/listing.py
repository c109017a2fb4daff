"""The files below a place, as they are listed: no list of all of them is ever made.

A tree in S3 is listed page by page. Elsewhere fsspec lists a folder at a time, so memory grows with
the largest folder.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimwhisper.errors import SlimWhisperError, StorageError
from slimwhisper.storage.files import StoredFile
from slimwhisper.storage.stamps import Stamp
from slimwhisper.storage.uris import hide, is_uri, open_filesystem, protocol_of, reason, shown_uri

MAGIC = re.compile(r"[*?\[]")
LOCAL = ("", "file")  # protocols of files of this machine
# what fsspec's libraries call an object's etag (S3, HTTP; Google, Azure; Google; Hugging Face), and
# where there is none the time of its last change
ETAGS = ("ETag", "etag", "md5Hash", "blob_id")
TIMES = ("mtime", "last_modified", "created")


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a file system: its path there, and what the listing says of it."""

    path: str
    size: int | None
    mtime_ns: int | None
    etag: str | None

    @staticmethod
    def of(info: dict[str, Any]) -> "Found":
        """From fsspec's description of a file; stores call the same things differently."""
        etag = next((info[key] for key in ETAGS if info.get(key)), None)
        mtime = next((info[key] for key in TIMES if info.get(key) is not None), None)
        if etag is not None or mtime is None:
            return Found(info["name"], info.get("size"), None, etag and str(etag).strip('"'))
        seconds = mtime if isinstance(mtime, int | float) else mtime.timestamp()
        return Found(info["name"], info.get("size"), int(seconds * 1e9), None)


class Place:
    """A file system, and a path in it: of a file, a folder or a pattern.

    Any thread may list.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.protocol = protocol_of(uri) if is_uri(uri) else ""
        self.filesystem, self.path = open_filesystem(uri)

    def uri_of(self, path: str) -> str:
        """The name of a path in the same file system: its URI without credentials, or the absolute
        path of a local file.
        """
        if self.protocol in LOCAL:
            return str(Path(path).absolute())
        return hide(self.address_of(path))

    def address_of(self, path: str) -> str:
        """The URI of a path in the same file system, with this place's credentials; of a local
        file, its path.
        """
        if self.protocol in LOCAL:
            return path
        known = self.path.lstrip("/")
        place = self.uri.rfind(known) if known else -1
        start = self.uri[:place] if place > 0 else f"{self.protocol}://"
        return start + path.lstrip("/")

    def file(self, found: Found) -> StoredFile:
        """A recording that is one file here."""
        stamp = Stamp(self.uri_of(found.path), found.size, found.mtime_ns, found.etag)
        return StoredFile(self.uri, found.path, stamp)

    def info(self, path: str) -> Found | None:
        """What is known of one file; None: there is none. Raises StorageError."""
        if self.protocol in LOCAL:
            return local_info(path)
        with answers(self.uri):
            try:
                info = self.filesystem.info(path)
            except FileNotFoundError:
                return None
        return Found.of(info) if info["type"] == "file" else None

    def files(self, wanted: Callable[[str], bool]) -> Iterator[Found]:
        """The files of the place. Raises StorageError.

        The place is a file, a folder with all below it whose paths are wanted, or a pattern in
        which `**` stands for any folders.
        """
        if MAGIC.search(self.path):
            from fsspec.utils import glob_translate

            matches = re.compile(glob_translate(self.path)).match
            parts = self.path.split("/")
            fixed = next(n for n, part in enumerate(parts) if MAGIC.search(part))
            depth = None if "**" in parts else len(parts) - fixed - 1
            for found in self._below("/".join(parts[:fixed]), depth):
                if matches(found.path):
                    yield found
            return
        if wanted(self.path) and (file := self.info(self.path)) is not None:
            yield file
            return
        nothing = True
        for found in self._below(self.path, None):
            nothing = False
            if wanted(found.path):
                yield found
        if nothing and (file := self.info(self.path)) is not None:
            yield file

    def _below(self, top: str, depth: int | None) -> Iterator[Found]:
        """All files below a folder, at most `depth` folders down."""
        with answers(self.uri):
            if depth is None and self.protocol in ("s3", "s3a"):
                yield from self._pages(top)
                return
            pending = [(top, 0)]
            while pending:
                folder, level = pending.pop()
                folders = []
                for info in self._entries(folder):
                    if info["type"] == "directory" and (depth is None or level < depth):
                        folders.append((info["name"].rstrip("/"), level + 1))
                    if info["type"] != "file":
                        continue
                    if self.protocol not in LOCAL:
                        yield Found.of(info)
                    elif (found := local_info(info["name"])) is not None:
                        yield found
                pending += reversed(folders)

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        """What is in a folder, sorted, as fsspec describes it. Links to folders are not followed,
        and those to files are files, other than in fsspec's own list.
        """
        try:
            if self.protocol in LOCAL:
                with os.scandir(folder) as entries:
                    found = [{"name": entry.path, "type": _kind(entry)} for entry in entries]
            else:
                found = self.filesystem.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # a file is listed as its own content, and S3's consoles mark folders so
        found = [info for info in found if info["name"].rstrip("/") != folder]
        return sorted(found, key=lambda info: info["name"])

    def _pages(self, folder: str) -> Iterator[Found]:
        """All files below a folder of S3, page by page (ListObjectsV2: 1,000 names)."""
        bucket, _, key = folder.partition("/")
        request = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/" if key else ""}
        while True:
            page = self.filesystem.call_s3("list_objects_v2", **request)
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):  # S3's consoles mark folders so
                    yield Found.of(item | {"name": f"{bucket}/{item['Key']}", "size": item["Size"]})
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]


def _kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file() else "other"


def local_info(path: str) -> Found | None:
    """What is known of a file of this machine; None: there is none."""
    stamp = Stamp.of(Path(path))
    return None if stamp.size is None else Found(path, stamp.size, stamp.mtime_ns, None)


@contextmanager
def answers(uri: str) -> Iterator[None]:
    """A context in which errors of a library become StorageErrors about a place."""
    try:
        yield
    except SlimWhisperError:
        raise
    except Exception as error:  # each library has its own
        raise StorageError(
            f"{shown_uri(uri)}: cannot be listed ({reason(error)}); check address and credentials"
        ) from None
