"""What the page's users asked for: recordings to play, transcripts to take home, for some hours.

Each is found by a token that nobody can guess, and that only its owner's page was told.
"""

import io
import mimetypes
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.types import Transcript
from slimwhisper.writers import FORMATS, write_transcript

KEEP = 6 * 3600.0  # seconds
MOST = 1000  # recordings
GONE = "this is not kept any more; transcribe the recording again"


@dataclass(eq=False)
class Result:
    """A recording, and its transcript once there is one."""

    token: str
    name: str  # its owner's name for the file
    path: Path
    size: int  # bytes
    made: float = field(default_factory=time.monotonic)
    transcript: Transcript | None = None

    def written(self, format: str) -> bytes:
        """The transcript in one of `FORMATS`."""
        assert self.transcript is not None
        text = io.StringIO()
        write_transcript(self.transcript, format, text)
        return text.getvalue().encode()


class Results:
    """Recordings by token, bounded in age, number and bytes: the oldest go first."""

    def __init__(self, folder: Path, most_bytes: int, keep: float = KEEP, most: int = MOST) -> None:
        """folder: for the recordings, made here. most_bytes: of all of them together."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder, self._most_bytes, self._keep, self._most = folder, most_bytes, keep, most
        self._by_token: dict[str, Result] = {}  # the oldest first
        self._groups: dict[str, list[str]] = {}

    def add(self, source: Path, name: str) -> Result:
        """Keep a recording of our own, whatever becomes of `source`. Raises OSError."""
        token = secrets.token_urlsafe(24)
        path = self._folder / token
        try:
            os.link(source, path)
        except OSError:  # another file system
            shutil.copyfile(source, path)
        self._by_token[token] = result = Result(token, name, path, path.stat().st_size)
        self.forget()
        return result

    def group(self, results: Sequence[Result]) -> str:
        """A token for several, in one file."""
        token = secrets.token_urlsafe(24)
        self._groups[token] = [result.token for result in results]
        return token

    def drop(self, result: Result) -> None:
        """Give one up now."""
        self._by_token.pop(result.token, None)
        with suppress(OSError):
            result.path.unlink()

    def find(self, token: str) -> Result | None:
        """A recording; None where there is none, or no more."""
        self.forget()
        return self._by_token.get(token)

    def find_group(self, token: str) -> list[Result]:
        """Those of a group that have a transcript."""
        found = [self.find(each) for each in self._groups.get(token, ())]
        return [r for r in found if r is not None and r.transcript is not None]

    def forget(self) -> None:
        """Give up what is too old; then the oldest, while there are too many or too large ones."""
        since = time.monotonic() - self._keep
        size = sum(result.size for result in self._by_token.values())
        for result in list(self._by_token.values()):
            many = len(self._by_token) > self._most or size > self._most_bytes
            if result.made > since and (not many or len(self._by_token) == 1):
                break
            size -= result.size
            self.drop(result)
        kept = self._by_token.keys()
        self._groups = {t: g for t, g in self._groups.items() if not kept.isdisjoint(g)}


def zipped(results: Sequence[Result]) -> bytes:
    """A zip file of every format of each; files of the same name are numbered."""
    file, used = io.BytesIO(), set[str]()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for result in results:
            stem, number = Path(result.name).stem, 2
            name = stem
            while name.lower() in used:
                name, number = f"{stem} ({number})", number + 1
            used.add(name.lower())
            for format in FORMATS:
                archive.writestr(f"{name}.{format}", result.written(format))
    return file.getvalue()


def make_results_router(results: Results) -> APIRouter:
    """/page/audio/TOKEN, /page/result/TOKEN.FORMAT, /page/results/TOKEN.zip."""
    router = APIRouter(prefix="/page")

    @router.get("/audio/{token}")
    async def audio(token: str) -> Response:
        result = results.find(token)
        if result is None:
            raise HTTPException(404, GONE)
        kind = mimetypes.guess_type(result.name)[0] or ""
        if not kind.startswith(("audio/", "video/")):
            kind = "application/octet-stream"  # nothing that a browser would run
        return FileResponse(result.path, media_type=kind, headers=SAFE)

    @router.get("/result/{token}.{format}")
    async def transcript(token: str, format: str) -> Response:
        result = results.find(token)
        if result is None or result.transcript is None or format not in FORMATS:
            raise HTTPException(404, GONE)
        content = await run_in_threadpool(result.written, format)
        return _download(content, f"{Path(result.name).stem}.{format}", FORMATS[format].media_type)

    @router.get("/results/{token}.zip")
    async def transcripts(token: str) -> Response:
        found = results.find_group(token)
        if not found:
            raise HTTPException(404, GONE)
        content = await run_in_threadpool(zipped, found)
        return _download(content, "transcripts.zip", "application/zip")

    return router


SAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private"}


def _download(content: bytes, name: str, kind: str) -> Response:
    headers = {**SAFE, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    return Response(content, media_type=kind, headers=headers)
