"""The page's results: recordings to play and transcripts to download, stored for some hours.

Each has a random token as its address, known only to the page that made the request.
"""

import io
import mimetypes
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.page.tempdir import Store, TempFiles
from slimwhisper.app.page.transcripts.edits import Edits
from slimwhisper.outputs import SENTENCES, OutputFormat, formats_for

GONE = "no longer available; transcribe the recording again"
PRIVATE = {"Cache-Control": "private"}


@dataclass(eq=False)
class PageResult(TempFiles):
    """A recording, and its transcript once there is one."""

    name: str = ""  # the user's name for the file
    group: str = ""  # the token of all recordings of one run
    edits: Edits | None = None  # once there is a transcript
    sentences: bool = False  # its segments are sentences, as in `Options`

    @property
    def token(self) -> str:
        """Its secret address."""
        return self.path.name

    def formats(self) -> list[OutputFormat]:
        """The formats that can be downloaded."""
        return [] if self.edits is None else formats_for(self.edits.transcript)

    def render(self, format: OutputFormat) -> bytes:
        """The corrected transcript, as a file in one of the formats."""
        assert self.edits is not None
        return format.render(self.edits.file_transcript, {SENTENCES: self.sentences})


class PageResults(Store[PageResult]):
    """Recordings by token."""

    def add(self, source: Path, name: str, group: str) -> PageResult:
        """Store a recording, which survives the removal of `source`. Raises OSError."""
        path = self.folder / secrets.token_urlsafe(24)
        try:
            os.link(source, path)
        except OSError:  # on a different file system
            shutil.copyfile(source, path)
        result = PageResult(path, path.stat().st_size, 1, time.monotonic(), name, group)
        self.entries[result.token] = result
        self.remove_old()
        return result

    def find(self, token: str) -> PageResult:
        """The result with this token. Raises HTTPException if it is not stored any more."""
        self.remove_old()
        if token not in self.entries:
            raise HTTPException(404, GONE)
        return self.entries[token]

    def find_group(self, token: str) -> list[PageResult]:
        """The results of a group that have a transcript."""
        self.remove_old()
        return [r for r in self.entries.values() if r.group == token and r.edits is not None]


def zipped(results: Iterable[PageResult]) -> bytes:
    """A zip file with every result in every format. Equal names are numbered."""
    file, used = io.BytesIO(), set[str]()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for result in results:
            stem, number = Path(result.name).stem, 2
            name = stem
            while name.lower() in used:
                name, number = f"{stem} ({number})", number + 1
            used.add(name.lower())
            for format in result.formats():
                archive.writestr(f"{name}.{format.name}", result.render(format))
    return file.getvalue()


def make_results_router(results: PageResults) -> APIRouter:
    """/page/audio/TOKEN, /page/result/TOKEN.FORMAT, /page/results/TOKEN.zip."""
    router = APIRouter(prefix="/page")

    @router.get("/audio/{token}")
    async def audio(token: str) -> Response:
        result = results.find(token)
        media_type = mimetypes.guess_type(result.name)[0] or ""
        if not media_type.startswith(("audio/", "video/")):
            media_type = "application/octet-stream"  # which a browser does not run
        return FileResponse(result.path, media_type=media_type, headers=PRIVATE)

    @router.get("/result/{file}")
    async def transcript(file: str) -> Response:
        token, _, suffix = file.partition(".")
        result = results.find(token)
        formats = {format.name: format for format in result.formats()}
        format = formats.get(suffix)
        if format is None:
            raise HTTPException(404, f"unknown format; choose: {', '.join(formats)}")
        content = await run_in_threadpool(result.render, format)
        return download(content, f"{Path(result.name).stem}.{format.name}", format.media_type)

    @router.get("/results/{token}.zip")
    async def transcripts(token: str) -> Response:
        results_in_group = results.find_group(token)
        if not results_in_group:
            raise HTTPException(404, GONE)
        content = await run_in_threadpool(zipped, results_in_group)
        return download(content, "transcripts.zip", "application/zip")

    return router


def download(content: bytes, name: str, media_type: str) -> Response:
    """A file that the browser saves instead of showing it."""
    headers = {**PRIVATE, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    return Response(content, media_type=media_type, headers=headers)
