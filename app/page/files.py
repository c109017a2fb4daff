"""The page's files, in a folder that is private to this process and removed when it ends: uploads,
and results, which are recordings to play and transcripts to download; and segments and the outlines
of waveforms, as the browser gets them.

Their age, number and total size are limited. Each result has a random token as its address, known
only to the page that made the request.
"""

import base64
import io
import json
import mimetypes
import os
import secrets
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.page.edits import Edits
from slimwhisper.audio.samples import Samples
from slimwhisper.disk import open_locked
from slimwhisper.outputs import SENTENCES, OutputFormat, formats_for, has_speakers
from slimwhisper.types import Segment

PREFIX = "slimwhisper-page-"
KEEP = 6 * 3600.0  # seconds
MAX_COUNT = 1000  # files
LOCK = "lock"  # the file that its process has locked
FILES = "files"  # the subfolder for Gradio's uploads; its protocol shows clients their paths

QUIET = {  # no telemetry, and no table of all events rebuilt after each one
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "100",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}


@contextmanager
def page_folder() -> Iterator[Path]:
    """A new folder that only this user can read, for Gradio's files too; removed at the end.

    Gradio reads the folder and the settings in QUIET from environment variables, whenever it needs
    them. Folders of killed processes are removed first.
    """
    folder, lock = _locked_folder()
    _sweep(folder)
    variables = {"GRADIO_TEMP_DIR": str(folder / FILES), **QUIET}
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield folder
    finally:
        for name in variables:
            os.environ.pop(name)
        os.environ.update(before)
        os.close(lock)  # Windows removes no open files
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder() -> tuple[Path, int]:
    """A new folder, and the descriptor of its lock, which is held until the process ends."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError, BlockingIOError):  # another process has swept it already
            return folder, open_locked(folder / LOCK)


def _sweep(own_folder: Path) -> None:
    """Remove the folders beside `own_folder` whose process has ended."""
    for folder in own_folder.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, or just removed
            status = folder.lstat()
            # no other user can put a link in the place of this user's folder
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == own_folder.stat().st_uid
            if mine and (folder / LOCK).exists():  # else it is just being made
                os.close(open_locked(folder / LOCK, required=True))
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False)
class TempFiles:
    """Files that are stored and removed together."""

    path: Path  # of the file, or of a folder of files
    size: int = 0  # bytes that have arrived
    files: int = 0  # their number, once all have arrived
    since: float | None = None  # when all had arrived, in seconds; None: they are still arriving


T = TypeVar("T", bound=TempFiles)


class Store(Generic[T]):
    """The entries in a folder; the oldest is removed first."""

    def __init__(
        self, folder: Path, max_bytes: int, keep: float = KEEP, max_count: int = MAX_COUNT
    ) -> None:
        """folder: for the files; it is created. max_bytes: of all entries. keep: seconds."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self._max_bytes, self._keep, self._max_count = max_bytes, keep, max_count
        self.entries: dict[str, T] = {}  # by the names in the folder; the oldest first

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size for entry in self.entries.values())

    def room(self) -> int:
        """The limit of `size`, in bytes: never more than half of the space that the disk has."""
        return min(self._max_bytes, (shutil.disk_usage(self.folder).free + self.size) // 2)

    def drop(self, entry: T) -> None:
        """Remove an entry now, even if its files are still arriving."""
        self.entries.pop(entry.path.name, None)
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.path.unlink()

    def remove_old(self) -> None:
        """Remove old entries, then the oldest while the limits are exceeded.

        Entries that are still arriving stay, and so does the only entry within its time.
        """
        with suppress(OSError):  # somebody has removed it
            os.utime(self.folder)  # services that clean /tmp remove what is old
        oldest = time.monotonic() - self._keep
        for entry in list(self.entries.values()):
            if entry.since is None:
                continue
            files = sum(other.files for other in self.entries.values())
            many = files > max(self._max_count, entry.files)
            over = len(self.entries) > 1 and (many or self.size > self.room())
            if entry.since > oldest and not over:
                break
            self.drop(entry)


# -- results -------------------------------------------------------------------------------------

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

    def formats(self) -> dict[str, OutputFormat]:
        """The formats that can be downloaded, by name."""
        return {} if self.edits is None else formats_for(has_speakers(self.edits.transcript))

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
            for suffix, format in result.formats().items():
                archive.writestr(f"{name}.{suffix}", result.render(format))
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
        formats = result.formats()
        if suffix not in formats:
            raise HTTPException(404, f"unknown format; choose: {', '.join(formats)}")
        content = await run_in_threadpool(result.render, formats[suffix])
        return download(content, f"{Path(result.name).stem}.{suffix}", formats[suffix].media_type)

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


COLUMNS = 1000


def segment_view(segment: Segment) -> list[Any]:
    """[start, end, text, words, speaker, flags]; times in seconds.

    words: the JSON text of a list of [start, end, word, probability], or None; as text, because
    Gradio copies nested values one by one, which takes seconds for the words of three hours.
    speaker: None if unknown. flags: names, whose reasons are in the run's view.
    """
    words = None
    if segment.words is not None:
        fields = [[w.start, w.end, w.word, round(w.probability, 3)] for w in segment.words]
        words = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    text = segment.text.strip()
    return [segment.start, segment.end, text, words, segment.speaker, list(segment.flags)]


def outline(samples: Samples, columns: int = COLUMNS) -> str:
    """The lowest and the highest sample in each of `columns` stretches of equal length.

    samples: float32 [n] in [-1, 1] at 16 kHz. Returns int8 [columns, 2] in base64: -127 to 127
    for -1 to 1. With fewer than `columns` samples, the stretches without any are 0.
    """
    extremes = np.zeros((columns, 2), np.float32)  # lowest (at most 0), highest (at least 0)
    edges = np.linspace(0, len(samples), columns + 1).round().astype(np.int64)
    for column, (start, stop) in enumerate(pairwise(edges.tolist())):
        if start < stop:
            piece: NDArray[np.float32] = samples.read(start, stop)
            extremes[column] = min(piece.min(), 0), max(piece.max(), 0)
    packed = (extremes * 127).round().clip(-127, 127).astype(np.int8)
    return base64.b64encode(packed.tobytes()).decode()
