"""The routes of the Live tab: a key for its websocket, and its transcript as a file.

The page keeps the transcript: the server writes what the page posts, and forgets it.
"""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator
from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.api.errors import as_api_error
from slimwhisper.app.page.posted import MAX_TEXT, Posted, clean, read_posted
from slimwhisper.app.page.transcripts.results import download
from slimwhisper.errors import SlimWhisperError
from slimwhisper.longform.attempts import compression_ratio
from slimwhisper.outputs.formats import FORMATS, Format
from slimwhisper.types import Segment, Transcript, Word

MAX_SEGMENTS = 20_000  # a day of speech
MAX_WORDS = 1000  # of a segment
MAX_TOKENS = 1000  # likewise
MAX_TOKEN = 1_000_000  # the largest id
MAX_SECONDS = 1e6  # 11 days

NOT_KEPT = {"Cache-Control": "no-store"}

MakeKey = Callable[[], str]  # raises SlimWhisperError, APIError
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Token = Annotated[int, Field(ge=0, le=MAX_TOKEN)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Unit = Annotated[float, Field(ge=0, le=1)]


class Timed(Posted):
    """Something that was said."""

    start: Seconds
    end: Seconds

    @model_validator(mode="after")
    def _forwards(self) -> "Timed":
        if self.end < self.start:
            raise ValueError("the end is before the start")
        return self


class LiveWord(Timed):
    """A word, with its leading space if it has one: not all scripts have spaces."""

    word: Text
    probability: Unit

    def made(self) -> Word:
        """The word as the writers take it."""
        space = " " if self.word[:1].isspace() else ""
        return Word(space + clean(self.word), self.start, self.end, self.probability)


class LiveSegment(Timed):
    """A segment of an utterance."""

    text: Text
    words: list[LiveWord] | None = Field(None, max_length=MAX_WORDS)
    tokens: list[Token] = Field([], max_length=MAX_TOKENS)
    temperature: Unit = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float | None = Field(None, ge=0)
    no_speech_prob: Unit = 0.0

    def made(self, number: int) -> Segment:
        """The segment as the writers take it."""
        given = self.model_dump(exclude={"words"}) | {"text": f" {clean(self.text)}"}
        if self.compression_ratio is None:
            given["compression_ratio"] = compression_ratio(given["text"])
        words = [word.made() for word in self.words or ()]
        return Segment(id=number, seek=round(100 * self.start), words=words, **given)


class LiveTranscript(Posted):
    """What was said."""

    language: str  # code
    segments: list[LiveSegment] = Field(max_length=MAX_SEGMENTS)

    def transcript(self) -> Transcript:
        """The transcript. Of a segment that has not ended, the page has only times and text.

        Words are left out where some segments have none: the writers expect all or nothing.
        """
        if self.language not in LANGUAGES:
            raise HTTPException(400, "language: not a code of Whisper's")
        given = [one for one in self.segments if clean(one.text)]
        segments = [one.made(number) for number, one in enumerate(given)]
        if not all(one.words for one in given):
            segments = [replace(segment, words=None) for segment in segments]
        return Transcript("".join(s.text for s in segments), segments, self.language)


def make_live_router(make_key: MakeKey) -> APIRouter:
    """POST /page/live/key -> {"value": "ek_..."} and /page/live/transcript.FORMAT -> a file."""
    router = APIRouter(prefix="/page/live")

    @router.post("/key")
    async def key(request: Request) -> Response:
        await read_posted(request, Posted)
        try:
            value = await run_in_threadpool(make_key)
        except SlimWhisperError as error:
            raise as_api_error(error) from None
        return JSONResponse({"value": value}, headers=NOT_KEPT)

    @router.post("/transcript.{format}")
    async def file(format: str, request: Request) -> Response:
        row = FORMATS.get(format)
        if row is None or row.speakers:
            raise HTTPException(
                404, f"there is no such format; choose: {', '.join(live_formats())}"
            )
        posted = await read_posted(request, LiveTranscript)
        content = await run_in_threadpool(_written, posted, row)
        return download(content, f"live.{row.name}", row.media_type)

    return router


def live_formats() -> list[str]:
    """The formats in which a live transcript can be saved: it has no speakers."""
    return [row.name for row in FORMATS.values() if not row.speakers]


def _written(posted: LiveTranscript, row: Format) -> bytes:
    text = io.StringIO()
    row.write(posted.transcript(), text, {})
    return text.getvalue().encode()
