"""What the page posts: corrections of a transcript, and what the Live tab needs.

/page/edit/TOKEN corrects a transcript; knowing the result's secret token is the permission.
/page/live/key gives a key for the Live tab's websocket, and /page/live/transcript.FORMAT a file:
only the page stores a live transcript, so it posts the text.

Users and sizes are limited in `api.access`.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import check_size
from slimwhisper.app.page.edits import Changed, ConflictError, Edits
from slimwhisper.app.page.files import GONE, PRIVATE, PageResults, download, segment_view
from slimwhisper.longform.requests import compression_ratio
from slimwhisper.outputs import SENTENCES, OutputFormat, formats_for
from slimwhisper.subtitles.sentences import to_sentences
from slimwhisper.tokens.encoding import LANGUAGES
from slimwhisper.types import Segment, Transcript, Word

MAX_OBJECTS = 500_000  # more than the words of a day
MAX_ERRORS = 100  # pydantic makes the messages of all, to show one
MAX_TEXT = 5000  # characters of a segment: ten times as many as 30 s of speech have
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # line breaks among them
MAX_NAME = 100  # characters

Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
# (segment, its text, the new text)
Corrections = Annotated[list[tuple[Index, str, Text]], Field(fail_fast=True)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
MAX_SEGMENTS = 20_000  # a day of speech
MAX_PARTS = 1000  # words of a segment, or tokens
MAX_TOKEN = 1_000_000  # the largest id
MAX_SECONDS = 1e6  # 11 days

MakeKey = Callable[[], str]  # raises SlimWhisperError, APIError
Token = Annotated[int, Field(ge=0, le=MAX_TOKEN)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Unit = Annotated[float, Field(ge=0, le=1)]


class RequestBody(BaseModel):
    """A JSON body; this class itself is an empty one. Its lists need `fail_fast`: an error for each
    of millions of values would take minutes and gigabytes.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


Body = TypeVar("Body", bound=RequestBody)


async def read_posted(request: Request, kind: type[Body]) -> Body:
    """The body. Raises HTTPException: 400 or 415."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send application/json")
    body = await request.body()
    try:
        check_size(body, MAX_OBJECTS)
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(400, first_problem(error)) from None
    except ValueError as error:
        raise HTTPException(400, f"the body: {error}") from None


def first_problem(error: ValidationError) -> str:
    """The first invalid field, and the reason, without the value that was sent."""
    if (count := error.error_count()) > MAX_ERRORS:
        return f"the body has {count} mistakes"
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"


def clean(text: str) -> str:
    """One line, with the arrow of subtitle times shortened, as `whisper` does."""
    return CONTROL.sub(" ", text).replace("-->", "->").strip()


# -- corrections ---------------------------------------------------------------------------------


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
        match list(self.model_dump(exclude_unset=True).items()):
            case [("texts", [*texts])]:
                return edits.correct({i: (was, clean(text)) for i, was, text in texts})
            case [("speaker", (speaker, name))] if clean(name):
                return edits.rename(speaker, clean(name))
            case [("approve" | "undo" | "redo" as method, int(number))]:
                return getattr(edits, method)(number)
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
    return JSONResponse(content, 200 if error is None else error.status_code, headers=PRIVATE)


# -- the Live tab --------------------------------------------------------------------------------


class TimedText(RequestBody):
    """A piece of speech: its start and end."""

    start: Seconds
    end: Seconds

    @model_validator(mode="after")
    def _forwards(self) -> "TimedText":
        if self.end < self.start:
            raise ValueError("the end is before the start")
        return self


class LiveWord(TimedText):
    """A word, with its leading space, if any: not all scripts use spaces."""

    word: Text
    probability: Unit

    def as_word(self) -> Word:
        """The word for the writers of formats."""
        space = " " if self.word[:1].isspace() else ""
        return Word(space + clean(self.word), self.start, self.end, self.probability)


class LiveSegment(TimedText):
    """A segment of an utterance."""

    text: Text
    words: Annotated[list[LiveWord], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    tokens: list[Token] = Field([], max_length=MAX_PARTS, fail_fast=True)
    temperature: Unit = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float | None = Field(None, ge=0)
    no_speech_prob: Unit = 0.0

    def as_segment(self, number: int) -> Segment:
        """The segment for the writers of formats."""
        fields = self.model_dump(exclude={"words"}) | {"text": f" {clean(self.text)}"}
        if self.compression_ratio is None:
            fields["compression_ratio"] = compression_ratio(fields["text"])
        words = [word.as_word() for word in self.words or ()]
        return Segment(id=number, seek=round(100 * self.start), words=words, **fields)


class LiveTranscript(RequestBody):
    """The posted transcript."""

    language: str  # code
    segments: list[LiveSegment] = Field(max_length=MAX_SEGMENTS, fail_fast=True)

    def transcript(self) -> Transcript:
        """The transcript for the writers. An open segment has only times and text.

        If any segment has no words, all words are omitted, as the writers need all or none.
        """
        if self.language not in LANGUAGES:
            raise HTTPException(400, "language: not a language code of Whisper")
        spoken = [segment for segment in self.segments if clean(segment.text)]
        segments = [segment.as_segment(number) for number, segment in enumerate(spoken)]
        if not all(segment.words for segment in spoken):
            segments = [replace(segment, words=None) for segment in segments]
        return Transcript("".join(s.text for s in segments), segments, self.language)


def make_live_router(make_key: MakeKey) -> APIRouter:
    """POST /page/live/key -> {"value": "ek_..."} and /page/live/transcript.FORMAT -> a file."""
    router = APIRouter(prefix="/page/live")

    @router.post("/key")
    async def key(request: Request) -> Response:
        await read_posted(request, RequestBody)
        return JSONResponse({"value": await run_in_threadpool(make_key)})

    @router.post("/transcript.{format}")
    async def file(format: str, request: Request) -> Response:
        formats = formats_for(speakers=False)
        if format not in formats:
            raise HTTPException(404, f"unknown format; choose: {', '.join(formats)}")
        posted = await read_posted(request, LiveTranscript)
        content = await run_in_threadpool(_render, posted, formats[format])
        return download(content, f"live.{format}", formats[format].media_type)

    return router


def _render(posted: LiveTranscript, row: OutputFormat) -> bytes:
    transcript = posted.transcript()
    if row.name not in ("txt", "tsv", "json"):  # which are no subtitles
        sentences = to_sentences(transcript.segments, transcript.language)
        transcript = replace(transcript, segments=sentences)
    return row.render(transcript, {SENTENCES: True})
