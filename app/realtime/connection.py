"""Serves one websocket of `/v1/realtime`, in the events of OpenAI's Realtime API, about a session's
items.

An utterance is an item, a user's message with the spoken audio. The first event about an item
carries its id: speech_started with server_vad, else the first text or the commit. The stream's
events lag behind the client's: both count the client's commits and clears, and
`SpeechStarted.calls` is the count at the time of an utterance.
"""

import base64
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import json_object, refused, unsupported
from slimwhisper.app.realtime.session import (
    DETAILS,
    TENTATIVE,
    TRANSCRIPTION,
    WORDS,
    SessionConfig,
    from_beta,
    session_object,
    update_session,
)
from slimwhisper.app.realtime.stream_socket import TRY_LATER, SessionEnd, StreamSocket
from slimwhisper.app.service.host import ServerHost
from slimwhisper.errors import SlimWhisperError
from slimwhisper.live.types import (
    LiveEvent,
    SpeechStarted,
    SpeechStopped,
    StreamFailed,
    TextUpdate,
    UtteranceEnded,
)
from slimwhisper.types import Segment, Word

ServerEvent = dict[str, Any]
DELTA, SEGMENT, COMPLETED, FAILED = (
    f"conversation.{TRANSCRIPTION}.{kind}" for kind in ("delta", "segment", "completed", "failed")
)
TENTATIVE_TEXT = f"conversation.{TENTATIVE}"
# of a segment, as `/v1/audio/transcriptions` has them in verbose_json
SEGMENT_DETAILS = "tokens temperature avg_logprob compression_ratio no_speech_prob".split()
BUFFER = "input_audio_buffer"
MIN_COMMIT = 0.1  # seconds of audio, as at OpenAI


def make_id(kind: str) -> str:
    """A new identifier, such as "item_0f3c..."."""
    return f"{kind}_{secrets.token_hex(12)}"


def server_event(type: str, **fields: Any) -> ServerEvent:
    """An event of the server."""
    return {"type": type, "event_id": make_id("event"), **fields}


@dataclass(eq=False, slots=True)
class Item:
    """An utterance, in the client's view."""

    id: str
    start: float = 0.0  # seconds since the session began
    seconds: float = 0.0  # of audio
    committed: bool = False
    cleared: bool = False
    text: str = ""  # that was sent


