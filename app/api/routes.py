"""OpenAI's audio API: /v1/audio/transcriptions, /v1/audio/translations, /v1/models; and
whisper.cpp's /inference.

Requests and responses follow OpenAI's reference (platform.openai.com/docs/api-reference/audio), so
its clients work unchanged. Other options of `slimwhisper.Options` are not part of the API: set them
on the command line or on the page.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import FormData

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import read_form, refused
from slimwhisper.app.api.inference import read_inference
from slimwhisper.app.api.references import REFERENCES, open_path, shown, store_references
from slimwhisper.app.api.request import Wanted, display_name, read_request
from slimwhisper.app.api.response import Result, delta
from slimwhisper.app.service.host import Host
from slimwhisper.app.service.jobs import Event, Failed, Finished, Job, Progress
from slimwhisper.app.service.models import openai_model
from slimwhisper.app.service.service import Service
from slimwhisper.tokens.vocabulary import Vocabulary

DISCONNECT_POLL = 0.5  # seconds between checks that the client is still connected
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Transcription:
    """A request that was handed to the service."""

    def __init__(self, service: Service, request: Request, wanted: Wanted, timeout: float) -> None:
        """timeout: in seconds, from now. Raises SlimWhisperError."""
        self._request, self._wanted = request, wanted
        self._timeout, self._ends = timeout, time.monotonic() + timeout
        self._told = asyncio.Queue[Event]()
        loop = asyncio.get_running_loop()

        def listener(event: Event) -> None:
            loop.call_soon_threadsafe(self._told.put_nowait, event)

        path, name = open_path(wanted.upload.file), display_name(wanted.upload.filename)
        user = request.client.host if request.client else ""
        self.job = Job(path, name, wanted.model, wanted.options, user, listener)
        service.submit(self.job)

    async def next(self) -> Event:
        """The job's next event. Raises APIError if it fails or takes too long, or if the client
        disconnects.
        """
        while True:
            # after an event as well: a quick job has one more often than the poll
            if await self._request.is_disconnected():
                raise APIError(499, "the client disconnected", "client_closed_request")
            if time.monotonic() > self._ends:
                raise APIError(504, f"took longer than {self._timeout:g} s", "timeout")
            with suppress(TimeoutError):
                event = await asyncio.wait_for(self._told.get(), DISCONNECT_POLL)
                if isinstance(event, Failed):
                    raise failure(self._wanted, event)
                return event

    async def whole(self) -> Response:
        """One response, once the job has ended. Raises APIError."""
        while not isinstance(event := await self.next(), Finished):
            pass
        return self._result(event).response()

    async def streamed(self, stack: AsyncExitStack) -> AsyncIterator[str]:
        """OpenAI's server-sent events: one delta per segment, then the whole text. stack: closed at
        the end.
        """
        async with stack:
            try:
                while not isinstance(event := await self.next(), Finished):
                    for segment in event.segments if isinstance(event, Progress) else ():
                        yield _sse(delta(self._wanted, segment, self._vocabulary))
                for content in self._result(event).last_events():
                    yield _sse(content)
            except APIError as error:
                yield _sse(error.body())
            yield "data: [DONE]\n\n"

    @property
    def _vocabulary(self) -> Vocabulary:
        """Of the model that transcribes."""
        assert self.job.recording is not None
        return self.job.recording.vocabulary

    def _result(self, event: Finished) -> Result:
        return Result(self._wanted, event.transcript, event.seconds, self._vocabulary)


def failure(wanted: Wanted, event: Failed) -> APIError:
    """The response to a job's error; a known speaker's file is called as it was sent."""
    found = as_api_error(event.error)
    for name, path in wanted.options.get("known_speakers", ()):
        if path in str(found):
            return refused(f"{REFERENCES}[]", str(found).replace(path, shown(name)))
    return found


def make_routers(host: Host) -> tuple[APIRouter, APIRouter]:
    """The routes to be mounted at /v1, and those at the root."""
    (service, models, settings), router, root = host, APIRouter(), APIRouter()

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in models.installed()]}

    @router.get("/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        models.resolve(name)
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
        async with AsyncExitStack() as stack:
            form = await read_form(request)
            stack.push_async_callback(form.close)
            wanted = read(form)
            if wanted.references:
                store = partial(store_references, wanted.references, service.reading.read, stack)
                wanted.options["known_speakers"] = await asyncio.to_thread(store)
            await asyncio.to_thread(wanted.upload.file.fileno)  # moves the upload to disk
            running = Transcription(service, request, wanted, settings.timeout)
            stack.callback(service.cancel, running.job)
            await running.next()  # the recording has been read
            if not wanted.stream:
                return await running.whole()
            return StreamingResponse(
                running.streamed(stack.pop_all()),
                media_type="text/event-stream",
                headers=STREAM_HEADERS | wanted.headers(),
            )

    return router, root


def _sse(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slimwhisper"}
