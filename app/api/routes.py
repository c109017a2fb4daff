"""OpenAI's audio API: /v1/audio/transcriptions, /v1/audio/translations, /v1/models.

Requests and responses follow OpenAI's reference (platform.openai.com/docs/api-reference/audio), so
its clients work unchanged. Other options of `slimwhisper.Options` are not part of the API: set them
on the command line or on the page.
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
from slimwhisper.app.api.request import TranscriptionRequest, display_name, read_form, usage
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

DISCONNECT_POLL = 0.5  # seconds between checks that the client is still connected


def open_path(upload: UploadFile) -> Path:
    """A path to an upload's unnamed file, for another process of the same user."""
    return Path(f"/proc/{os.getpid()}/fd/{upload.file.fileno()}")


class Listener:
    """Receives a job's events in any thread and queues them for an asyncio loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self, timeout: float) -> Event | None:
        """The next event; None if none arrives within `timeout` seconds."""
        try:
            return await asyncio.wait_for(self._queue.get(), timeout)
        except TimeoutError:
            return None


async def events_of(
    service: Service, job: Job, listener: Listener, request: Request, timeout: float
) -> AsyncGenerator[Event, None]:
    """A job's events up to the last.

    Cancels the job if the client disconnects or `timeout` seconds pass. Raises APIError.
    """
    deadline = time.monotonic() + timeout
    try:
        while True:
            event = await listener.next(DISCONNECT_POLL)
            if event is not None:
                yield event
                if isinstance(event, Finished | Failed):
                    return
            # after an event as well: a quick job has one more often than the poll
            if await request.is_disconnected():
                raise APIError(499, "the client disconnected", "client_closed_request")
            if time.monotonic() > deadline:
                raise APIError(504, f"took longer than {timeout:g} s", "timeout")
    finally:
        service.cancel(job)


def make_router(service: Service, models: Models, timeout: float) -> APIRouter:
    """The routes, to be mounted at /v1. timeout: seconds a request may take."""
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
            wanted = TranscriptionRequest(form, task, models)
            job, listener = await _submit(service, wanted, request)
        except BaseException:
            await form.close()
            raise
        events = events_of(service, job, listener, request, timeout)
        if wanted.stream:
            return StreamingResponse(
                _streamed(events, form),
                media_type="text/event-stream",
                headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
            )
        return await _whole(events, form, wanted)

    return router


async def _submit(
    service: Service, wanted: TranscriptionRequest, request: Request
) -> tuple[Job, Listener]:
    """Hand a request to the service. Raises APIError if the service refuses it."""
    await asyncio.to_thread(wanted.upload.file.fileno)  # moves the upload to disk
    path, name = open_path(wanted.upload), display_name(wanted.upload.filename)
    user = request.client.host if request.client else ""
    listener = Listener()
    job = Job(path, name, wanted.model, wanted.options, user, listener)
    try:
        service.submit(job)
    except SlimWhisperError as error:
        raise as_api_error(error) from error
    return job, listener


async def _whole(
    events: AsyncGenerator[Event, None], form: FormData, wanted: TranscriptionRequest
) -> Response:
    """One response, once the job has ended."""
    try:
        async for event in events:
            if isinstance(event, Failed):
                raise as_api_error(event.error)
            if isinstance(event, Finished):
                return wanted.response(event)
    finally:
        await events.aclose()
        await form.close()
    raise AssertionError("a job's last event is Finished or Failed")


async def _streamed(events: AsyncGenerator[Event, None], form: FormData) -> AsyncIterator[str]:
    """OpenAI's server-sent events: one delta per segment, then the whole text."""
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
