"""The uploads to the page, and their limits.

They replace Gradio's route, which has no limit on the total size and leaves the parts of aborted
uploads on disk. Gradio's functions still read the form, and report the progress to the page.
"""

import asyncio
import os
import secrets
import time
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.formparsers import MultiPartException
from starlette.types import Message

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page.gradio_internals import progress_of_uploads, read_upload
from slimwhisper.app.page.tempdir import Store, TempFiles

PROGRESS_SECONDS = 10.0  # after an upload, during which its page may request the progress


class Uploads(Store[TempFiles]):
    """All uploads, each in a folder."""

    def begin(self) -> TempFiles:
        """A new upload, in a new folder. Raises OSError."""
        upload = TempFiles(self.folder / secrets.token_hex(16))
        upload.path.mkdir(mode=0o700)
        self.entries[upload.path.name] = upload
        return upload

    def grow(self, upload: TempFiles, size: int) -> None:
        """Make room for `size` more bytes. Raises APIError if there is none."""
        upload.size += size
        self.remove_old()
        if self.size > self.room():
            message = "the server has no room for this file; try again later, or send a smaller one"
            raise APIError(507, message, "disk_full", headers={"Retry-After": "60"})

    def end(self, upload: TempFiles, files: int) -> None:
        """Complete an upload. files: their number; an upload without files counts as one."""
        upload.files = max(1, files)
        upload.since = time.monotonic()
        self.remove_old()

    def has(self, path: str) -> bool:
        """Whether a path is that of an uploaded file, which may have been removed since."""
        return Path(os.path.normpath(path)).is_relative_to(self.folder) and "\0" not in path


def make_uploads_router(uploads: Uploads, max_bytes: int) -> APIRouter:
    """POST /gradio_api/upload: a form's `files` -> their paths. max_bytes: of a file."""
    router = APIRouter(prefix="/gradio_api")

    @router.post("/upload")
    async def upload(request: Request, upload_id: str | None = None) -> Response:
        stored = uploads.begin()

        async def receive_counted() -> Message:
            message = await request.receive()
            uploads.grow(stored, len(message.get("body", b"")))
            return message

        progress = progress_of_uploads if upload_id else None
        form = Request(request.scope, receive_counted)
        try:
            paths, _, _ = await read_upload(
                form, stored.path, max_bytes, upload_id, upload_progress=progress
            )
        except MultiPartException as error:
            uploads.drop(stored)
            too_large = "maximum allowed size" in error.message
            return PlainTextResponse(error.message, 413 if too_large else 400)
        except BaseException:  # the client disconnected, there is no room, or the server stops
            uploads.drop(stored)
            raise
        finally:
            if upload_id:
                loop = asyncio.get_running_loop()
                loop.call_later(PROGRESS_SECONDS, progress_of_uploads.stop_tracking, upload_id)
        uploads.end(stored, len(paths))
        return JSONResponse(paths)

    return router
