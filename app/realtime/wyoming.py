"""Serves the Wyoming protocol, by which Home Assistant requests transcripts: its port, its clients,
and what they are told of the models.

It has no authentication: every client that reaches the port may use it. A frame
(github.com/OHF-Voice/wyoming, version 1.10) is a line of JSON with its type, then "data_length"
bytes of JSON, then "payload_length" bytes of audio. The `wyoming` package would read frames of any
length; this module limits them.
"""

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import NULL_IS_DEFAULT, LenientModel, check, json_object, one_of
from slimwhisper.app.api.request import choose_model
from slimwhisper.app.connections import listen
from slimwhisper.app.realtime.stream_feed import MAX_CHANNELS, SoundFormat, StreamFeed
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import StoppingError
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.formats.names import BUNDLED, HUB_MODELS
from slimwhisper.live.types import LiveEvent, StreamFailed, TextUpdate, UtteranceEnded

logger = logging.getLogger("slimwhisper.serve")

MAX_CONNECTIONS = 256
CLOSING = 5.0  # seconds to send the clients the error of a shutdown
UNREAD = 20.0  # seconds in which a client must read the events
CODINGS = {2: "PCM_16", 4: "PCM_32"}  # by bytes of a sample
RATES = 8_000, 192_000
MAX_TERMS, MAX_TERM = 100, 100
MAX_LINE = 1 << 16  # bytes, including inline data
MAX_PART = 1 << 20  # bytes of data, and of a payload
Length = Annotated[int, Field(ge=0, le=MAX_PART), NULL_IS_DEFAULT]


class FrameError(SlimWhisperError):
    """The input is not a frame of the protocol, so the start of the next one is unknown."""


class Head(LenientModel):
    """The line of a frame."""

    type: str
    data: Annotated[dict[str, Any], NULL_IS_DEFAULT] = Field(default={})
    data_length: Length = 0
    payload_length: Length = 0


class Frame(NamedTuple):
    """A received event."""

    type: str
    data: dict[str, Any]
    payload: bytes


def encoded(type: str, data: dict[str, Any]) -> bytes:
    """The bytes of an event without audio."""
    data_bytes = json.dumps(data, ensure_ascii=False).encode() if data else b""
    head = {"type": type, **({"data_length": len(data_bytes)} if data else {})}
    return json.dumps(head).encode() + b"\n" + data_bytes


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None at the end of the connection.

    The reader's limit must be at least `MAX_LINE`. Raises FrameError, and APIError if only the data
    is not JSON: the next frame can be read.
    """
    line = b""
    try:
        line = await reader.readuntil(b"\n")
        head = check(Head, json_object(line, "an event"), "an event")
        data_bytes = await reader.readexactly(head.data_length)
        payload = await reader.readexactly(head.payload_length)
    except asyncio.IncompleteReadError as error:
        if line or error.partial:
            raise FrameError("the connection ended within an event") from None
        return None
    except asyncio.LimitOverrunError:
        raise FrameError(f"the line of an event is longer than {MAX_LINE} bytes") from None
    except APIError as error:
        raise FrameError(str(error)) from None
    data = json_object(data_bytes, "the data of an event") if data_bytes else {}
    return Frame(head.type, head.data | data, payload)


def info(host: ServerHost) -> dict[str, Any]:
    """The data of the event: the installed models, and their languages."""
    common = {
        "attribution": {"name": "OpenAI's Whisper", "url": "https://github.com/openai/whisper"},
        "installed": True,
        "version": None,
    }
    models = [
        {"name": n, "description": f"Whisper model {n}", "languages": _languages(n, host), **common}
        for n in host.models.installed()
    ]
    program = {
        "name": "slimwhisper",
        "description": "Whisper speech-to-text with a small decoder cache",
        "models": models,
        "supports_transcript_streaming": True,
        "requires_external_vad": True,  # a recording ends with audio-stop
        **common,
    }
    return {"asr": [program]}


def _languages(name: str, host: ServerHost) -> list[str]:
    """The codes of a model's languages: from the model if it is loaded, else by its name."""
    from slimwhisper.tokens.encoding import LANGUAGES

    loaded = host.service.engines.model
    if name == host.models.display_name and loaded is not None:
        return list(loaded.network.vocabulary.languages.values()) or ["en"]
    code = HUB_MODELS[name].language if name in HUB_MODELS else ""
    if code in LANGUAGES:
        return [code]
    return ["en"] if name.endswith(".en") or name in BUNDLED else list(LANGUAGES)


