"""One websocket of `/v1/realtime`: reads the client's events, and sends those of the server."""

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from slimwhisper.app.api.errors import APIError, as_api_error, internal_error
from slimwhisper.app.api.fields import refused, unsupported
from slimwhisper.app.realtime.conversation import (
    Conversation,
    ServerEvent,
    error_event,
    make_id,
    server_event,
)
from slimwhisper.app.realtime.feed import POLL, Feed
from slimwhisper.app.realtime.messages import Allowance, audio_of, event_id_of, parse_event
from slimwhisper.app.realtime.session import (
    SessionConfig,
    from_beta,
    session_object,
    update_session,
)
from slimwhisper.app.service.host import Host
from slimwhisper.app.service.jobs import StoppingError
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.live.types import Failed, LiveEvent

logger = logging.getLogger("slimwhisper.serve")

MAX_EVENTS = 200  # client's events a second; more are read later
MAX_UNREAD = 2000  # server's events that wait for the client to read
CLOSING = 5.0  # seconds for a client to read its last events

GOING_AWAY, POLICY, TOO_BIG, INTERNAL, TRY_LATER = 1001, 1008, 1009, 1011, 1013

# What the API has for conversations: known, and not for a session that only transcribes
OTHERS = ("conversation.", "response.", "output_audio_buffer.")


@dataclass(frozen=True, slots=True)
class End:
    """Why the server ends a session."""

    code: int  # of the close
    error: APIError | None = None  # told before
    last_texts: bool = False  # whether what was heard is still transcribed


