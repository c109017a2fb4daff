"""The route by which the page corrects a transcript: /page/edit/TOKEN.

The result's token, which nobody else knows, is what permits it.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page.posted import MAX_TEXT, Posted, clean, read_posted
from slimwhisper.app.page.transcripts.edits import Changed, ConflictError, Edits
from slimwhisper.app.page.transcripts.results import GONE, SAFE, Results
from slimwhisper.app.page.transcripts.views import segment_view

MAX_NAME = 100  # characters

Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class Change(Posted, strict=True):
    """The body: one of these."""

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
                return edits.correct({i: (was, clean(text)) for i, was, text in texts})
            case Change(speaker=(speaker, name)) if clean(name):
                return edits.rename(speaker, clean(name))
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
        change = await read_posted(request, Change)
        edits = results.find(token).edits
        if edits is None:
            raise HTTPException(404, GONE)
        try:
            changed = await run_in_threadpool(change.make, edits)
        except ConflictError as error:
            return _answer(edits, error.changed, APIError(409, str(error)))
        except IndexError:
            raise HTTPException(400, "there is no such segment") from None
        except ValueError:
            raise HTTPException(400, "send one change") from None
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
    return JSONResponse(content, 200 if error is None else error.status, headers=SAFE)
