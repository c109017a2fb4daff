"""Serves one websocket of `/v1/realtime`: reads the client's events, sends the server's."""

import asyncio
import base64
import binascii
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from slimwhisper.app.api.errors import APIError, as_api_error, internal_error
from slimwhisper.app.api.fields import json_object, refused, unsupported
from slimwhisper.app.framing import Allowance
from slimwhisper.app.realtime.conversation import (
    Conversation,
    ServerEvent,
    error_event,
    make_id,
    server_event,
)
from slimwhisper.app.realtime.session import (
    SessionConfig,
    from_beta,
    session_object,
    update_session,
)
from slimwhisper.app.realtime.stream_feed import POLL, StreamFeed
from slimwhisper.app.service.host import ServerHost
from slimwhisper.app.service.jobs import StoppingError
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.live.types import LiveEvent, StreamFailed

logger = logging.getLogger("slimwhisper.serve")

MAX_MESSAGE = 1 << 20  # characters of an event
MAX_ID = 512  # characters of its event_id
MAX_EVENTS = 200  # of the client per second; further ones are read later
MAX_UNREAD = 2000  # events of the server that the client has not read
CLOSING = 5.0  # seconds for a client to read its last events

GOING_AWAY, POLICY, TOO_BIG, INTERNAL, TRY_LATER = 1001, 1008, 1009, 1011, 1013