class Connection:
    """A session. Its state belongs to the event loop; the stream's events are passed on to it."""

    def __init__(self, websocket: WebSocket, config: SessionConfig, host: Host) -> None:
        """Opens the stream; nothing is accepted yet. Raises SlimWhisperError, APIError."""
        self._websocket, self._host, self._settings = websocket, host, host.settings
        self._fixed = make_id("sess"), int(time.time() + host.settings.session_seconds)
        self._ends = time.monotonic() + host.settings.session_seconds
        self._idle_ends = time.monotonic() + host.settings.idle_seconds
        self._failed = False
        self._out: asyncio.Queue[ServerEvent | None] = asyncio.Queue()  # None: the last
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._silent = asyncio.Event()  # the stream tells no more
        self._open(config)

    def _open(self, config: SessionConfig) -> None:
        """Begin the stream. Raises SlimWhisperError, APIError."""
        choice, options = config.choice(self._host.models), config.options(self._settings.live)
        self._feed = Feed(self._host.service, choice, options, config.format, self._hear)
        self._conversation = Conversation(config)

    def leave(self, end: End) -> None:
        """End the session; the first reason counts."""
        if not self._end.done():
            self._end.set_result(end)

    async def run(self, subprotocol: str | None) -> None:
        """Accept the websocket, and serve it to its end."""
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._websocket.accept(subprotocol)
            self._tell(server_event("session.created", session=self._session()))
            tasks = [asyncio.create_task(t) for t in (self._read(), self._write())]
            reader, writer = tasks
            await asyncio.wait([*tasks, self._end], return_when=asyncio.FIRST_COMPLETED)
            if self._end.done():
                reader.cancel()
                await self._close(self._end.result(), writer)
            else:  # the client has gone, or something has failed
                (reader if reader.done() else writer).result()
        except WebSocketDisconnect:
            pass
        finally:
            self._feed.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self, end: End, writer: asyncio.Task[None]) -> None:
        """Tell the last events, then close."""
        if end.last_texts:
            with suppress(SlimWhisperError):
                self._feed.finish()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._silent.wait(), self._settings.patience)
        if end.error is not None and not self._failed:  # else the stream's own error was told
            self._tell(error_event(end.error))
        self._out.put_nowait(None)
        await asyncio.wait([writer], timeout=CLOSING)
        if writer.done():
            writer.result()  # raises if the client has gone
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._websocket.close(end.code, str(end.error or "")[:100])

    # -- from the stream ---------------------------------------------------------------------

    def _hear(self, event: LiveEvent | None) -> None:
        if event is None:
            self._silent.set()
            return
        for found in self._conversation.events(event):
            self._tell(found)
        if isinstance(event, Failed):
            self._failed = True
            self._silent.set()
            stopping = isinstance(event.error, StoppingError)
            self.leave(End(GOING_AWAY if stopping else INTERNAL))

    # -- to the client -----------------------------------------------------------------------

    def _tell(self, event: ServerEvent) -> None:
        if self._out.qsize() >= MAX_UNREAD:
            message = f"{MAX_UNREAD} events wait to be read; read them as they come"
            self.leave(End(TRY_LATER, APIError(429, message, "too_many_unread_events")))
            return
        self._out.put_nowait(event)

    async def _write(self) -> None:
        while (event := await self._out.get()) is not None:
            await self._websocket.send_text(json.dumps(event, ensure_ascii=False))

    def _session(self, unknown: list[str] | None = None) -> dict[str, Any]:
        return session_object(self._conversation.config, *self._fixed, unknown)

    # -- from the client ---------------------------------------------------------------------

    async def _read(self) -> None:
        """Handle the client's events until it disconnects or the session ends."""
        allowance = Allowance(MAX_EVENTS)
        while (message := await self._receive(allowance)) is not None:
            event_id: str | None = None
            try:
                event = parse_event(message)
                event_id = event_id_of(event)
                await self._handle(event)
            except (APIError, SlimWhisperError) as found:
                error = as_api_error(found)
                self._tell(error_event(error, event_id))
                if error.status == 413:
                    self.leave(End(TOO_BIG))
                    return
            except Exception:
                logger.exception("a realtime session failed")
                self.leave(End(INTERNAL, internal_error()))
                return

    async def _receive(self, allowance: Allowance) -> dict[str, Any] | None:
        """The next message; None at the end of the connection or of the session."""
        await allowance.wait()
        end = min(self._idle_ends, self._ends)
        try:
            async with asyncio.timeout(max(end - time.monotonic(), 0)):
                message = await self._websocket.receive()
        except TimeoutError:
            if end == self._ends:
                minutes = f"{self._settings.session_seconds / 60:g}"
                reason = f"the session has lasted {minutes} minutes, the limit; open another"
                error = APIError(400, reason, "session_expired")
            else:
                reason = f"no audio for {self._settings.idle_seconds:g} s; open another session"
                error = APIError(400, reason, "session_idle")
            self.leave(End(POLICY, error, last_texts=True))
            return None
        return None if message["type"] == "websocket.disconnect" else dict(message)

    async def _handle(self, event: dict[str, Any]) -> None:
        """Do what an event asks for. Raises APIError, SlimWhisperError."""
        match event.get("type"):
            case "input_audio_buffer.append":
                await self._append(event)
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._feed.clear()
                for found in self._conversation.clear():
                    self._tell(found)
            case "session.update":
                await self._update(event.get("session"), "session.updated")
            case "transcription_session.update":
                session = from_beta(event.get("session"))
                await self._update(session, "transcription_session.updated")
            case str(other) if other.startswith(OTHERS):
                raise unsupported("type", f"{other[:100]!r}: a session here only transcribes")
            case other:
                raise refused("type", f"type {str(other)[:100]!r} is not a client's event")

    async def _append(self, event: dict[str, Any]) -> None:
        if data := audio_of(event):
            try:
                seconds = await self._feed.append(data)
            except AudioError as error:
                raise refused("audio", str(error), "invalid_audio") from None
            self._conversation.append(seconds)
            self._idle_ends = time.monotonic() + self._settings.idle_seconds

    async def _commit(self) -> None:
        self._conversation.append(await self._feed.flush())
        before = self._conversation.last
        for found in self._conversation.commit():
            self._tell(found)
        self._feed.stream.commit()
        if self._conversation.config.has_turns:
            await self._check_committed(before)

    async def _check_committed(self, before: str | None) -> None:
        """With server_vad: raises APIError if there was no speech to commit, so that a client does
        not wait for an item in vain. before: the item committed before.
        """
        while self._feed.stream.backlog > 0 or self._conversation.speaking:
            await asyncio.sleep(POLL)
        await asyncio.sleep(POLL)
        if self._conversation.last == before:
            message = "there is no speech in the input audio buffer: nothing to commit"
            raise refused("input_audio_buffer", message, "input_audio_buffer_commit_empty")

    async def _update(self, given: object, answer: str) -> None:
        before = self._conversation.config
        config, unknown = update_session(before, given)
        models = self._host.models
        if config.choice(models) == before.choice(models):
            self._feed.stream.change(config.options(self._settings.live))
            self._conversation.append(await self._feed.change(config.format))
            self._conversation.config = config
        elif self._feed.heard:
            reason = "the model cannot change once audio has been sent; open another session"
            raise unsupported("session.audio.input.transcription.model", reason)
        else:
            self._feed.close()  # it has heard nothing
            try:
                self._open(config)
            except SlimWhisperError as error:
                self.leave(End(TRY_LATER, as_api_error(error)))
        self._tell(server_event(answer, session=self._session(unknown)))
