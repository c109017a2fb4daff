"""Answers a request for a transcript: reads it, submits the recording as a job, waits for its end,
and formats the transcript as OpenAI's API does: each response format, and the events of a stream.

All HTTP APIs do so here. They differ in how a request is read, and in what is made of the result.
The shapes are those of openai-python 3.54 (types/audio/transcription*.py).
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from string import ascii_uppercase
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile
from starlette.types import Receive, Scope, Send

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import close_files, read_form, refused
from slimwhisper.app.api.recordings import REFERENCES, open_path, reference_label, store_references
from slimwhisper.app.api.request import TranscriptionRequest, display_name
from slimwhisper.app.service.host import Models, ServerHost
from slimwhisper.app.service.jobs import Event, Job, JobStarted
from slimwhisper.app.service.service import Service
from slimwhisper.errors import OptionError
from slimwhisper.outputs import FORMATS, SENTENCES
from slimwhisper.service.source import Failed, Finished, Progress
from slimwhisper.tokens.options import prompt_tokens
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, byte_letters
from slimwhisper.types import POSITIONS_PER_SECOND, Segment, Transcript

# -- the response --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FinishedTranscript:
    """A finished transcript, and its responses."""

    request: TranscriptionRequest
    transcript: Transcript
    seconds: float  # of audio
    vocabulary: Vocabulary

    @property
    def text(self) -> str:
        """The text, with speakers where the format has no other place for them."""
        told = {"channels", "diarize"} & self.request.options.keys()
        if told and (self.request.words_inside or self.request.format == "text"):
            return FORMATS["txt"].render(self.transcript, {}).decode().strip()
        return self.transcript.text.strip()

    def response(self) -> Response:
        """The whole response, in the requested format."""
        headers = self.request.headers()
        if self.request.render is not None:
            return JSONResponse(self.request.render(self), headers=headers)
        match self.request.format:
            case "json":
                body = {"text": self.text, **self._optional_fields(), "usage": self._usage()}
            case "verbose_json":
                body = self._verbose_json()
            case "diarized_json":
                segments = list(self._speaker_segments())
                body = {**self._common_fields(), "segments": segments, "usage": self._usage()}
            case "text":
                return PlainTextResponse(self.text + "\n", headers=headers)
            case format:
                # two lines for sentences, karaoke for words with times
                karaoke = format == "ass" and "word" in self.request.granularities
                sentences = bool(self.request.options.get("sentences"))
                layout = {SENTENCES: sentences, "highlight_words": karaoke}
                file = FORMATS[format].render(self.transcript, layout)
                default, plain = FORMATS[format].media_type, "text/plain"
                media_type = f"{plain if plain in self.request.accept else default}; charset=utf-8"
                return Response(file, media_type=media_type, headers=headers)
        return JSONResponse(body, headers=headers)

    def last_events(self) -> Iterator[dict[str, Any]]:
        """The last events of a stream: the speakers' segments, then the whole text."""
        if self.request.format == "diarized_json":
            yield from self._speaker_segments()
        text = self.transcript.text.strip()  # without speakers, as the deltas
        done = {"type": "transcript.text.done", "text": text, **self._optional_fields()}
        yield {**done, "usage": self._tokens()}

    def _optional_fields(self) -> dict[str, Any]:
        """The fields of JSON and of the last event that are there only on request."""
        details: dict[str, Any] = {}
        if "token_logprobs" in self.request.options:
            details["logprobs"] = list(logprobs(self.transcript.segments, self.vocabulary))
        if self.request.openai_model == "gpt-transcribe":
            details["languages"] = [{"code": self.transcript.language}]
        return details

    def _verbose_json(self) -> dict[str, Any]:
        from slimwhisper.tokens.encoding import LANGUAGES

        request, transcript = self.request, self.transcript
        language = LANGUAGES.get(transcript.text_language, transcript.text_language)
        body = {**self._common_fields(), "language": language}
        if "segment" in request.granularities:
            hidden = () if request.words_inside else ("words",)
            segments = transcript.segment_rows()
            body["segments"] = [{k: v for k, v in s.items() if k not in hidden} for s in segments]
            body |= transcript.dropped_rows()
        if "word" in request.granularities:
            words = [word for s in transcript.segments for word in s.words or ()]
            body["words"] = [
                {"word": w.word.strip(), "start": w.start, "end": w.end} for w in words
            ]
        body["usage"] = self._duration()
        return body

    def _common_fields(self) -> dict[str, Any]:
        """The first fields of both formats with segments."""
        seconds = round(self.seconds, 3)
        return {"task": self.request.options["task"], "duration": seconds, "text": self.text}

    def _speaker_segments(self) -> Iterator[dict[str, Any]]:
        """The segments with text, and their speakers: unknown voices are named A, B, ..."""
        names = {reference.name for reference in self.request.references}
        letters: dict[str | None, str] = {}  # enough for `MOST_SPEAKERS`
        for segment in self.transcript.segments:
            if not segment.text.strip():
                continue
            speaker = segment.speaker
            if speaker not in names and "channels" not in self.request.options:
                speaker = letters.setdefault(speaker, ascii_uppercase[len(letters)])
            yield {
                "type": "transcript.text.segment",
                "id": f"seg_{segment.id:03}",
                "start": segment.start,
                "end": segment.end,
                "text": segment.text.strip(),
                "speaker": speaker,
            }

    def _usage(self) -> dict[str, Any]:
        """In tokens where OpenAI bills by them: for its models named "gpt...". Else, in seconds."""
        return self._tokens() if self.request.openai_model.startswith("gpt") else self._duration()

    def _duration(self) -> dict[str, Any]:
        """In whole seconds."""
        return {"type": "duration", "seconds": round(self.seconds)}

    def _tokens(self) -> dict[str, Any]:
        """Tokens of this model: encoder positions, the prompt, and the decoded tokens."""
        options, tokenizer = self.request.options, self.vocabulary.tokenizer()
        prompts = (options.get("initial_prompt"), options.get("hotwords"))
        text = sum(len(prompt_tokens(tokenizer, p)) for p in prompts)
        audio = math.ceil(self.seconds * POSITIONS_PER_SECOND)
        sampled = sum(len(s.tokens) for s in self.transcript.segments)
        return {
            "type": "tokens",
            "input_tokens": audio + text,
            "input_token_details": {"audio_tokens": audio, "text_tokens": text},
            "output_tokens": sampled,
            "total_tokens": audio + text + sampled,
        }


