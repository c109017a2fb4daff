"""The route by which the page corrects a transcript: /page/edit/TOKEN.

Knowing the result's secret token is the permission.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page.request_body import MAX_TEXT, RequestBody, clean, read_posted
from slimwhisper.app.page.transcripts.edits import Changed, ConflictError, Edits
from slimwhisper.app.page.transcripts.results import GONE, PRIVATE, PageResults
from slimwhisper.app.page.transcripts.views import segment_view

MAX_NAME = 100  # characters

Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
# (segment, its text, the new text)
Corrections = Annotated[list[tuple[Index, str, Text]], Field(fail_fast=True)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class EditRequest(RequestBody, strict=True):
    """The body: one of these."""

    texts: Corrections | None = None
    speaker: tuple[Name, Name] | None = None  # (name, the new name)
    approve: Index | None = None  # a segment whose flags are removed
    undo: int | None = None  # the revision that is undone
    redo: int | None = None  # likewise

    def make(self, edits: Edits) -> Changed:
        """Change a transcript. Raises ConflictError, IndexError, and ValueError unless the body has
        exactly one change.
        """
        if len(self.model_fields_set) != 1:
            raise ValueError
        match self:
            case EditRequest(texts=[*texts]):
                return edits.correct({i: (was, clean(text)) for i, was, text in texts})
            case EditRequest(speaker=(speaker, name)) if clean(name):
                return edits.rename(speaker, clean(name))
            case EditRequest(approve=int(index)):
                return edits.approve(index)
            case EditRequest(undo=int(revision)):
                return edits.undo(revision)
            case EditRequest(redo=int(revision)):
                return edits.redo(revision)
        raise ValueError


def make_edit_router(results: PageResults) -> APIRouter:
    """POST /page/edit/TOKEN with an `EditRequest` ->
    {"revision", "text", "segments": {index: view}}.

    409 with the same fields: another user changed these segments.
    """
    router = APIRouter(prefix="/page")

    @router.post("/edit/{token}")
    async def edit(token: str, request: Request) -> Response:
        change = await read_posted(request, EditRequest)
        edits = results.find(token).edits
        if edits is None:
            raise HTTPException(404, GONE)
        try:
            changed = await run_in_threadpool(change.make, edits)
        except ConflictError as error:
            return _answer(edits, error.changed, APIError(409, str(error)))
        except IndexError:
            raise HTTPException(400, "the segment does not exist; reload the page") from None
        except ValueError:
            raise HTTPException(400, "send exactly one change") from None
        return _answer(edits, changed)

    return router


def _answer(edits: Edits, changed: Changed, error: APIError | None = None) -> Response:
    content: dict[str, Any] = {
        "revision": edits.revision,
        "text": edits.transcript.text.strip(),
        "segments": {i: segment_view(segment) for i, segment in changed.items()},
    }
    if error is not None:
        content |= error.body()
    return JSONResponse(content, 200 if error is None else error.status, headers=PRIVATE)
