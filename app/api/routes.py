"""OpenAI's audio API: /v1/audio/transcriptions, /v1/audio/translations, /v1/models; and
whisper.cpp's /inference.

Requests and responses follow OpenAI's reference (platform.openai.com/docs/api-reference/audio), so
its clients work unchanged. Other options of `slimwhisper.Options` are not part of the API: set them
on the command line or on the page.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import IO, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import FormData

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import read_form, refused
from slimwhisper.app.api.inference import read_inference
from slimwhisper.app.api.references import REFERENCES, open_path, shown, store_references
from slimwhisper.app.api.request import display_name, read_request
from slimwhisper.app.api.response import Result, delta
from slimwhisper.app.api.wanted import Wanted
from slimwhisper.app.service.jobs import (
    Event,
    Failed,
    Finished,
    Job,
    Progress,
    Started,
)
from slimwhisper.app.service.models import DIARIZE, Models, openai_model
from slimwhisper.app.service.service import Service
from slimwhisper.errors import CheckpointError, SlimWhisperError
from slimwhisper.tokens.vocabulary import Vocabulary

DISCONNECT_POLL = 0.5  # seconds between checks that the client is still connected
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


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


@dataclass
class Transcription:
    """A request in progress: its events, and what is closed when it ends."""

    wanted: Wanted
    form: FormData
    files: list[IO[bytes]] = field(default_factory=list)  # of known speakers
    job: Job | None = None
    events: AsyncGenerator[Event, None] | None = None

    async def begin(self, service: Service, request: Request, timeout: float) -> None:
        """Hand it to the service, and wait until the recording has been read. Raises APIError."""
        self.job, listener = await self._submit(service, request)
        self.events = events_of(service, self.job, listener, request, timeout)
        first = await anext(self.events)
        if isinstance(first, Failed):
            raise self._failure(first)
        if isinstance(first, Started) and first.seconds > self.wanted.longest:
            limit = f"recordings over {self.wanted.longest:g} s"
            message = f"{DIARIZE} needs chunking_strategy, such as auto, for {limit}"
            raise refused("chunking_strategy", message)

    async def _submit(self, service: Service, request: Request) -> tuple[Job, Listener]:
        wanted = self.wanted
        if wanted.references:
            known = await asyncio.to_thread(
                store_references, wanted.references, service.read, self.files
            )
            wanted.options["known_speakers"] = known
        upload = wanted.upload
        await asyncio.to_thread(upload.file.fileno)  # moves the upload to disk
        path, name = open_path(upload.file), display_name(upload.filename)
        user = request.client.host if request.client else ""
        listener = Listener()
        job = Job(path, name, wanted.model, wanted.options, user, listener)
        try:
            service.submit(job)
        except SlimWhisperError as error:
            raise as_api_error(error) from error
        return job, listener

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the model that transcribes; once it has begun."""
        assert self.job is not None and self.job.recording is not None
        return self.job.recording.vocabulary

    async def whole(self) -> Response:
        """One response, once the job has ended."""
        assert self.events is not None
        async for event in self.events:
            if isinstance(event, Failed):
                raise self._failure(event)
            if isinstance(event, Finished):
                return self._result(event).response()
        raise AssertionError("a job's last event is Finished or Failed")

    async def streamed(self) -> AsyncIterator[str]:
        """OpenAI's server-sent events: one delta per segment, then the whole text."""
        assert self.events is not None
        try:
            async for event in self.events:
                match event:
                    case Progress(segments=segments):
                        for segment in segments:
                            yield _sse(delta(self.wanted, segment, self.vocabulary))
                    case Finished():
                        for content in self._result(event).last_events():
                            yield _sse(content)
                    case Failed():
                        yield _sse(self._failure(event).body())
            yield "data: [DONE]\n\n"
        except APIError as error:
            yield _sse(error.body())
        finally:
            await self.close()

    def _failure(self, event: Failed) -> APIError:
        """The response to a job's error; a known speaker's file is called as it was sent."""
        found = as_api_error(event.error)
        for name, path in self.wanted.options.get("known_speakers", ()):
            if path in str(found):
                return refused(f"{REFERENCES}[]", str(found).replace(path, shown(name)))
        return found

    def _result(self, event: Finished) -> Result:
        return Result(self.wanted, event.transcript, event.seconds, self.vocabulary)

    async def close(self) -> None:
        """End the job, and remove its files."""
        if self.events is not None:
            await self.events.aclose()
        await self.form.close()
        for file in self.files:
            file.close()


def make_routers(service: Service, models: Models, timeout: float) -> tuple[APIRouter, APIRouter]:
    """The routes to be mounted at /v1, and those at the root. timeout: seconds of a request."""
    router, root = APIRouter(), APIRouter()

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in models.installed()]}

    @router.get("/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        try:
            models.resolve(name)
        except CheckpointError as error:
            raise as_api_error(error) from error
        return _model(models.shown if openai_model(name) else name)

    @router.post("/audio/transcriptions")
    async def transcriptions(request: Request) -> Response:
        return await answer(request, lambda form: read_request(form, "transcribe", models))

    @router.post("/audio/translations")
    async def translations(request: Request) -> Response:
        return await answer(request, lambda form: read_request(form, "translate", models))

    @root.post("/inference")
    async def inference(request: Request) -> Response:
        return await answer(request, lambda form: read_inference(form, models))

    async def answer(request: Request, read: Callable[[FormData], Wanted]) -> Response:
        form = await read_form(request)
        try:
            running = Transcription(read(form), form)
        except BaseException:
            await form.close()
            raise
        streaming = False
        try:
            await running.begin(service, request, timeout)
            if not running.wanted.stream:
                return await running.whole()
            streaming = True
            return StreamingResponse(
                running.streamed(),
                media_type="text/event-stream",
                headers=STREAM_HEADERS | running.wanted.headers(),
            )
        finally:
            if not streaming:
                await running.close()

    return router, root


def _sse(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slimwhisper"}