def logprobs(segments: Iterable[Segment], vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """The text's tokens, without timestamps: as text, as bytes, and their log-probabilities."""
    tokenizer = vocabulary.tokenizer()
    for segment in segments:
        for token, logprob in zip(segment.tokens, segment.token_logprobs or (), strict=True):
            if vocabulary.is_text(token):
                data = token_bytes(tokenizer, token)
                text = data.decode(errors="replace")  # a token may end within a character
                yield {"token": text, "bytes": list(data), "logprob": logprob}


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The UTF-8 bytes of a text token."""
    encoding: Any = tokenizer.encoding
    if hasattr(encoding, "decode_single_token_bytes"):  # tiktoken's
        return bytes(encoding.decode_single_token_bytes(token))
    piece = str(encoding.fast.id_to_token(token) or "")
    if type(encoding.fast.decoder).__name__ == "ByteLevel":
        with suppress(ValueError):  # a letter that stands for no byte
            return bytes(map(byte_letters().index, piece))
    elif piece.startswith("<0x") and len(piece) == 6:  # SentencePiece's single bytes
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()


# -- from the request to the response ------------------------------------------------------------

DISCONNECT_POLL = 0.5  # seconds between checks that the client is still connected
HEARTBEAT = 15.0  # seconds after which a stream sends a comment; proxies give up after 30 or 60
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
        schedule: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
        listener = partial(schedule, self._events.put_nowait)
        upload = transcription.upload
        path, name = open_path(upload.file), display_name(upload.filename)
        model, options, mix = transcription.model, transcription.options, transcription.mix_instead
        self.job = Job(path, name, model, options, client.name, listener, mix_instead=mix)
        service.submit(self.job)

    async def next(self, patience: float = math.inf) -> Event | None:
        """The job's next event; None if there is none for `patience` seconds. Raises APIError if
        the job fails or takes too long, or if the client disconnects.
        """
        until = time.monotonic() + patience
        while time.monotonic() < until:
            # also after an event: a quick job has events more often than the poll
            if self._client.is_gone is not None and await self._client.is_gone():
                raise APIError(499, "the client disconnected", "client_closed_request")
            if time.monotonic() > self._deadline:
                raise APIError(504, f"not transcribed within {self._client.timeout:g} s", "timeout")
            with suppress(TimeoutError):
                async with asyncio.timeout(DISCONNECT_POLL):  # `wait_for` may lose a cancellation
                    event = await self._events.get()
                if isinstance(event, Failed):
                    raise failure(self.transcription, event.error)
                if isinstance(event, JobStarted):
                    said, label = self.job.warnings, f"{self.job.name}: "
                    self.transcription.warnings += [text.removeprefix(label) for text in said]
                    self.transcription.channels = self.job.channels
                if isinstance(event, Progress) and self.job.recording is not None:
                    self.progress = event.news[1] / max(self.job.recording.seconds, 1e-9)
                return event
        return None

    async def full_response(self) -> Response:
        """The response, after the job has ended. Raises APIError."""
        while not isinstance(event := await self.next(), Finished):
            pass
        return self._result(event).response()

    async def event_stream(self) -> AsyncIterator[str]:
        """OpenAI's server-sent events: one delta per segment, then the whole text; and comments
        while there is nothing to tell.
        """
        heard = ""
        try:
            while not isinstance(event := await self.next(HEARTBEAT), Finished):
                if event is None:
                    yield ": still at work\n\n"
                for segment in event.news[0] if isinstance(event, Progress) else ():
                    before, heard = heard.strip(), heard + segment.text
                    yield _sse(self._delta(heard.strip()[len(before) :], segment))
            for content in self._result(event).last_events():
                yield _sse(content)
        except APIError as error:
            yield _sse(error.body())
        yield "data: [DONE]\n\n"

    def _delta(self, text: str, segment: Segment) -> dict[str, Any]:
        """The event of a segment. text: all that it adds to the text before, without spaces around
        the whole.
        """
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
        if "token_logprobs" in self.transcription.options:
            assert self.job.recording is not None
            event["logprobs"] = list(logprobs([segment], self.job.recording.vocabulary))
        return event

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


Read = Callable[[FormData, Models], TranscriptionRequest]
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
        transcription = read(form, host.models)
        transcription.accept = transcription.accept or client.accept
        if transcription.references:
            transcription.options["known_speakers"] = await asyncio.to_thread(
                store_references, transcription.references, host.service.reading.read, stack
            )
        if transcription.convert is not None:
            name = transcription.upload.filename
            file = await asyncio.to_thread(transcription.convert, transcription.upload.file)
            transcription.upload = UploadFile(stack.enter_context(file), filename=name)
        await asyncio.to_thread(transcription.upload.file.fileno)  # moves the upload to disk
        pending = PendingTranscription(host.service, client, transcription)
        stack.callback(host.service.cancel, pending.job)
        # the recording has been read; a stream does not wait long for that, so that it can beat
        await pending.next(HEARTBEAT if transcription.stream else math.inf)
        if not transcription.stream:
            return await answer(pending)
        held, events = stack.pop_all(), pending.event_stream()
        return EventStream(events, held, transcription.headers())


def _sse(content: dict[str, Any]) -> str:
    kind = content.get("type", "error")  # some programs read only events with their names
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"