class Transcribe(LenientModel):
    """A client's request."""

    name: str | None = None
    language: str | None = None
    transcript_names: Any = None
    transcript_terms: Any = None


class WyomingFormat(LenientModel):
    """The format of the client's samples."""

    rate: int = Field(ge=RATES[0], le=RATES[1])
    width: Annotated[int, one_of(CODINGS)]  # bytes of a sample
    channels: int = Field(ge=1, le=MAX_CHANNELS)


class WyomingClient:
    """One client, which may request one transcript after another."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: ServerHost
    ) -> None:
        self._reader, self._writer = reader, writer
        self._host, self._settings = host, host.settings
        self._transcribe: dict[str, Any] = {}  # the data of the last `transcribe`
        self._feed: StreamFeed | None = None
        self._sender: asyncio.Task[None]  # of its text, while there is a feed
        self._deadline = 0.0  # of the recording's end
        self._complete = False  # whether audio-stop came
        self._refused = False  # whether the rest of the recording is ignored

    async def run(self) -> None:
        """Handle the client's events until it disconnects."""
        while True:
            await asyncio.sleep(0)  # events that are here already must not hold up other clients
            try:
                async with asyncio.timeout(self._settings.idle_seconds):
                    frame = await read_frame(self._reader)
                if frame is None:
                    return
                await self._handle(frame)
            except TimeoutError:
                seconds = f"{self._settings.idle_seconds:g}"
                return await self.refuse("idle", f"no event for {seconds} s; connect again")
            except FrameError as error:  # the start of the next event is unknown
                return await self.refuse("invalid_event", str(error))
            except (APIError, SlimWhisperError) as error:
                await self._refuse_event(error)

    async def refuse(self, code: str, text: str) -> None:
        """Send an error."""
        await self._send("error", text=text, code=code)

    async def _refuse_event(self, error: APIError | SlimWhisperError) -> None:
        api_error = as_api_error(error)
        await self.refuse(api_error.code or "invalid_request", str(api_error))

    async def shutdown(self) -> None:
        """At a shutdown: send the last text, then an error."""
        if self._feed is not None:
            self._feed.finish()
            await asyncio.wait([self._sender], timeout=self._settings.patience)
        await self.refuse("stopping", "the server is shutting down; connect again in a minute")

    def close(self) -> None:
        """Drop the stream, if there is one."""
        if self._feed is not None:
            self._sender.cancel()
            self._feed.close()
        self._feed = None

    async def _send(self, type: str, **data: Any) -> None:
        """Send an event. Raises ConnectionError if the client disconnected or does not read."""
        self._writer.write(encoded(type, data))
        try:
            async with asyncio.timeout(UNREAD):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionAbortedError from None

    async def _handle(self, frame: Frame) -> None:
        """Handle an event; events for other services are ignored."""
        match frame.type:
            case "describe":
                await self._send("info", **info(self._host))
            case "ping":
                await self._send("pong", text=frame.data.get("text"))
            case "transcribe":
                self._transcribe = frame.data
            case "audio-start" | "audio-chunk" | "audio-stop":
                await self._handle_audio(frame)

    async def _handle_audio(self, frame: Frame) -> None:
        """Handle an event of a recording. After an error its transcript is empty, as Home Assistant
        waits for one, and the rest of it is ignored: a command must not begin in the middle.
        """
        self._refused = self._refused and frame.type != "audio-start"
        try:
            match frame.type:
                case _ if self._refused:
                    pass
                case "audio-start":
                    self.close()
                    self._begin(_format(frame.data))
                case "audio-chunk":
                    await self._append(frame)
                case "audio-stop":
                    await self._finish()
        except (APIError, SlimWhisperError) as error:
            self._refused = True
            self.close()
            await self._refuse_event(error)
            await self._send_transcript("")
        self._refused = self._refused and frame.type != "audio-stop"

    def _begin(self, format: SoundFormat) -> StreamFeed:
        """Open the stream for the last `transcribe`. Raises SlimWhisperError, APIError."""
        request = check(Transcribe, self._transcribe, "transcribe")
        choice = choose_model(request.name, self._host.models)[0]
        terms = [*_texts(request.transcript_names), *_texts(request.transcript_terms)]
        options = replace(
            self._settings.live,
            language=request.language or None,
            hotwords=", ".join(terms) or None,
        )
        events: asyncio.Queue[LiveEvent | None] = asyncio.Queue()
        feed = StreamFeed(self._host.service, choice, options, format, events.put_nowait)
        self._deadline, self._complete = time.monotonic() + self._settings.session_seconds, False
        self._feed, self._sender = feed, asyncio.create_task(self._send_text(events))
        return feed

    async def _append(self, frame: Frame) -> None:
        format = _format(frame.data)
        if self._feed is not None and self._sender.done():
            return  # the stream has failed; its error was sent
        feed = self._feed or self._begin(format)  # older clients send no audio-start
        await feed.change(format)
        if time.monotonic() > self._deadline:
            minutes = f"{self._settings.session_seconds / 60:g}"
            raise AudioError(f"the recording is longer than the limit of {minutes} minutes")
        await feed.append(frame.payload)

    async def _finish(self) -> None:
        """End the recording, and wait for its text."""
        if self._feed is None:
            raise APIError(400, "audio-stop without audio; send audio first", "invalid_request")
        await self._feed.flush()
        self._feed.finish()
        self._complete = True
        await asyncio.wait([self._sender])
        self._sender.result()
        self.close()

    async def _send_text(self, events: "asyncio.Queue[LiveEvent | None]") -> None:
        """Send the text as it is committed, then the whole; the client may have disconnected."""
        parts: list[str] = []
        open_text, language = "", None
        with suppress(ConnectionError):
            await self._send("transcript-start")
            while (event := await events.get()) is not None:
                match event:
                    case TextUpdate() if event.committed:
                        space = " " if parts and not open_text else ""
                        open_text += event.committed
                        await self._send("transcript-chunk", text=space + event.committed)
                    case UtteranceEnded() if event.text.strip():
                        parts.append(event.text.strip())
                        open_text, language = "", language or event.language
                    case StreamFailed(error=StoppingError()):
                        return  # `shutdown` sends the error
                    case StreamFailed():
                        await self.refuse(type(event.error).__name__, str(event.error))
                        return await self._send_transcript("")
            if self._complete:  # else there is no final transcript
                fields = {"language": language} if language else {}
                await self._send_transcript(" ".join(parts), **fields)

    async def _send_transcript(self, text: str, **fields: str) -> None:
        await self._send("transcript", text=text, **fields)
        await self._send("transcript-stop")


