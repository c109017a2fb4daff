"""The files that are sent to the page: how many bytes of them are kept, and for how long.

They replace Gradio's own route, which has no limit for all files together and leaves the parts of
uploads that end early. Gradio's functions still read the form, and tell the page how far it is.
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
from slimwhisper.app.page.tempdir import Kept, Store

TOLD = 10.0  # seconds after an upload for which its page may ask how far it is


class Uploads(Store[Kept]):
    """All uploads: a folder for the files of each."""

    def begin(self) -> Kept:
        """A new upload, in a folder of its own. Raises OSError."""
        upload = Kept(self.folder / secrets.token_hex(16))
        upload.path.mkdir(mode=0o700)
        self.kept[upload.path.name] = upload
        return upload

    def grow(self, upload: Kept, size: int) -> None:
        """Make room for `size` bytes more. Raises APIError if there is none."""
        upload.size += size
        self.forget()
        if self.size > self.room():
            message = "the server has no room for this file; try again later, or send a smaller one"
            raise APIError(507, message, "disk_full", headers={"Retry-After": "60"})

    def end(self, upload: Kept, files: int) -> None:
        """All files of an upload have arrived, so many; an empty one counts as one."""
        upload.files = max(1, files)
        upload.since = time.monotonic()
        self.forget()

    def has(self, path: str) -> bool:
        """Whether a path is that of a file here, or of one that was removed since."""
        inside = Path(os.path.normpath(path)).is_relative_to(self.folder)
        return inside and "\0" not in path


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

        progress = progress_of_uploads if upload_id else None
        form = Request(request.scope, counted)
        try:
            paths, _, _ = await read_upload(
                form, kept.path, max_bytes, upload_id, upload_progress=progress
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
                loop.call_later(TOLD, progress_of_uploads.stop_tracking, upload_id)
        uploads.end(kept, len(paths))
        return JSONResponse(paths)

    return router
