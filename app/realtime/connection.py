"""Serves one websocket of `/v1/realtime`, in the events of OpenAI's Realtime API."""

import base64
import binascii
import time
from typing import Any

from starlette.websockets import WebSocket

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import json_object, refused, unsupported
from slimwhisper.app.realtime.conversation import Conversation, error_event, make_id, server_event
from slimwhisper.app.realtime.session import (
    SessionConfig,
    from_beta,
    session_object,
    update_session,
)
from slimwhisper.app.realtime.stream_socket import TRY_LATER, SessionEnd, StreamSocket
from slimwhisper.app.service.host import ServerHost
from slimwhisper.errors import SlimWhisperError
from slimwhisper.live.types import LiveEvent

MAX_ID = 512  # characters of an event's id

# Events of the API for conversations, which a transcription session does not support
UNSUPPORTED = ("conversation.", "response.", "output_audio_buffer.")


class Connection(StreamSocket):
    """A session of the Realtime API."""

    def __init__(self, websocket: WebSocket, config: SessionConfig, host: ServerHost) -> None:
        """Open the stream, before the websocket is accepted. Raises SlimWhisperError, APIError."""
        super().__init__(websocket, host)
        self._identity = make_id("sess"), int(time.time() + host.settings.session_seconds)
        self._event_id: str | None = None  # of the client's event that is handled
        self._open(config)
        self.emit(server_event("session.created", session=self._session_object()))

    def _open(self, config: SessionConfig) -> None:
        """Begin the stream. Raises SlimWhisperError, APIError."""
        choice, options = config.choice(self._host.models), config.options(self._settings.live)
        self.begin(choice, options, config.format)
        self._conversation = Conversation(config)

    def translate(self, event: LiveEvent) -> None:
        """Emit the events about the session's items."""
        for item_event in self._conversation.events(event):
            self.emit(item_event)

    def refuse(self, error: APIError) -> None:
        """Emit an error, which names the client's event."""
        self.emit(error_event(error, self._event_id))
        self._event_id = None

    def _session_object(self, unknown: list[str] | None = None) -> dict[str, Any]:
        return session_object(self._conversation.config, *self._identity, unknown)

    async def handle(self, message: dict[str, Any]) -> None:
        """Handle one event. Raises APIError, SlimWhisperError."""
        self._event_id = None
        event = parse_event(message)
        self._event_id = event_id_of(event)
        await self._handle(event)
        self._event_id = None

    async def _handle(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "input_audio_buffer.append":
                await self._append(event)
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._feed.clear()
                for item_event in self._conversation.clear():
                    self.emit(item_event)
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
            self._conversation.append(await self.append(data))

    async def _commit(self) -> None:
        self._conversation.append(await self._feed.flush())
        before = self._conversation.last_committed
        for item_event in self._conversation.commit():
            self.emit(item_event)
        self._feed.stream.commit()
        if self._conversation.config.has_turns:
            await self._check_committed(before)

    async def _check_committed(self, before: str | None) -> None:
        """With server_vad: raises APIError if there was no speech to commit, else a client would
        wait for an item that never comes. before: the id of the item committed before.
        """
        await self.heard_all(lambda: self._conversation.speaking)
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
        self.emit(server_event(reply_type, session=self._session_object(unknown)))


def parse_event(message: dict[str, Any]) -> dict[str, Any]:
    """A websocket's message as an event. Raises APIError."""
    text = message.get("text")
    if text is None:
        raise refused(None, "send events as text, not as binary messages", "invalid_message")
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
