"""Translates a stream's events into those of OpenAI's Realtime API, about a session's items.

An utterance is an item, a user's message with the spoken audio. The first event about an item
carries its id: speech_started with server_vad, else the first text or the commit. The stream's
events lag behind the client's: both count the client's commits and clears, and
`SpeechStarted.calls` is the count at the time of an utterance.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import refused
from slimwhisper.app.realtime.session import DETAILS, TENTATIVE, TRANSCRIPTION, WORDS, SessionConfig
from slimwhisper.live.types import (
    LiveEvent,
    SpeakersNamed,
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


def error_event(error: APIError, event_id: str | None = None) -> ServerEvent:
    """An `error` event. event_id: of the client's event that caused it."""
    return server_event("error", error={**error.body()["error"], "event_id": event_id})


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

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
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

    def append(self, seconds: float) -> None:
        """Count audio that was passed to the stream."""
        self._buffered += seconds

    def commit(self) -> list[ServerEvent]:
        """The client ends the utterance. Raises APIError if there is too little audio.

        With server_vad, the events follow when the stream reports the end of the utterance.
        """
        seconds = self._buffered
        if seconds < MIN_COMMIT:
            available, required = f"{1000 * seconds:.0f} ms", f"{1000 * MIN_COMMIT:.0f} ms"
            message = f"the buffer has {available} of audio; a commit needs at least {required}"
            raise refused(BUFFER, message, "input_audio_buffer_commit_empty")
        before = self._count_call()
        if self.config.has_turns:
            return []
        item = next((i for i in self._items.values() if not (i.committed or i.cleared)), None)
        if item is None:
            item = self._committed[before] = Item(make_id("item"))
        item.seconds = seconds
        return self._commit(item)

    def clear(self) -> list[ServerEvent]:
        """The client discards the audio that is not committed."""
        self._cleared = self._count_call() + 1
        for item in self._items.values():
            item.cleared = not item.committed
        return [server_event(f"{BUFFER}.cleared")]

    def _count_call(self) -> int:
        """Count a commit or a clear. Returns how many came before it."""
        self._calls, self._buffered = self._calls + 1, 0.0
        return self._calls - 1

    def events(self, event: LiveEvent) -> list[ServerEvent]:
        """The client's events for an event of the stream."""
        match event:
            case SpeechStarted():
                return self._started(event)
            case SpeechStopped():
                return self._stopped(event)
            case TextUpdate():
                return self._text(self._items[event.utterance], event)
            case UtteranceEnded():
                return self._ended(event)
            case SpeakersNamed():  # no session asks for speakers
                return []
            case StreamFailed():
                return self._failed(as_api_error(event.error))

    def _started(self, event: SpeechStarted) -> list[ServerEvent]:
        cleared = event.calls < self._cleared
        item = self._committed.pop(event.calls, None) or Item(make_id("item"), cleared=cleared)
        item.start = event.start
        self._items[event.utterance] = item
        if not self.config.has_turns or item.cleared:
            return []
        start = round(1000 * event.start)
        return [server_event(f"{BUFFER}.speech_started", audio_start_ms=start, item_id=item.id)]

    def _stopped(self, event: SpeechStopped) -> list[ServerEvent]:
        item = self._items[event.utterance]
        if item.committed:
            return []
        item.seconds = event.end - item.start
        if not self.config.has_turns or item.cleared:
            return []
        end = round(1000 * event.end)
        stopped = server_event(f"{BUFFER}.speech_stopped", audio_end_ms=end, item_id=item.id)
        return [stopped, *self._commit(item)]

    def _commit(self, item: Item) -> list[ServerEvent]:
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
        return [
            server_event(f"{BUFFER}.committed", item_id=item.id, **position),
            server_event("conversation.item.added", item=message, **position),
            server_event("conversation.item.done", item=message, **position),
        ]

    def _text(self, item: Item, event: TextUpdate) -> list[ServerEvent]:
        """New committed and tentative text; an item begins without a space."""
        events = []
        if text := event.committed if item.text else event.committed.lstrip():
            item.text += text
            words = list(map(_word, event.words))
            timed = {"words": words} if self.config.includes(WORDS) else {}
            events.append(self._item_event(item, DELTA, delta=text, **timed))
        if self.config.includes(TENTATIVE):
            text = event.tentative if item.text else event.tentative.lstrip()
            events.append(self._item_event(item, TENTATIVE_TEXT, text=text, heard=event.heard))
        return events

    def _ended(self, event: UtteranceEnded) -> list[ServerEvent]:
        item = self._items.pop(event.utterance)
        if item.cleared and not event.text:
            return []
        events = [] if item.committed else self._commit(item)
        text = event.text.strip()
        events += [self._segment(item, s) for s in event.segments if s.text.strip()]
        usage = {"type": "duration", "seconds": round(item.seconds, 3)}
        fields = {"usage": usage, "languages": [{"code": event.language}] if text else []}
        return [*events, self._item_event(item, COMPLETED, transcript=text, **fields)]

    def _segment(self, item: Item, segment: Segment) -> ServerEvent:
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
        return self._item_event(item, SEGMENT, **fields)

    def _failed(self, error: APIError) -> list[ServerEvent]:
        """Failure events for every open item; the session gets one at its end."""
        body = error.body()["error"]
        items = (*self._items.values(), *self._committed.values())
        return [self._item_event(item, FAILED, error=body) for item in items if not item.cleared]

    def _item_event(self, item: Item, type: str, **fields: Any) -> ServerEvent:
        return server_event(type, item_id=item.id, content_index=0, **fields)


def _word(word: Word) -> dict[str, Any]:
    times = {"start": round(word.start, 3), "end": round(word.end, 3)}
    return {"word": word.word, **times, "probability": round(word.probability, 4)}
