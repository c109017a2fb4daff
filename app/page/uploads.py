"""The files that are sent to the page: how many bytes of them are kept, and for how long.

They replace Gradio's own route, which has no limit for all files together and leaves the parts of
uploads that end early. Gradio's functions still read the form, and tell the page how far it is.
"""

import asyncio
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from gradio.route_utils import upload_fn
from gradio.routes import file_upload_statuses
from starlette.formparsers import MultiPartException
from starlette.types import Message

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page.results import KEEP, MAX_COUNT, room

TOLD = 10.0  # seconds after an upload for which its page may ask how far it is


@dataclass(eq=False)
class Upload:
    """The files of a request."""

    folder: Path
    size: int = 0  # bytes that have arrived
    files: int = 0  # once all have arrived
    ended: float | None = None  # when that was, in seconds; None: they still arrive


class Uploads:
    """All uploads. Their age, number and total size are limited; the oldest go first."""

    def __init__(self, folder: Path, max_bytes: int, keep: float = KEEP) -> None:
        """folder: for the files; it is created. max_bytes: of all together. keep: seconds."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder, self._max_bytes, self._keep = folder, max_bytes, keep
        self._kept: list[Upload] = []  # the oldest first

    def begin(self) -> Upload:
        """A new upload, in a folder of its own. Raises OSError."""
        folder = self._folder / secrets.token_hex(16)
        folder.mkdir(mode=0o700)
        self._kept.append(upload := Upload(folder))
        return upload

    def grow(self, upload: Upload, size: int) -> None:
        """Make room for `size` bytes more. Raises APIError if there is none."""
        upload.size += size
        self.forget()
        if sum(each.size for each in self._kept) > self._most():
            message = "the server has no room for this file; try again later, or send a smaller one"
            raise APIError(507, message, "disk_full", headers={"Retry-After": "60"})

    def end(self, upload: Upload) -> None:
        """All files of an upload have arrived."""
        upload.files = max(1, sum(path.is_file() for path in upload.folder.rglob("*")))
        upload.ended = time.monotonic()
        self.forget()

    def drop(self, upload: Upload) -> None:
        """Remove an upload now, with what has arrived of it."""
        if upload in self._kept:
            self._kept.remove(upload)
        shutil.rmtree(upload.folder, ignore_errors=True)

    def forget(self) -> None:
        """Remove uploads that are too old, then the oldest while the limits are exceeded."""
        since = time.monotonic() - self._keep
        size = sum(upload.size for upload in self._kept)
        files = sum(upload.files for upload in self._kept)
        for upload in [each for each in self._kept if each.ended is not None]:
            assert upload.ended is not None
            over = size > self._most() or files > max(MAX_COUNT, upload.files)
            if upload.ended > since and not over:
                break
            size, files = size - upload.size, files - upload.files
            self.drop(upload)

    def has(self, path: str) -> bool:
        """Whether a path is that of a file here, or of one that was removed since."""
        inside = Path(os.path.normpath(path)).is_relative_to(self._folder)
        return inside and "\0" not in path

    def _most(self) -> int:
        return min(self._max_bytes, room(self._folder, sum(each.size for each in self._kept)))


def make_uploads_router(uploads: Uploads, max_bytes: int) -> APIRouter:
    """POST /gradio_api/upload: a form's `files` -> their paths. max_bytes: of a file."""
    router = APIRouter(prefix="/gradio_api")

    @router.post("/upload")
    async def upload(request: Request, upload_id: str | None = None) -> Response:
        kept = uploads.begin()

        async def counted() -> Message:
            message = await request.receive()
            uploads.grow(kept, len(message.get("body", b"")))
            return message

        progress = file_upload_statuses if upload_id else None
        form = Request(request.scope, counted)
        try:
            paths, _, _ = await upload_fn(
                form, kept.folder, max_bytes, upload_id, upload_progress=progress
            )
        except MultiPartException as error:
            uploads.drop(kept)
            too_large = "maximum allowed size" in error.message
            return PlainTextResponse(error.message, 413 if too_large else 400)
        except BaseException:  # the client has left, there is no room, or the server stops
            uploads.drop(kept)
            raise
        finally:
            if upload_id:
                loop = asyncio.get_running_loop()
                loop.call_later(TOLD, file_upload_statuses.stop_tracking, upload_id)
        uploads.end(kept)
        return JSONResponse(paths)

    return router
