"""OpenAI's audio API: /v1/audio/transcriptions, /v1/audio/translations, /v1/models.

Requests and answers are those of OpenAI's reference (platform.openai.com/docs/api-reference/audio),
so that its clients work unchanged. Beyond it: every field of `slimwhisper.Options` that a user of
faster-whisper's servers would look for is left to the command line and the page.
"""

import asyncio
import io
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path, PurePath
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from slimwhisper.app.models import ALIAS, Models
from slimwhisper.app.requests import (
    BusyError,
    Event,
    Failed,
    Finished,
    Job,
    ModelChoice,
    ModelError,
    Progress,
    StoppingError,
)
from slimwhisper.app.service import Service
from slimwhisper.errors import (
    AudioError,
    CacheError,
    CheckpointError,
    DependencyError,
    OptionError,
    SlimWhisperError,
)
from slimwhisper.types import Transcript
from slimwhisper.writers import write_transcript

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = ("segment", "word")
FIELDS = 50  # of a form, at most
DISCONNECT_POLL = 0.5  # seconds between looks whether the client is still there
RETRY_AFTER = 10  # seconds, where the queue is full
LONGEST_NAME = 200


class APIError(Exception):
    """An answer in OpenAI's shape of errors."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def as_api_error(error: SlimWhisperError) -> APIError:
    """What a request is told of an error of ours."""
    match error:
        case BusyError():
            headers = {"Retry-After": str(RETRY_AFTER)}
            return APIError(429, str(error), "queue_full", headers=headers)
        case StoppingError():
            return APIError(503, str(error), "stopping", headers={"Retry-After": "60"})
        case AudioError():
            return APIError(400, str(error), "invalid_audio", "file")
        case OptionError() | CacheError():
            return APIError(400, str(error), "invalid_option")
        case ModelError():
            return APIError(503, str(error), "model_not_loaded", "model")
        case CheckpointError():
            return APIError(404, str(error), "model_not_found", "model")
        case DependencyError():
            return APIError(501, str(error), "not_installed")
        case _:
            return APIError(500, "the server failed; its log has more", "internal_error")


def display_name(upload: UploadFile) -> str:
    """The client's name of a file, safe to show and to look at for its suffix."""
    name = PurePath((upload.filename or "").replace("\\", "/")).name
    printable = "".join(c for c in name if c.isprintable())
    return printable[-LONGEST_NAME:] or "audio"


def open_path(upload: UploadFile) -> Path:
    """A path by which another process of this user reads an upload that has no name on disk."""
    return Path(f"/proc/{os.getpid()}/fd/{upload.file.fileno()}")


class Listener:
    """A job's events, brought to an asyncio loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self, timeout: float) -> Event | None:
        """The next event; None where there is none in time."""
        try:
            return await asyncio.wait_for(self._queue.get(), timeout)
        except TimeoutError:
            return None


async def events_of(
    service: Service, job: Job, listener: Listener, request: Request, timeout: float
) -> AsyncGenerator[Event, None]:
    """A job's events to its last; given up when the client leaves or time is over."""
    ends = time.monotonic() + timeout
    try:
        while True:
            event = await listener.next(DISCONNECT_POLL)
            if event is not None:
                yield event
                if isinstance(event, Finished | Failed):
                    return
            elif await request.is_disconnected():
                raise APIError(499, "the client has gone", "client_closed_request")
            elif time.monotonic() > ends:
                raise APIError(504, f"took longer than {timeout:g} s", "timeout")
    finally:
        service.cancel(job)