# Events of the API for conversations, which a transcription session does not support
UNSUPPORTED = ("conversation.", "response.", "output_audio_buffer.")


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why the server ends a session."""

    code: int  # of the close
    error: APIError | None = None  # sent before the close
    last_texts: bool = False  # whether the remaining audio is transcribed first


class Connection:
    """A session. Its state belongs to the event loop, where the stream's events arrive, too."""

    def __init__(self, websocket: WebSocket, config: SessionConfig, host: ServerHost) -> None:
        """Open the stream, before the websocket is accepted. Raises SlimWhisperError, APIError."""
        self._websocket, self._host, self._settings = websocket, host, host.settings
        self._identity = make_id("sess"), int(time.time() + host.settings.session_seconds)
        self._deadline = time.monotonic() + host.settings.session_seconds
        self._idle_deadline = time.monotonic() + host.settings.idle_seconds
        self._failed = False
        self._out: asyncio.Queue[ServerEvent | None] = asyncio.Queue()  # None: the last
        self._ending: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._stream_ended = asyncio.Event()
        self._open(config)

    def _open(self, config: SessionConfig) -> None:
        """Begin the stream. Raises SlimWhisperError, APIError."""
        choice, options = config.choice(self._host.models), config.options(self._settings.live)
        self._feed = StreamFeed(self._host.service, choice, options, config.format, self._on_event)
        self._conversation = Conversation(config)

    def end(self, end: SessionEnd) -> None:
        """End the session; only the first call has an effect."""
        if not self._ending.done():
            self._ending.set_result(end)

    async def run(self, subprotocol: str | None) -> None:
        """Accept the websocket, and serve it until the session ends."""
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._websocket.accept(subprotocol)
            self._emit(server_event("session.created", session=self._session_object()))
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
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stream_ended.wait(), self._settings.patience)
        if end.error is not None and not self._failed:  # else the stream's error was sent
            self._emit(error_event(end.error))
        self._out.put_nowait(None)
        await asyncio.wait([writer], timeout=CLOSING)
        if writer.done():
            writer.result()  # raises if the client has disconnected
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._websocket.close(end.code, str(end.error or "")[:100])

    # -- from the stream ---------------------------------------------------------------------

    def _on_event(self, event: LiveEvent | None) -> None:
        if event is None:
            self._stream_ended.set()
            return
        for item_event in self._conversation.events(event):
            self._emit(item_event)
        if isinstance(event, StreamFailed):
            self._failed = True
            self._stream_ended.set()
            stopping = isinstance(event.error, StoppingError)
            self.end(SessionEnd(GOING_AWAY if stopping else INTERNAL))

    # -- to the client -----------------------------------------------------------------------

    def _emit(self, event: ServerEvent) -> None:
        if self._out.qsize() >= MAX_UNREAD:
            message = f"{MAX_UNREAD} events are unread; read events as they arrive"
            self.end(SessionEnd(TRY_LATER, APIError(429, message, "too_many_unread_events")))
            return
        self._out.put_nowait(event)

    async def _write(self) -> None:
        while (event := await self._out.get()) is not None:
            await self._websocket.send_text(json.dumps(event, ensure_ascii=False))

    def _session_object(self, unknown: list[str] | None = None) -> dict[str, Any]:
        return session_object(self._conversation.config, *self._identity, unknown)

    # -- from the client ---------------------------------------------------------------------

    async def _read(self) -> None:
        """Handle the client's events until it disconnects or the session ends."""
        allowance = Allowance(MAX_EVENTS, MAX_EVENTS)
        while (message := await self._receive(allowance)) is not None:
            event_id: str | None = None
            try:
                event = parse_event(message)
                event_id = event_id_of(event)
                await self._handle(event)
            except (APIError, SlimWhisperError) as error:
                api_error = as_api_error(error)
                self._emit(error_event(api_error, event_id))
                if api_error.status == 413:
                    self.end(SessionEnd(TOO_BIG))
                    return
            except Exception:
                logger.exception("a realtime session failed")
                self.end(SessionEnd(INTERNAL, internal_error()))
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

    async def _handle(self, event: dict[str, Any]) -> None:
        """Handle one event. Raises APIError, SlimWhisperError."""
        match event.get("type"):
            case "input_audio_buffer.append":
                await self._append(event)
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._feed.clear()
                for item_event in self._conversation.clear():
                    self._emit(item_event)
            case "session.update":
                await self._update(event.get("session"), "session.updated")
            case "transcription_session.update":
                session = from_beta(event.get("session"))
                await self._update(session, "transcription_session.updated")
            case str(other) if other.startswith(UNSUPPORTED):
                raise unsupported("type", f"{other[:100]!r}: this server only transcribes")
            case other:
                raise refused("type", f"type {str(other)[:100]!r} is not an event of clients")

    async def _append(self, event: dict[str, Any]) -> None:
        if data := audio_of(event):
            try:
                seconds = await self._feed.append(data)
            except AudioError as error:
                raise refused("audio", str(error), "invalid_audio") from None
            self._conversation.append(seconds)
            self._idle_deadline = time.monotonic() + self._settings.idle_seconds

    async def _commit(self) -> None:
        self._conversation.append(await self._feed.flush())
        before = self._conversation.last_committed
        for item_event in self._conversation.commit():
            self._emit(item_event)
        self._feed.stream.commit()
        if self._conversation.config.has_turns:
            await self._check_committed(before)

    async def _check_committed(self, before: str | None) -> None:
        """With server_vad: raises APIError if there was no speech to commit, else a client would
        wait for an item that never comes. before: the id of the item committed before.
        """
        while self._feed.stream.backlog > 0 or self._conversation.speaking:
            await asyncio.sleep(POLL)
        await asyncio.sleep(POLL)
        if self._conversation.last_committed == before:
            message = "the input audio buffer has no speech to commit; send audio with speech"
            raise refused("input_audio_buffer", message, "input_audio_buffer_commit_empty")

    async def _update(self, changes: object, reply_type: str) -> None:
        before = self._conversation.config
        config, unknown = update_session(before, changes)
        models = self._host.models
        if config.choice(models) == before.choice(models):
            self._feed.stream.change(config.options(self._settings.live))
            self._conversation.append(await self._feed.change(config.format))
            self._conversation.config = config
        elif self._feed.has_audio:
            reason = "the model cannot change after audio was sent; open another session"
            raise unsupported("session.audio.input.transcription.model", reason)
        else:
            self._feed.close()  # it has no audio
            try:
                self._open(config)
            except SlimWhisperError as error:
                self.end(SessionEnd(TRY_LATER, as_api_error(error)))
        self._emit(server_event(reply_type, session=self._session_object(unknown)))


def parse_event(message: dict[str, Any]) -> dict[str, Any]:
    """A websocket's message as an event. Raises APIError."""
    text = message.get("text")
    if text is None:
        raise refused(None, "send events as text, not as binary messages", "invalid_message")
    if len(text) > MAX_MESSAGE:
        reason = "the event is larger than 1 MiB; send less audio at a time"
        raise APIError(413, reason, "too_large")
    event = json_object(text, "the message")
    if not isinstance(event.get("type"), str):
        reason = "an event is a JSON object with a type"
        raise refused("type", reason, "missing_required_parameter")
    return event


def event_id_of(event: dict[str, Any]) -> str | None:
    """The id that the client gave an event."""
    event_id = event.get("event_id")
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_ID else None


def audio_of(event: dict[str, Any]) -> bytes:
    """The bytes of an `input_audio_buffer.append`. Raises APIError."""
    audio = event.get("audio")
    if not isinstance(audio, str):
        raise refused("audio", "audio must be text in base64", "missing_required_parameter")
    try:
        return base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError) as error:
        raise refused("audio", f"audio is not base64: {error}", "invalid_base64") from None