class Conversation:
    """The items of one session."""

    def __init__(self, config: SessionConfig, emit: Callable[[ServerEvent], None]) -> None:
        """emit: is called with each event for the client."""
        self.config, self._emit = config, emit
        self.had_turns = config.has_turns  # at any time since audio followed the last call
        self.last_committed: str | None = None  # the id of the item committed last
        self._items: dict[int, Item] = {}  # by utterance: those that have not ended
        # committed items whose utterance has had no event, by the count of calls at the commit
        self._committed: dict[int, Item] = {}
        self._calls = 0  # commits and clears of the client
        self._cleared = 0  # the count at the last clear; 0: none
        self._buffered = 0.0  # seconds of audio since the last call

    @property
    def speaking(self) -> bool:
        """Whether an utterance is open."""
        return any(not (i.committed or i.cleared) for i in self._items.values())

    def change(self, config: SessionConfig) -> None:
        """Use another configuration."""
        self.config = config
        self.had_turns = config.has_turns or (self.had_turns and self._buffered > 0)

    def append(self, seconds: float) -> None:
        """Count audio that was passed to the stream."""
        self._buffered += seconds

    def commit(self) -> None:
        """The client ends the utterance. Raises APIError if there is too little audio.

        With server_vad, the events follow when the stream reports the end of the utterance. So they
        do after it: only the stream knows which utterances pauses had ended by then.
        """
        seconds = self._buffered
        if seconds < MIN_COMMIT:
            available, required = f"{1000 * seconds:.0f} ms", f"{1000 * MIN_COMMIT:.0f} ms"
            message = f"the buffer has {available} of audio; a commit needs at least {required}"
            raise refused(BUFFER, message, "input_audio_buffer_commit_empty")
        told_by_stream, before = self.had_turns, self._count_call()
        if told_by_stream:
            return
        item = next((i for i in self._items.values() if not (i.committed or i.cleared)), None)
        if item is None:
            item = self._committed[before] = Item(make_id("item"))
        item.seconds = seconds
        self._commit(item)

    def clear(self) -> None:
        """The client discards the audio that is not committed."""
        self._cleared = self._count_call() + 1
        for item in self._items.values():
            item.cleared = not item.committed
        self._tell(f"{BUFFER}.cleared")

    def _count_call(self) -> int:
        """Count a commit or a clear. Returns how many came before it."""
        self._calls, self._buffered = self._calls + 1, 0.0
        self.had_turns = self.config.has_turns
        return self._calls - 1

    def hear(self, event: LiveEvent) -> None:
        """Tell the client of an event of the stream; no session asks for speakers."""
        match event:
            case SpeechStarted():
                self._started(event)
            case SpeechStopped():
                self._stopped(event)
            case TextUpdate() if not self._items[event.utterance].cleared:
                self._text(self._items[event.utterance], event)
            case UtteranceEnded():
                self._ended(event)
            case StreamFailed():
                self._failed(as_api_error(event.error))

    def _started(self, event: SpeechStarted) -> None:
        cleared = event.calls < self._cleared
        item = self._committed.pop(event.calls, None) or Item(make_id("item"), cleared=cleared)
        item.start = event.start
        self._items[event.utterance] = item
        if self.config.has_turns and not (item.cleared or item.committed):
            start = round(1000 * event.start)
            self._tell(f"{BUFFER}.speech_started", audio_start_ms=start, item_id=item.id)

    def _stopped(self, event: SpeechStopped) -> None:
        item = self._items[event.utterance]
        if item.committed:
            return
        item.seconds = event.end - item.start
        if self.config.has_turns and not item.cleared:
            end = round(1000 * event.end)
            self._tell(f"{BUFFER}.speech_stopped", audio_end_ms=end, item_id=item.id)
            self._commit(item)

    def _commit(self, item: Item) -> None:
        item.committed = True
        before, self.last_committed = self.last_committed, item.id
        message = {
            "id": item.id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        position = {"previous_item_id": before}
        self._tell(f"{BUFFER}.committed", item_id=item.id, **position)
        self._tell("conversation.item.added", item=message, **position)
        self._tell("conversation.item.done", item=message, **position)

    def _text(self, item: Item, event: TextUpdate) -> None:
        """New committed and tentative text; an item begins without a space."""
        if text := event.committed if item.text else event.committed.lstrip():
            item.text += text
            words = list(map(_word, event.words))
            timed = {"words": words} if self.config.includes(WORDS) else {}
            self._tell_of(item, DELTA, delta=text, **timed)
        if self.config.includes(TENTATIVE):
            text = event.tentative if item.text else event.tentative.lstrip()
            self._tell_of(item, TENTATIVE_TEXT, text=text, heard=event.heard)

    def _ended(self, event: UtteranceEnded) -> None:
        item = self._items.pop(event.utterance)
        if item.cleared and not item.text:
            return
        if not item.committed:
            self._commit(item)
        text = event.text.strip()
        for segment in event.segments:
            if segment.text.strip():
                self._segment(item, segment)
        usage = {"type": "duration", "seconds": round(item.seconds, 3)}
        fields = {"usage": usage, "languages": [{"code": event.language}] if text else []}
        self._tell_of(item, COMPLETED, transcript=text, **fields)

    def _segment(self, item: Item, segment: Segment) -> None:
        fields: dict[str, Any] = {
            "id": make_id("seg"),
            "start": round(segment.start, 3),
            "end": round(segment.end, 3),
            "text": segment.text,
            "speaker": segment.speaker or "",  # required by the API
        }
        if self.config.includes(WORDS):
            fields["words"] = list(map(_word, segment.words or ()))
        if self.config.includes(DETAILS):
            fields |= {name: getattr(segment, name) for name in SEGMENT_DETAILS}
        self._tell_of(item, SEGMENT, **fields)

    def _failed(self, error: APIError) -> None:
        """Failure events for every open item; the session gets one at its end."""
        body = error.body()["error"]
        for item in (*self._items.values(), *self._committed.values()):
            if not item.cleared:
                self._tell_of(item, FAILED, error=body)

    def _tell_of(self, item: Item, type: str, **fields: Any) -> None:
        self._tell(type, item_id=item.id, content_index=0, **fields)

    def _tell(self, type: str, **fields: Any) -> None:
        self._emit(server_event(type, **fields))


def _word(word: Word) -> dict[str, Any]:
    times = {"start": round(word.start, 3), "end": round(word.end, 3)}
    return {"word": word.word, **times, "probability": round(word.probability, 4)}


# -- the websocket -------------------------------------------------------------------------------

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
        choice, options = config.choice(self._host.models)[0], config.options(self._settings.live)
        self.begin(choice, options, config.format)
        self._conversation = Conversation(config, self.emit)

    def translate(self, event: LiveEvent) -> None:
        """Emit the events about the session's items."""
        self._conversation.hear(event)

    def refuse(self, error: APIError) -> None:
        """Emit an error, which names the client's event."""
        self.emit(server_event("error", error=error.body()["error"] | {"event_id": self._event_id}))
        self._event_id = None

    def _session_object(self, unknown: Sequence[str] = ()) -> dict[str, Any]:
        config, models = self._conversation.config, self._host.models
        return session_object(config, models, *self._identity, unknown)

    async def handle(self, message: dict[str, Any]) -> None:
        """Handle one event. Raises APIError, SlimWhisperError."""
        event = parse_event(message)
        given = event.get("event_id")
        if isinstance(given, str) and len(given) <= MAX_ID:
            self._event_id = given
        match event["type"]:
            case "input_audio_buffer.append":
                if data := audio_of(event):
                    self._conversation.append(await self.append(data))
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._feed.clear()
                self._conversation.clear()
            case "session.update":
                await self._update(event.get("session"), "session.updated")
            case "transcription_session.update":
                session = from_beta(event.get("session"))
                await self._update(session, "transcription_session.updated")
            case other if other.startswith(UNSUPPORTED):
                raise unsupported("type", f"{other[:100]!r}: this server only transcribes")
            case other:
                raise refused("type", f"type {other[:100]!r} is not an event of clients")
        self._event_id = None

    async def _commit(self) -> None:
        self._conversation.append(await self._feed.flush())
        before, told_by_stream = self._conversation.last_committed, self._conversation.had_turns
        self._conversation.commit()
        self._feed.stream.commit()
        if told_by_stream:
            await self.heard_all(lambda: self._conversation.speaking)
            if self._conversation.last_committed == before:  # a client waits for an item
                message = "the input audio buffer has no speech to commit; send audio with speech"
                raise refused(BUFFER, message, "input_audio_buffer_commit_empty")

    async def _update(self, changes: object, reply_type: str) -> None:
        before = self._conversation.config
        config, unknown = update_session(before, changes)
        models = self._host.models
        if config.choice(models)[0] == before.choice(models)[0]:
            self._feed.stream.change(config.options(self._settings.live))
            self._conversation.append(await self._feed.change(config.format))
            self._conversation.change(config)
        elif self._feed.has_audio:
            reason = "the model cannot change after audio was sent; open another session"
            raise unsupported("session.audio.input.transcription.model", reason)
        else:
            self._feed.close()  # it has no audio
            try:
                self._open(config)
            except SlimWhisperError as error:
                self.end(SessionEnd(TRY_LATER, as_api_error(error)))
                return
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


def audio_of(event: dict[str, Any]) -> bytes:
    """The bytes of an `input_audio_buffer.append`. Raises APIError."""
    audio = event.get("audio")
    if not isinstance(audio, str):
        raise refused("audio", "audio must be text in base64", "missing_required_parameter")
    try:
        return base64.b64decode(audio, validate=True)
    except ValueError as error:
        raise refused("audio", f"audio is not base64: {error}", "invalid_base64") from None
