"""OpenAI's audio API: /v1/audio/transcriptions, /v1/audio/translations, /v1/models; and
whisper.cpp's /inference.

Requests and responses follow OpenAI's reference (platform.openai.com/docs/api-reference/audio), so
its clients work unchanged. The other fields of `slimwhisper.Options` are not part of the API; use
the command line or the page for them.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import FormData
from starlette.types import Receive, Scope, Send

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import close_files, read_form, refused
from slimwhisper.app.api.inference import read_inference
from slimwhisper.app.api.references import REFERENCES, open_path, reference_label, store_references
from slimwhisper.app.api.request import TranscriptionRequest, display_name, read_request
from slimwhisper.app.api.response import Deltas, FinishedTranscript
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import Event, Job
from slimwhisper.app.service.service import Service
from slimwhisper.errors import OptionError
from slimwhisper.service.source import Failed, Finished, Progress

AZURE = "/openai/deployments/{name}"  # before the paths of Azure's clients
DISCONNECT_POLL = 0.5  # seconds between checks that the client is still connected
PARAMS = {  # the form's field for an option
    "language": "language",
    "languages": "languages[]",
    "initial_prompt": "prompt",
    "temperature": "temperature",
    "channels": "channels",
    "channel_names": "channel_names[]",
}
STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # a proxy passes on each event at once


class PendingTranscription:
    """A request that was submitted to the service."""

    def __init__(
        self, service: Service, http: Request, transcription: TranscriptionRequest, timeout: float
    ) -> None:
        """timeout: in seconds, from now. Raises SlimWhisperError."""
        self._http, self._transcription = http, transcription
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._events = asyncio.Queue[Event]()
        loop = asyncio.get_running_loop()

        def listener(event: Event) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, event)

        upload = transcription.upload
        path, name = open_path(upload.file), display_name(upload.filename)
        user = http.client.host if http.client else ""
        self.job = Job(path, name, transcription.model, transcription.options, user, listener)
        service.submit(self.job)

    async def next(self) -> Event:
        """The job's next event. Raises APIError if it fails or takes too long, or if the client
        disconnects.
        """
        while True:
            # also after an event: a quick job has events more often than the poll
            if await self._http.is_disconnected():
                raise APIError(499, "the client disconnected", "client_closed_request")
            if time.monotonic() > self._deadline:
                raise APIError(504, f"not transcribed within {self._timeout:g} s", "timeout")
            with suppress(TimeoutError):
                event = await asyncio.wait_for(self._events.get(), DISCONNECT_POLL)
                if isinstance(event, Failed):
                    raise failure(self._transcription, event.error)
                return event

    async def full_response(self) -> Response:
        """The response, after the job has ended. Raises APIError."""
        while not isinstance(event := await self.next(), Finished):
            pass
        return self._result(event).response()

    async def event_stream(self) -> AsyncIterator[str]:
        """OpenAI's server-sent events: one delta per segment, then the whole text."""
        deltas = Deltas(self._transcription)
        try:
            while not isinstance(event := await self.next(), Finished):
                for segment in event.news[0] if isinstance(event, Progress) else ():
                    assert self.job.recording is not None
                    yield _sse(deltas.next(segment, self.job.recording.vocabulary))
            for content in self._result(event).last_events():
                yield _sse(content)
        except APIError as error:
            yield _sse(error.body())
        yield "data: [DONE]\n\n"

    def _result(self, event: Finished) -> FinishedTranscript:
        recording = self.job.recording
        assert recording is not None
        return FinishedTranscript(
            self._transcription, event.result, recording.seconds, recording.vocabulary
        )


class EventStream(StreamingResponse):
    """Server-sent events. `held` is closed at their end, and if the client leaves, even before the
    first.
    """

    def __init__(
        self, events: AsyncIterator[str], held: ExitStack, headers: dict[str, str]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers=STREAM_HEADERS | headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


def failure(transcription: TranscriptionRequest, error: Exception) -> APIError:
    """The response to a job's error, with a known speaker's field in place of the file's path."""
    api_error = as_api_error(error)
    for name, path in transcription.options.get("known_speakers", ()):
        if path in str(api_error):
            return refused(f"{REFERENCES}[]", str(api_error).replace(path, reference_label(name)))
    if isinstance(error, OptionError):  # it begins with the option's name
        api_error.param = PARAMS.get(str(api_error).partition(" ")[0].rstrip(":"))
    return api_error


def make_routers(host: ServerHost) -> tuple[APIRouter, APIRouter]:
    """The routes to be mounted at /v1, and those at the root."""
    (service, models, settings), router, root = host, APIRouter(), APIRouter()

    @router.head("/models", include_in_schema=False)
    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in models.installed()]}

    @router.get("/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        return _model(models.display_name if models.resolve(name) == models.default else name)

    @root.post("/audio/transcriptions")
    @root.post(f"{AZURE}/audio/transcriptions")
    @router.post("/audio/transcriptions")
    async def transcriptions(request: Request) -> Response:
        return await respond(request, lambda form: read_request(form, "transcribe", models))

    @root.post("/audio/translations")
    @root.post(f"{AZURE}/audio/translations")
    @router.post("/audio/translations")
    async def translations(request: Request) -> Response:
        return await respond(request, lambda form: read_request(form, "translate", models))

    @root.post("/inference")
    async def inference(request: Request) -> Response:
        return await respond(request, lambda form: read_inference(form, models))

    async def respond(
        request: Request, read: Callable[[FormData], TranscriptionRequest]
    ) -> Response:
        with ExitStack() as stack:
            form = await read_form(request)
            # not awaited: once the client has left, Starlette cancels whatever waits
            stack.callback(asyncio.get_running_loop().run_in_executor, None, close_files, form)
            transcription = read(form)
            transcription.accept = request.headers.get("accept", "")
            if transcription.references:
                read_file = service.reading.read
                store = partial(store_references, transcription.references, read_file, stack)
                transcription.options["known_speakers"] = await asyncio.to_thread(store)
            await asyncio.to_thread(transcription.upload.file.fileno)  # moves the upload to disk
            pending = PendingTranscription(service, request, transcription, settings.timeout)
            stack.callback(service.cancel, pending.job)
            await pending.next()  # the recording has been read
            label = f"{pending.job.name}: "
            transcription.warnings += [w.removeprefix(label) for w in pending.job.warnings]
            if not transcription.stream:
                return await pending.full_response()
            held, events = stack.pop_all(), pending.event_stream()
            return EventStream(events, held, transcription.headers())

    return router, root


def _sse(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slimwhisper"}
