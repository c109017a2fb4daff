"""The route by which the page corrects a transcript: /page/edit/TOKEN.

The result's token, which nobody else knows, is what permits it. As for all of the page, a body is
limited; and a browser sends one from this page only: it needs JSON, which other sites may send only
after a question that this route does not answer.
"""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page.edits import Changed, ConflictError, Edits
from slimwhisper.app.page.results import GONE, SAFE, Results
from slimwhisper.app.page.view import segment_view

MAX_BODY = 8 << 20  # bytes: all texts of a day of speech
MAX_TEXT = 5000  # characters of a segment: ten times what is said in 30 s
MAX_NAME = 100  # characters
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # line breaks among them
ORIGINS = (None, "same-origin", "none")  # of Sec-Fetch-Site

Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class Change(BaseModel):
    """The body: one of these."""

    model_config = ConfigDict(extra="forbid", strict=True)

    texts: list[tuple[Index, str, Text]] | None = None  # (segment, its text, the new text)
    speaker: tuple[Name, Name] | None = None  # (name, the new name)
    approve: Index | None = None  # a segment whose flags are removed
    undo: int | None = None  # the revision that is undone
    redo: int | None = None  # likewise

    def make(self, edits: Edits) -> Changed:
        """Change a transcript. Raises ConflictError, IndexError, and ValueError for none or two."""
        if len(self.model_fields_set) != 1:
            raise ValueError
        match self:
            case Change(texts=[*texts]):
                return edits.correct({i: (was, _clean(text)) for i, was, text in texts})
            case Change(speaker=(speaker, name)) if _clean(name):
                return edits.rename(speaker, _clean(name))
            case Change(approve=int(index)):
                return edits.approve(index)
            case Change(undo=int(revision)):
                return edits.undo(revision)
            case Change(redo=int(revision)):
                return edits.redo(revision)
        raise ValueError


def make_edit_router(results: Results) -> APIRouter:
    """POST /page/edit/TOKEN with a `Change` -> {"revision", "text", "segments": {index: view}}.

    409 with the same fields: somebody else changed these segments.
    """
    router = APIRouter(prefix="/page")

    @router.post("/edit/{token}")
    async def edit(token: str, request: Request) -> Response:
        _check_origin(request)
        change = _read(await _body(request))
        result = results.find(token)
        if result is None or result.edits is None:
            raise HTTPException(404, GONE)
        edits = result.edits
        try:
            changed = await run_in_threadpool(change.make, edits)
        except ConflictError as error:
            return _answer(edits, error.changed, APIError(409, str(error)))
        except IndexError:
            raise HTTPException(400, "there is no such segment") from None
        except ValueError:
            raise HTTPException(400, "send one change") from None
        return _answer(edits, changed)

    @router.options("/edit/{token}")  # Gradio would allow every site to post
    async def preflight(token: str) -> Response:
        raise HTTPException(405, "only this server's page may post here")

    return router


def _answer(edits: Edits, changed: Changed, error: APIError | None = None) -> Response:
    content: dict[str, Any] = {
        "revision": edits.revision,
        "text": edits.transcript.text.strip(),
        "segments": {i: segment_view(segment) for i, segment in changed.items()},
    }
    if error is not None:
        content |= error.body()
    return JSONResponse(content, 200 if error is None else error.status, headers=SAFE)


def _check_origin(request: Request) -> None:
    if request.headers.get("sec-fetch-site") not in ORIGINS:
        raise HTTPException(403, "only this server's page may post here")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send application/json")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"a change may have {MAX_BODY >> 20} MB at most")
    return bytes(body)


def _read(body: bytes) -> Change:
    try:
        return Change.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise HTTPException(400, f"{place}: {first['msg']}") from None


def _clean(text: str) -> str:
    """One line, without the arrow of subtitles' times, which `whisper` writes shorter too."""
    return CONTROL.sub(" ", text).replace("-->", "->").strip()