def _format(data: dict[str, Any]) -> SoundFormat:
    """The format of a chunk's samples. Raises APIError."""
    format = check(WyomingFormat, data, "audio")
    return SoundFormat(CODINGS[format.width], format.rate, format.channels)


def _texts(value: object) -> list[str]:
    """Words to expect. Long lists and words are cut, as they are only hints."""
    texts = value[:MAX_TERMS] if isinstance(value, list) else ()
    return [text[:MAX_TERM] for text in texts if isinstance(text, str)]


class Wyoming:
    """The server of the protocol: a port, and its connections."""

    def __init__(self, host: ServerHost) -> None:
        self._host, self._settings = host, host.settings
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises OptionError if the port cannot be used."""
        host, port = self._settings.host, self._settings.wyoming
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, limit=MAX_LINE, backlog=1
            )
        except OSError as error:
            raise OptionError(f"--wyoming {port}: {error.strerror}; choose another port") from error
        listen(self._server)
        logger.info("Wyoming protocol on tcp://%s:%s, without authentication", host, port)

    async def stop(self) -> None:
        """Stop listening, and end all connections: complete recordings get their transcript, the
        others the text so far; then the clients get an error. Clients that do not read are dropped.
        """
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            timeout = self._settings.patience + CLOSING
            _, running = await asyncio.wait(self._tasks, timeout=timeout)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it disconnects or the server stops."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = WyomingClient(reader, writer, self._host)
        try:
            if len(self._tasks) > MAX_CONNECTIONS:
                await connection.refuse("busy", "too many connections; try again in a minute")
            else:
                await connection.run()
        except asyncio.CancelledError:  # the server stops
            with suppress(ConnectionError, asyncio.CancelledError):  # at the second, at once
                await connection.shutdown()
        except ConnectionError:
            pass
        finally:
            connection.close()
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()
            writer.transport.abort()  # also when the server waits no longer; until then it waits
            self._tasks.discard(task)
