"""The files below a place, as they are listed: no list of all of them is ever made.

S3 is listed page by page (1,000 names). Elsewhere fsspec lists a folder at a time, so memory grows
with the largest folder.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
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
PAGE = 1000  # names in one answer of S3, at most (ListObjectsV2, MaxKeys)


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
        etag = next((info[k] for k in ("ETag", "etag", "e_tag", "md5Hash") if info.get(k)), None)
        if etag is None and info.get("blob_id"):  # Hugging Face
            etag = info["blob_id"]
        mtime = info.get("mtime_ns")
        if etag is None and mtime is None:
            given = info.get("mtime", info.get("last_modified", info.get("created")))
            if given is not None:
                seconds = given if isinstance(given, int | float) else given.timestamp()
                mtime = int(seconds * 1e9)
        return Found(info["name"], info.get("size"), mtime, etag and str(etag).strip('"'))


class Place:
    """A file system, and a path in it: of a file, a folder or a pattern.

    Any thread or process may list; a place can be pickled.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.protocol = protocol_of(uri) if is_uri(uri) else ""
        self.filesystem, self.path = open_filesystem(uri)

    def __reduce__(self) -> Any:
        return Place, (self.uri,)

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

    def folders(self) -> Iterator[str]:
        """The paths of the folders that lie in this one. Raises StorageError."""
        with answers(self.uri):
            for info in self._entries(self.path, recursive=False):
                if info["type"] == "directory":
                    yield info["name"].rstrip("/")

    def files(self, wanted: Callable[[str], bool], *, deep: bool = True) -> Iterator[Found]:
        """The files of the place. Raises StorageError.

        The place is a file, a folder with all below it whose paths are wanted, or a pattern in
        which `**` stands for any folders. Not `deep`: only what lies in the folder itself.
        """
        if MAGIC.search(self.path):
            from fsspec.utils import glob_translate

            matches = re.compile(glob_translate(self.path)).match
            parts = self.path.split("/")
            fixed = next(n for n, part in enumerate(parts) if MAGIC.search(part))
            depth = None if "**" in parts else len(parts) - fixed - 1
            for found in self._walk("/".join(parts[:fixed]), depth):
                if matches(found.path):
                    yield found
            return
        if wanted(self.path) and (file := self.info(self.path)) is not None:
            yield file
            return
        nothing = True
        for found in self._walk(self.path, None if deep else 0):
            nothing = False
            if wanted(found.path):
                yield found
        if nothing and (file := self.info(self.path)) is not None:
            yield file

    def _walk(self, top: str, depth: int | None) -> Iterator[Found]:
        """All files below a folder, at most `depth` folders down."""
        pending: list[tuple[str, int]] = [(top, 0)]
        while pending:
            folder, level = pending.pop()
            folders = []
            with answers(self.uri):
                for info in self._entries(folder, recursive=depth is None):
                    if info["type"] == "directory":
                        if depth is None or level < depth:
                            folders.append((info["name"].rstrip("/"), level + 1))
                    elif not info["name"].endswith("/"):  # S3's consoles mark folders so
                        yield Found.of(info)
            pending += sorted(folders, reverse=True)

    def _entries(self, folder: str, recursive: bool) -> Iterator[dict[str, Any]]:
        """What is in a folder; of a bucket in S3, all below it, page by page, where asked for."""
        pages = getattr(self.filesystem, "_iterdir", None)
        if self.protocol in ("s3", "s3a") and pages is not None:
            from fsspec.asyn import sync

            bucket, _, key = folder.partition("/")
            prefix = f"{key.rstrip('/')}/" if key else ""
            listed = pages(bucket, delimiter="" if recursive else "/", prefix=prefix)
            while page := sync(self.filesystem.loop, _next_page, listed):
                yield from page
            return
        try:
            if self.protocol in LOCAL:
                yield from _scan(folder)
            else:
                found = self.filesystem.ls(folder, detail=True)
                yield from (info for info in found if info["name"] != folder)  # a file
        except (FileNotFoundError, NotADirectoryError):
            return


async def _next_page(listed: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The next names of an asynchronous listing; after the last one, none."""
    page: list[dict[str, Any]] = []
    async for info in listed:
        page.append(info)
        if len(page) == PAGE:
            break
    return page


def _scan(folder: str) -> Iterator[dict[str, Any]]:
    """A local folder's entries, sorted, as fsspec describes them; follows no links to folders."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield {"name": entry.path, "type": "directory"}
            elif entry.is_file():
                stat = entry.stat()
                yield {
                    "name": entry.path,
                    "type": "file",
                    "size": stat.st_size,
                    "mtime_ns": stat.st_mtime_ns,
                }


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
