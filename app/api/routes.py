"""OpenAI's audio API: /v1/audio/transcriptions, /v1/audio/translations, /v1/models.

Requests and answers are those of OpenAI's reference (platform.openai.com/docs/api-reference/audio),
so that its clients work unchanged. Beyond it: every field of `slimwhisper.Options` that a user of
faster-whisper's servers would look for is left to the command line and the page.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.request import Asked, display_name, read_form, usage
from slimwhisper.app.service.jobs import (
    Event,
    Failed,
    Finished,
    Job,
    Progress,
)
from slimwhisper.app.service.models import ALIAS, Models
from slimwhisper.app.service.service import Service
from slimwhisper.errors import CheckpointError, SlimWhisperError

DISCONNECT_POLL = 0.5  # seconds between looks whether the client is still there


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
        form = await read_form(request)
        try:
            asked = Asked(form, task, models)
            listener = Listener()
            upload = asked.upload
            await asyncio.to_thread(upload.file.fileno)  # on disk from here on
            user = request.client.host if request.client else ""
            path, name = open_path(upload), display_name(upload.filename)
            job = Job(path, name, asked.model, asked.options, user, listener)
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
                    yield _sse({**done, "usage": usage(event.seconds)})
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


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slimwhisper"}
