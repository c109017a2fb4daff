"""A websocket with a live stream: reads the client's messages, and sends what the stream says."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.connections import Allowance
from slimwhisper.app.realtime.stream_feed import POLL, SoundFormat, StreamFeed
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import ModelChoice, StoppingError
from slimwhisper.errors import SlimWhisperError
from slimwhisper.live.types import LiveEvent, LiveOptions, StreamFailed

logger = logging.getLogger("slimwhisper.serve")

MAX_MESSAGE = 1 << 20  # characters of an event
MAX_EVENTS = 200  # of the client per second; further ones are read later
MAX_UNREAD = 2000  # events of the server that the client has not read
CLOSING = 5.0  # seconds for a client to read its last events

NORMAL, GOING_AWAY, POLICY, TOO_BIG, INTERNAL, TRY_LATER = 1000, 1001, 1008, 1009, 1011, 1013


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why the server ends a session."""

    code: int  # of the close
    error: APIError | None = None  # sent before the close
    last_texts: bool = False  # whether the remaining audio is transcribed first


class StreamSocket:
    """A session. Its state belongs to the event loop, where the stream's events arrive, too.

    A subclass is an API: it opens the stream, before the websocket is accepted, and implements
    `handle`, `translate` and `refuse`.
    """

    def __init__(self, websocket: WebSocket, host: ServerHost) -> None:
        self._websocket, self._host, self._settings = websocket, host, host.settings
        self._deadline = time.monotonic() + host.settings.session_seconds
        self._idle_deadline = time.monotonic() + host.settings.idle_seconds
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()  # None: the last
        self._ending: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._stream_ended = asyncio.Event()

    headers: Sequence[tuple[bytes, bytes]] = ()  # of the answer that accepts the websocket

    async def handle(self, message: dict[str, Any]) -> None:
        """Handle a message of the client. Raises APIError, SlimWhisperError."""
        raise NotImplementedError

    def translate(self, event: LiveEvent) -> None:
        """Emit what an event of the stream is in this API."""
        raise NotImplementedError

    def refuse(self, error: APIError) -> None:
        """Emit an error."""
        raise NotImplementedError

    def begin(self, choice: ModelChoice, options: LiveOptions, format: SoundFormat) -> None:
        """Begin a stream. Raises SlimWhisperError, APIError."""
        self._feed = StreamFeed(self._host.service, choice, options, format, self._on_event)

    def keep_alive(self) -> None:
        """The client is there."""
        self._idle_deadline = time.monotonic() + self._settings.idle_seconds

    def end(self, end: SessionEnd) -> None:
        """End the session; only the first call has an effect."""
        if not self._ending.done():
            self._ending.set_result(end)

    async def run(self, subprotocol: str | None) -> None:
        """Accept the websocket, and serve it until the session ends."""
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._websocket.accept(subprotocol, self.headers)
            tasks = [asyncio.create_task(t) for t in (self._read(), self._write())]
            reader, writer = tasks
            await asyncio.wait([*tasks, self._ending], return_when=asyncio.FIRST_COMPLETED)
            if self._ending.done():
                reader.cancel()
                await self._close(self._ending.result(), writer)
            else:  # the client has disconnected, or a task has failed
                (reader if reader.done() else writer).result()
        except WebSocketDisconnect:
            pass
        finally:
            self._feed.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self, end: SessionEnd, writer: asyncio.Task[None]) -> None:
        """Send the last events, then close."""
        if end.last_texts:
            with suppress(SlimWhisperError):
                self._feed.finish()
                await self._wait_for_last_texts()
        if end.error is not None:
            self.refuse(end.error)
        for event in self.last_events():
            self.emit(event)
        self._out.put_nowait(None)
        await asyncio.wait([writer], timeout=CLOSING)
        if writer.done():
            writer.result()  # raises if the client has disconnected
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._websocket.close(end.code, str(end.error or "")[:100])

    async def _wait_for_last_texts(self) -> None:
        """Wait for the stream's end; a service that stops brings it. Raises WebSocketDisconnect."""
        waits = [asyncio.create_task(t) for t in (self._stream_ended.wait(), self._disconnected())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        if not self._stream_ended.is_set():
            raise WebSocketDisconnect

    async def _disconnected(self) -> None:
        """Wait until the client disconnects. What it sends has no effect any more."""
        with suppress(RuntimeError):  # it has already
            while (await self._websocket.receive())["type"] != "websocket.disconnect":
                pass

    def last_events(self) -> list[dict[str, Any]]:
        """What is sent at the end of a session."""
        return []

    # -- from the stream ---------------------------------------------------------------------

    def _on_event(self, event: LiveEvent | None) -> None:
        if event is None:
            self._stream_ended.set()
            return
        self.translate(event)
        if isinstance(event, StreamFailed):
            self._stream_ended.set()
            stopping = isinstance(event.error, StoppingError)
            self.end(SessionEnd(GOING_AWAY if stopping else INTERNAL, as_api_error(event.error)))

    # -- to the client -----------------------------------------------------------------------

    def emit(self, event: dict[str, Any]) -> None:
        """Send an event, once those before it are sent."""
        if self._out.qsize() >= MAX_UNREAD:
            message = f"{MAX_UNREAD} events are unread; read events as they arrive"
            self.end(SessionEnd(TRY_LATER, APIError(429, message, "too_many_unread_events")))
            return
        self._out.put_nowait(event)

    async def _write(self) -> None:
        while (event := await self._out.get()) is not None:
            await self._websocket.send_text(json.dumps(event, ensure_ascii=False))

    # -- from the client ---------------------------------------------------------------------

    async def _read(self) -> None:
        """Handle the client's messages until it disconnects or the session ends."""
        allowance = Allowance(MAX_EVENTS, MAX_EVENTS)
        while (message := await self._receive(allowance)) is not None:
            if self._ending.done():
                return
            try:
                if len(message.get("text") or message.get("bytes") or "") > MAX_MESSAGE:
                    reason = "the event is larger than 1 MiB; send less audio at a time"
                    raise APIError(413, reason, "too_large")
                await self.handle(message)
            except (APIError, SlimWhisperError) as error:
                api_error = as_api_error(error)
                self.refuse(api_error)
                if api_error.status_code == 413:
                    self.end(SessionEnd(TOO_BIG))
                    return
            except Exception as error:
                logger.exception("a realtime session failed")
                self.end(SessionEnd(INTERNAL, as_api_error(error)))
                return

    async def _receive(self, allowance: Allowance) -> dict[str, Any] | None:
        """The next message; None at the end of the connection or of the session."""
        await asyncio.sleep(allowance.take())
        deadline = min(self._idle_deadline, self._deadline)
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                message = await self._websocket.receive()
        except TimeoutError:
            if deadline == self._deadline:
                minutes = f"{self._settings.session_seconds / 60:g}"
                reason = f"the session reached its limit of {minutes} minutes; open another session"
                error = APIError(400, reason, "session_expired")
            else:
                reason = f"no audio for {self._settings.idle_seconds:g} s; open another session"
                error = APIError(400, reason, "session_idle")
            self.end(SessionEnd(POLICY, error, last_texts=True))
            return None
        return None if message["type"] == "websocket.disconnect" else dict(message)

    async def heard_all(self, speaking: Callable[[], bool]) -> None:
        """Wait until the stream has heard its audio, and no utterance is open: `speaking`."""
        while self._feed.stream.backlog > 0 or speaking():
            await asyncio.sleep(POLL)
        await asyncio.sleep(POLL)  # events are on their way

    async def append(self, data: bytes) -> float:
        """Append audio to the stream. Returns its seconds. Raises BusyError."""
        seconds = await self._feed.append(data)
        self.keep_alive()
        return seconds
