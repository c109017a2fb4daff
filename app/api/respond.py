"""Answers a request for a transcript: reads it, submits the recording as a job, waits for its end.

All HTTP APIs do so here. They differ in how a request is read, and in what is made of the result.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile
from starlette.types import Receive, Scope, Send

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import close_files, read_form, refused
from slimwhisper.app.api.references import REFERENCES, open_path, reference_label, store_references
from slimwhisper.app.api.request import TranscriptionRequest, display_name
from slimwhisper.app.api.response import Deltas, FinishedTranscript
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import Event, Job
from slimwhisper.app.service.service import Service
from slimwhisper.errors import OptionError
from slimwhisper.service.source import Failed, Finished, Progress

DISCONNECT_POLL = 0.5  # seconds between checks that the client is still connected
LISTS = ("languages", "channel_names")
# the form's field for an option, where its name is another
PARAMS = {"initial_prompt": "prompt", "hotwords": "keywords[]", **{n: f"{n}[]" for n in LISTS}}
STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # a proxy passes on each event at once


class Client(NamedTuple):
    """Who waits for a response."""

    name: str  # clients take turns
    accept: str = ""  # the header: what it wants
    is_gone: Callable[[], Awaitable[bool]] | None = None  # None: nobody waits
    timeout: float = float("inf")  # seconds for which it waits

    @classmethod
    def of(cls, request: Request, timeout: float) -> "Client":
        """The client that sent a request."""
        name = request.client.host if request.client else ""
        return cls(name, request.headers.get("accept", ""), request.is_disconnected, timeout)


class PendingTranscription:
    """A request that was submitted to the service."""

    def __init__(
        self, service: Service, client: Client, transcription: TranscriptionRequest
    ) -> None:
        """Raises SlimWhisperError."""
        self._client, self.transcription = client, transcription
        self._deadline = time.monotonic() + client.timeout
        self.progress = 0.0  # of the recording, up to 1
        self._events = asyncio.Queue[Event]()
        loop = asyncio.get_running_loop()

        def listener(event: Event) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, event)

        upload = transcription.upload
        path, name = open_path(upload.file), display_name(upload.filename)
        model, options = transcription.model, transcription.options
        self.job = Job(path, name, model, options, client.name, listener)
        self.job.mix_instead = transcription.mix_instead
        service.submit(self.job)

    async def next(self) -> Event:
        """The job's next event. Raises APIError if it fails or takes too long, or if the client
        disconnects.
        """
        while True:
            # also after an event: a quick job has events more often than the poll
            if self._client.is_gone is not None and await self._client.is_gone():
                raise APIError(499, "the client disconnected", "client_closed_request")
            if time.monotonic() > self._deadline:
                raise APIError(504, f"not transcribed within {self._client.timeout:g} s", "timeout")
            with suppress(TimeoutError):
                event = await asyncio.wait_for(self._events.get(), DISCONNECT_POLL)
                if isinstance(event, Failed):
                    raise failure(self.transcription, event.error)
                if isinstance(event, Progress) and self.job.recording is not None:
                    self.progress = event.news[1] / max(self.job.recording.seconds, 1e-9)
                return event

    async def full_response(self) -> Response:
        """The response, after the job has ended. Raises APIError."""
        while not isinstance(event := await self.next(), Finished):
            pass
        return self._result(event).response()

    async def event_stream(self) -> AsyncIterator[str]:
        """OpenAI's server-sent events: one delta per segment, then the whole text."""
        deltas = Deltas(self.transcription)
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
            self.transcription, event.result, recording.seconds, recording.vocabulary
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
        name = str(api_error).partition(" ")[0].rstrip(":")
        api_error.param = PARAMS.get(name, name) if name in transcription.options else None
    return api_error


Read = Callable[[FormData], TranscriptionRequest]
MakeAnswer = Callable[[PendingTranscription], Awaitable[Response]]


async def respond(
    host: ServerHost,
    request: Request,
    read: Read,
    body: Callable[[Request], Awaitable[FormData]] = read_form,
    answer: MakeAnswer = PendingTranscription.full_response,
) -> Response:
    """The response to a request for a transcript. Raises APIError, SlimWhisperError.

    Arguments:
        body: makes a form of the request, with the file in it.
        read: checks the form.
        answer: makes the response, once the recording has been read.
    """
    client = Client.of(request, host.settings.timeout)
    return await transcribe(host, client, await body(request), read, answer)


async def transcribe(
    host: ServerHost, client: Client, form: FormData, read: Read, answer: MakeAnswer
) -> Response:
    """The response to a form, whose file is closed. Raises as `respond`."""
    with ExitStack() as stack:
        # not awaited: once the client has left, Starlette cancels whatever waits
        stack.callback(asyncio.get_running_loop().run_in_executor, None, close_files, form)
        transcription = read(form)
        transcription.accept = transcription.accept or client.accept
        if transcription.references:
            store = partial(
                store_references, transcription.references, host.service.reading.read, stack
            )
            transcription.options["known_speakers"] = await asyncio.to_thread(store)
        if transcription.convert is not None:
            name = transcription.upload.filename
            file = await asyncio.to_thread(transcription.convert, transcription.upload.file)
            transcription.upload = UploadFile(stack.enter_context(file), filename=name)
        await asyncio.to_thread(transcription.upload.file.fileno)  # moves the upload to disk
        pending = PendingTranscription(host.service, client, transcription)
        stack.callback(host.service.cancel, pending.job)
        await pending.next()  # the recording has been read
        transcription.channels = pending.job.channels
        label = f"{pending.job.name}: "
        transcription.warnings += [w.removeprefix(label) for w in pending.job.warnings]
        if not transcription.stream:
            return await answer(pending)
        held, events = stack.pop_all(), pending.event_stream()
        return EventStream(events, held, transcription.headers())


def _sse(content: dict[str, Any]) -> str:
    kind = content.get("type", "error")  # some programs read only events with their names
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"