def make_router(service: Service, models: Models, timeout: float) -> APIRouter:
    """The routes, to be mounted at /v1. timeout: seconds that a request may take."""
    router = APIRouter()

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in models.installed()]}

    @router.get("/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        try:
            models.resolve(name)
        except CheckpointError as error:
            raise as_api_error(error) from error
        return _model(models.shown if name == ALIAS else name)

    @router.post("/audio/transcriptions")
    async def transcriptions(request: Request) -> Response:
        return await answer(request, "transcribe")

    @router.post("/audio/translations")
    async def translations(request: Request) -> Response:
        return await answer(request, "translate")

    async def answer(request: Request, task: str) -> Response:
        form = await _form(request)
        try:
            asked = Asked(form, task, models)
            listener = Listener()
            upload = asked.upload
            await asyncio.to_thread(upload.file.fileno)  # on disk from here on
            user = request.client.host if request.client else ""
            job = Job(
                open_path(upload), display_name(upload), asked.model, asked.options, user, listener
            )
            try:
                service.submit(job)
            except SlimWhisperError as error:
                raise as_api_error(error) from error
        except BaseException:
            await form.close()
            raise
        events = events_of(service, job, listener, request, timeout)
        if asked.stream:
            return StreamingResponse(
                _streamed(events, form),
                media_type="text/event-stream",
                headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
            )
        try:
            async for event in events:
                if isinstance(event, Failed):
                    raise as_api_error(event.error)
                if isinstance(event, Finished):
                    return asked.response(event)
        finally:
            await events.aclose()
            await form.close()
        raise AssertionError("a job ends")

    return router


class Asked:
    """A form, checked."""

    def __init__(self, form: FormData, task: str, models: Models) -> None:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise APIError(400, "file: give an audio file in the form's field 'file'", None, "file")
        self.upload, self.task = upload, task
        self.format = self._choice(form, "response_format", FORMATS) or "json"
        granularities = [str(g) for g in form.getlist("timestamp_granularities[]")]
        for name in granularities:
            if name not in GRANULARITIES:
                raise self._wrong("timestamp_granularities[]", name, GRANULARITIES)
        if granularities and self.format != "verbose_json":
            message = "timestamp_granularities[] needs response_format=verbose_json"
            raise APIError(400, message, None, "timestamp_granularities[]")
        self.granularities = granularities or ["segment"]
        self.stream = self._choice(form, "stream", ("true", "false", "True", "False")) in (
            *("true", "True"),
        )
        if self.stream and self.format not in ("json", "text"):
            raise APIError(400, "stream needs response_format json or text", None, "stream")
        try:
            self.model = ModelChoice(models.resolve(self._text(form, "model")))
        except CheckpointError as error:
            raise as_api_error(error) from error
        self.options: dict[str, Any] = {
            "task": task,
            "language": self._text(form, "language"),
            "initial_prompt": self._text(form, "prompt"),
            "word_timestamps": "word" in self.granularities,
        }
        temperature = self._text(form, "temperature")
        if temperature is not None:
            try:
                value = float(temperature)
            except ValueError:
                value = -1.0
            if not 0 <= value <= 1:
                raise APIError(
                    400, f"temperature {temperature!r} is not between 0 and 1", None, "temperature"
                )
            if value > 0:  # 0, as OpenAI has it: raised where the text looks wrong
                self.options["temperature"] = value

    def response(self, finished: Finished) -> Response:
        """The answer in the format asked for."""
        transcript = finished.transcript
        match self.format:
            case "text":
                return PlainTextResponse(transcript.text.strip() + "\n")
            case "srt" | "vtt":
                file = io.StringIO()
                write_transcript(transcript, self.format, file)
                kinds = {"srt": "application/x-subrip", "vtt": "text/vtt"}
                return Response(file.getvalue(), media_type=f"{kinds[self.format]}; charset=utf-8")
            case "verbose_json":
                return JSONResponse(self._verbose(transcript, finished.seconds))
            case _:
                return JSONResponse({"text": transcript.text.strip(), "usage": _usage(finished)})

    def _verbose(self, transcript: Transcript, seconds: float) -> dict[str, Any]:
        from whisper.tokenizer import LANGUAGES

        found: dict[str, Any] = {
            "task": self.task,
            "language": LANGUAGES.get(transcript.language, transcript.language),
            "duration": round(seconds, 3),
            "text": transcript.text.strip(),
        }
        if "segment" in self.granularities:
            segments = transcript.as_dict()["segments"]
            found["segments"] = [{k: v for k, v in s.items() if k != "words"} for s in segments]
        if "word" in self.granularities:
            words = [word for s in transcript.segments for word in s.words or ()]
            found["words"] = [
                {"word": w.word.strip(), "start": w.start, "end": w.end} for w in words
            ]
        found["usage"] = _usage_of(seconds)
        return found

    @staticmethod
    def _text(form: FormData, name: str) -> str | None:
        value = form.get(name)
        if isinstance(value, UploadFile):
            raise APIError(400, f"{name}: is a file; give text", None, name)
        return value or None

    def _choice(self, form: FormData, name: str, known: tuple[str, ...]) -> str | None:
        value = self._text(form, name)
        if value is not None and value not in known:
            raise self._wrong(name, value, known)
        return value

    @staticmethod
    def _wrong(name: str, value: str, known: tuple[str, ...]) -> APIError:
        message = f"{name} {value[:100]!r} is not one of {', '.join(known)}"
        return APIError(400, message, None, name)


async def _form(request: Request) -> FormData:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise APIError(415, "give a form (multipart/form-data) with an audio file in 'file'")
    try:
        return await request.form(max_files=1, max_fields=FIELDS)
    except StarletteHTTPException as error:
        raise APIError(error.status_code, f"the form cannot be read: {error.detail}") from error


async def _streamed(events: AsyncGenerator[Event, None], form: FormData) -> AsyncIterator[str]:
    """OpenAI's server-sent events: deltas, one a segment, then the whole."""
    try:
        async for event in events:
            match event:
                case Progress(segments=segments):
                    for segment in segments:
                        yield _sse({"type": "transcript.text.delta", "delta": segment.text})
                case Finished(transcript=transcript):
                    done = {"type": "transcript.text.done", "text": transcript.text.strip()}
                    yield _sse({**done, "usage": _usage(event)})
                case Failed(error=error):
                    yield _sse(as_api_error(error).body())
        yield "data: [DONE]\n\n"
    except APIError as error:
        yield _sse(error.body())
    finally:
        await events.aclose()
        await form.close()


def _sse(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _usage(finished: Finished) -> dict[str, Any]:
    return _usage_of(finished.seconds)


def _usage_of(seconds: float) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(seconds)}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slimwhisper"}
