"""The Wyoming protocol, by which Home Assistant asks for transcripts: describe, transcribe, audio.

It has no authentication: whoever reaches the port may use it.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import Fields, check, one_of
from slimwhisper.app.api.request import choose_model
from slimwhisper.app.connections import listen
from slimwhisper.app.realtime.feed import feed
from slimwhisper.app.realtime.frames import MAX_LINE, Frame, FrameError, read_frame
from slimwhisper.app.realtime.sound import MAX_CHANNELS, Decoder, Format
from slimwhisper.app.realtime.wyoming_info import info
from slimwhisper.app.service.jobs import ModelChoice, StoppingError
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from slimwhisper.app.service.streams import LiveStream
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.live.types import Ended, Failed, LiveEvent, LiveOptions, Text

logger = logging.getLogger("slimwhisper.serve")

MAX_CONNECTIONS = 256
UNREAD = 20.0  # seconds in which a client must read what it is sent
CLOSING = 5.0  # seconds for the clients to be told that the server stops
CODINGS = {2: "pcm16", 4: "pcm32"}  # by bytes of a sample
RATES = 8_000, 192_000
MAX_TERMS, MAX_TERM = 100, 100


class Transcribe(Fields):
    """What a client asks for."""

    name: str | None = None
    language: str | None = None
    transcript_names: Any = None
    transcript_terms: Any = None


class AudioFormat(Fields):
    """How samples are sent."""

    rate: int = Field(ge=RATES[0], le=RATES[1])
    width: Annotated[int, one_of(CODINGS)]  # bytes of a sample
    channels: int = Field(ge=1, le=MAX_CHANNELS)


class Wyoming:
    """The server of the protocol: a port, and its connections."""

    def __init__(self, service: Service, models: Models, settings: Settings) -> None:
        self._service, self._models, self._settings = service, models, settings
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
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
        logger.info("Wyoming protocol on tcp://%s:%s; it asks for no key", host, port)

    async def stop(self) -> None:
        """Listen no more, and end all connections: recordings that are whole get their transcript,
        the others the text of what was heard; then the clients are told. Who does not read that is
        dropped.
        """
        if self._server is not None:
            self._server.close()
        self._stopping.set()
        if self._tasks:
            patience = self._settings.patience + CLOSING
            _, running = await asyncio.wait(self._tasks, timeout=patience)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer, self._service, self._models, self._settings)
        try:
            if len(self._tasks) > MAX_CONNECTIONS:
                await connection.refuse("busy", "too many connections; try again in a minute")
            else:
                await self._serve(connection)
        except ConnectionError:
            pass
        finally:
            connection.close()
            self._tasks.discard(task)
            writer.close()
            try:
                async with asyncio.timeout(1):
                    await writer.wait_closed()
            except (ConnectionError, TimeoutError):
                writer.transport.abort()

    async def _serve(self, connection: "Connection") -> None:
        """Answer a client until it disconnects or the server stops."""
        tasks = [asyncio.create_task(t) for t in (connection.run(), self._stopping.wait())]
        running = tasks[0]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if running.cancelled():
            await connection.leave()
        else:
            running.result()


class Connection:
    """One client; it may ask for one transcript after another."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        service: Service,
        models: Models,
        settings: Settings,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._service, self._models, self._settings = service, models, settings
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, Any] = {}  # by the last `transcribe`
        self._stream: LiveStream | None = None
        self._decoder = Decoder(Format())
        self._telling: asyncio.Task[None] | None = None
        self._began = time.monotonic()
        self._whole = False  # whether audio-stop came

    async def run(self) -> None:
        """Answer the client's events until it disconnects."""
        while True:
            try:
                async with asyncio.timeout(self._settings.idle_seconds):
                    frame = await read_frame(self._reader)
                if frame is None:
                    return
                await self._handle(frame)
            except TimeoutError:
                seconds = f"{self._settings.idle_seconds:g}"
                return await self.refuse("idle", f"nothing was sent for {seconds} s")
            except FrameError as error:  # where the next event begins is not known
                return await self.refuse("invalid_event", str(error))
            except APIError as error:
                await self.refuse(error.code or "invalid_request", str(error))
                self.close()
            except SlimWhisperError as error:
                await self.refuse(type(error).__name__, str(error))
                self.close()

    async def refuse(self, code: str, text: str) -> None:
        """Tell what is wrong."""
        await self._send("error", text=text, code=code)

    async def leave(self) -> None:
        """The server stops: send the last text, and say so."""
        if self._stream is not None and self._telling is not None:
            self._stream.append(self._decoder.flush())
            self._stream.finish()
            await asyncio.wait([self._telling], timeout=self._settings.patience)
        await self.refuse("stopping", "the server is shutting down; connect again in a minute")

    def close(self) -> None:
        """Drop the stream, if there is one."""
        if self._telling is not None:
            self._telling.cancel()
        if self._stream is not None:
            self._stream.close()
        self._stream = self._telling = None

    async def _send(self, type: str, **data: Any) -> None:
        """Send an event. Raises ConnectionError if the client has gone, or does not read."""
        self._writer.write(Frame(type, data).encoded())
        try:
            async with asyncio.timeout(UNREAD):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionAbortedError from None

    async def _handle(self, frame: Frame) -> None:
        """Do what an event asks for; others than these are for other services, and ignored."""
        match frame.type:
            case "describe":
                await self._send("info", **info(self._service, self._models))
            case "ping":
                await self._send("pong", text=frame.data.get("text"))
            case "transcribe":
                self._asked = frame.data
            case "audio-start":
                self.close()
                self._begin(_format(frame.data))
            case "audio-chunk":
                await self._hear(frame)
            case "audio-stop":
                await self._finish()

    def _begin(self, format: Format) -> None:
        """Open the stream. Raises SlimWhisperError, APIError."""
        events: asyncio.Queue[LiveEvent | None] = asyncio.Queue()

        def listener(event: LiveEvent | None) -> None:
            self._loop.call_soon_threadsafe(events.put_nowait, event)

        choice, options = self._wanted()
        peer = self._writer.get_extra_info("peername")
        user = str(peer[0]) if peer else ""
        self._decoder, self._began, self._whole = Decoder(format), time.monotonic(), False
        self._stream = self._service.open_stream(choice, options, user, listener)
        self._telling = asyncio.create_task(self._tell(events))

    def _wanted(self) -> tuple[ModelChoice, LiveOptions]:
        """The model and the options of the last `transcribe`."""
        asked = check(Transcribe, self._asked, "transcribe")
        choice = choose_model(asked.name, self._models)[0]
        terms = [*_texts(asked.transcript_names), *_texts(asked.transcript_terms)]
        hotwords = ", ".join(terms) or None
        return choice, replace(
            self._settings.live, language=asked.language or None, hotwords=hotwords
        )

    async def _hear(self, frame: Frame) -> None:
        format = _format(frame.data)
        if self._telling is not None and self._telling.done():
            return  # the stream has failed, which was told
        if self._stream is None:  # older clients send no audio-start
            self._begin(format)
        assert self._stream is not None
        if format != self._decoder.format:
            await feed(self._stream, self._decoder.flush())
            self._decoder = Decoder(format)
        if time.monotonic() - self._began > self._settings.session_seconds:
            minutes = f"{self._settings.session_seconds / 60:g}"
            raise AudioError(f"the recording is longer than the limit of {minutes} minutes")
        await feed(self._stream, self._decoder.decode(frame.payload))

    async def _finish(self) -> None:
        """The recording is over: wait for its text."""
        if self._stream is None:
            raise APIError(400, "audio-stop came before any audio", "invalid_request")
        assert self._telling is not None
        await feed(self._stream, self._decoder.flush())
        self._stream.finish()
        self._whole = True
        await asyncio.wait([self._telling])
        self._telling.result()
        self.close()

    async def _tell(self, events: "asyncio.Queue[LiveEvent | None]") -> None:
        """Send the text as it is committed, then all of it; the client may have gone."""
        with suppress(ConnectionError):
            await self._tell_all(events)

    async def _tell_all(self, events: "asyncio.Queue[LiveEvent | None]") -> None:
        parts: list[str] = []
        open_text, language = "", None
        await self._send("transcript-start")
        while (event := await events.get()) is not None:
            match event:
                case Text() if event.committed:
                    space = " " if parts and not open_text else ""
                    open_text += event.committed
                    await self._send("transcript-chunk", text=space + event.committed)
                case Ended() if event.text.strip():
                    parts.append(event.text.strip())
                    open_text, language = "", language or event.language
                case Failed(error=StoppingError()):
                    return  # `leave` tells
                case Failed():
                    await self.refuse(type(event.error).__name__, str(event.error))
                    return
        if not self._whole:
            return  # what is left of it is not taken for a transcript
        told = {"language": language} if language else {}
        await self._send("transcript", text=" ".join(parts), **told)
        await self._send("transcript-stop")


def _format(data: dict[str, Any]) -> Format:
    """How a chunk's samples are sent. Raises APIError."""
    found = check(AudioFormat, data, "audio")
    return Format(CODINGS[found.width], found.rate, found.channels)


def _texts(found: object) -> list[str]:
    """A list of words to expect; what is too long is cut, as they are only hints."""
    if not isinstance(found, list):
        return []
    return [text[:MAX_TERM] for text in found[:MAX_TERMS] if isinstance(text, str)]
