"""The routes of the Live tab: a key for its websocket, and its transcript as a file.

Only the page stores the transcript: it posts the text, and the server returns it as a file.
"""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from slimwhisper.app.api.errors import as_api_error
from slimwhisper.app.page.request_body import MAX_TEXT, RequestBody, clean, read_posted
from slimwhisper.app.page.transcripts.results import download
from slimwhisper.errors import SlimWhisperError
from slimwhisper.longform.requests import compression_ratio
from slimwhisper.outputs.formats import FORMATS, OutputFormat
from slimwhisper.tokens.languages import LANGUAGES
from slimwhisper.types import Segment, Transcript, Word

MAX_SEGMENTS = 20_000  # a day of speech
MAX_WORDS = 1000  # of a segment
MAX_TOKENS = 1000  # likewise
MAX_TOKEN = 1_000_000  # the largest id
MAX_SECONDS = 1e6  # 11 days

MakeKey = Callable[[], str]  # raises SlimWhisperError, APIError
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Token = Annotated[int, Field(ge=0, le=MAX_TOKEN)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Unit = Annotated[float, Field(ge=0, le=1)]


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


LiveWords = Annotated[list[LiveWord], Field(max_length=MAX_WORDS, fail_fast=True)]


class LiveSegment(TimedText):
    """A segment of an utterance."""

    text: Text
    words: LiveWords | None = None
    tokens: list[Token] = Field([], max_length=MAX_TOKENS, fail_fast=True)
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
        try:
            value = await run_in_threadpool(make_key)
        except SlimWhisperError as error:
            raise as_api_error(error) from None
        return JSONResponse({"value": value})

    @router.post("/transcript.{format}")
    async def file(format: str, request: Request) -> Response:
        row = FORMATS.get(format)
        if row is None or row.speakers:
            raise HTTPException(404, f"unknown format; choose: {', '.join(live_formats())}")
        posted = await read_posted(request, LiveTranscript)
        content = await run_in_threadpool(_render, posted, row)
        return download(content, f"live.{row.name}", row.media_type)

    return router


def live_formats() -> list[str]:
    """The formats for live transcripts, which have no speakers."""
    return [row.name for row in FORMATS.values() if not row.speakers]


def _render(posted: LiveTranscript, row: OutputFormat) -> bytes:
    text = io.StringIO()
    row.write(posted.transcript(), text, {})
    return text.getvalue().encode()
