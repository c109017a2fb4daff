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

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import Fields, check, one_of
from slimwhisper.app.api.request import choose_model
from slimwhisper.app.connections import listen
from slimwhisper.app.realtime.feed import Feed
from slimwhisper.app.realtime.frames import MAX_LINE, Frame, FrameError, encoded, read_frame
from slimwhisper.app.realtime.sound import MAX_CHANNELS, Format
from slimwhisper.app.realtime.wyoming_info import info
from slimwhisper.app.service.host import Host
from slimwhisper.app.service.jobs import StoppingError
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.live.types import Ended, Failed, LiveEvent, Text

logger = logging.getLogger("slimwhisper.serve")

MAX_CONNECTIONS = 256
UNREAD = 20.0  # seconds in which a client must read what it is sent
CLOSING = 5.0  # seconds for the clients to be told that the server stops
CODINGS = {2: "PCM_16", 4: "PCM_32"}  # by bytes of a sample
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

    def __init__(self, host: Host) -> None:
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
        logger.info("Wyoming protocol on tcp://%s:%s; it asks for no key", host, port)

    async def stop(self) -> None:
        """Listen no more, and end all connections: recordings that are whole get their transcript,
        the others the text of what was heard; then the clients are told. Who does not read that is
        dropped.
        """
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            patience = self._settings.patience + CLOSING
            _, running = await asyncio.wait(self._tasks, timeout=patience)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client until it disconnects or the server stops."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer, self._host)
        try:
            if len(self._tasks) > MAX_CONNECTIONS:
                await connection.refuse("busy", "too many connections; try again in a minute")
            else:
                await connection.run()
        except asyncio.CancelledError:  # the server stops
            with suppress(ConnectionError):
                await connection.leave()
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


class Connection:
    """One client; it may ask for one transcript after another."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: Host
    ) -> None:
        self._reader, self._writer = reader, writer
        self._host, self._settings = host, host.settings
        self._asked: dict[str, Any] = {}  # by the last `transcribe`
        self._feed: Feed | None = None
        self._telling: asyncio.Task[None] | None = None
        self._ends = 0.0  # when the recording is too long
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
            except (APIError, SlimWhisperError) as error:
                found = as_api_error(error)
                await self.refuse(found.code or "invalid_request", str(found))
                self.close()

    async def refuse(self, code: str, text: str) -> None:
        """Tell what is wrong."""
        await self._send("error", text=text, code=code)

    async def leave(self) -> None:
        """The server stops: send the last text, and say so."""
        if self._feed is not None and self._telling is not None:
            self._feed.finish()
            await asyncio.wait([self._telling], timeout=self._settings.patience)
        await self.refuse("stopping", "the server is shutting down; connect again in a minute")

    def close(self) -> None:
        """Drop the stream, if there is one."""
        if self._telling is not None:
            self._telling.cancel()
        if self._feed is not None:
            self._feed.close()
        self._feed = self._telling = None

    async def _send(self, type: str, **data: Any) -> None:
        """Send an event. Raises ConnectionError if the client has gone, or does not read."""
        self._writer.write(encoded(type, data))
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
                await self._send("info", **info(self._host))
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

    def _begin(self, format: Format) -> Feed:
        """The stream that the last `transcribe` asked for. Raises SlimWhisperError, APIError."""
        asked = check(Transcribe, self._asked, "transcribe")
        choice = choose_model(asked.name, self._host.models)[0]
        terms = [*_texts(asked.transcript_names), *_texts(asked.transcript_terms)]
        options = replace(
            self._settings.live,
            language=asked.language or None,
            hotwords=", ".join(terms) or None,
        )
        events: asyncio.Queue[LiveEvent | None] = asyncio.Queue()
        feed = Feed(self._host.service, choice, options, format, events.put_nowait)
        self._ends, self._whole = time.monotonic() + self._settings.session_seconds, False
        self._feed, self._telling = feed, asyncio.create_task(self._tell(events))
        return feed

    async def _hear(self, frame: Frame) -> None:
        format = _format(frame.data)
        if self._telling is not None and self._telling.done():
            return  # the stream has failed, which was told
        feed = self._feed or self._begin(format)  # older clients send no audio-start
        await feed.change(format)
        if time.monotonic() > self._ends:
            minutes = f"{self._settings.session_seconds / 60:g}"
            raise AudioError(f"the recording is longer than the limit of {minutes} minutes")
        await feed.append(frame.payload)

    async def _finish(self) -> None:
        """The recording is over: wait for its text."""
        if self._feed is None or self._telling is None:
            raise APIError(400, "audio-stop came before any audio", "invalid_request")
        await self._feed.flush()
        self._feed.finish()
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
