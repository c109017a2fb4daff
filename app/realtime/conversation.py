"""A session's items: what a stream tells, as the events of OpenAI's Realtime API.

An utterance is an item, a user's message with the audio that was spoken. Its id is known from the
first event about it: with server_vad that is speech_started, else the first text or the commit.
The stream's events come later than the client's: both count the client's commits and clears, and
`SpeechStarted.calls` tells between which of them an utterance was.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import refused
from slimwhisper.app.realtime.session import DETAILS, TENTATIVE, TRANSCRIPTION, WORDS, SessionConfig
from slimwhisper.live.types import Ended, Failed, LiveEvent, SpeechStarted, SpeechStopped, Text
from slimwhisper.types import Segment, Word

ServerEvent = dict[str, Any]
DELTA, SEGMENT, COMPLETED, FAILED = (
    f"conversation.{TRANSCRIPTION}.{kind}" for kind in ("delta", "segment", "completed", "failed")
)
TENTATIVE_TEXT = f"conversation.{TENTATIVE}"
# of a segment, as `/v1/audio/transcriptions` has them in verbose_json
SEGMENT_DETAILS = "tokens temperature avg_logprob compression_ratio no_speech_prob".split()
BUFFER = "input_audio_buffer"
LEAST_COMMIT = 0.1  # seconds of audio, as at OpenAI


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
    """An utterance, as the client knows it."""

    id: str
    start: float = 0.0  # seconds since the session began
    seconds: float = 0.0  # of audio
    committed: bool = False
    cleared: bool = False
    text: str = ""  # that was sent
    tentative: str = ""  # likewise


class Conversation:
    """The items of one session."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self.last: str | None = None  # the id of the item committed last
        self._items: dict[int, Item] = {}  # by utterance: those that have not ended
        # committed items whose utterance was not told yet, by the calls before the commit
        self._committed: dict[int, Item] = {}
        self._calls = 0  # of the client: commits and clears
        self._cleared = 0  # the last of them that was a clear; 0: none
        self._buffered = 0.0  # seconds of audio since the last of them

    @property
    def speaking(self) -> bool:
        """Whether an utterance goes on."""
        return any(not (i.committed or i.cleared) for i in self._items.values())

    def append(self, seconds: float) -> None:
        """The stream is given so much audio."""
        self._buffered += seconds

    def commit(self) -> list[ServerEvent]:
        """The client ends the utterance. Raises APIError if there is too little audio.

        With server_vad, the events come when the stream has told what the utterance was.
        """
        seconds = self._buffered
        if seconds < LEAST_COMMIT:
            message = (
                f"{1000 * seconds:.0f} ms of audio are in the buffer; "
                f"at least {1000 * LEAST_COMMIT:.0f} ms are needed to commit"
            )
            raise refused(BUFFER, message, "input_audio_buffer_commit_empty")
        before = self._call()
        if self.config.has_turns:
            return []
        item = next((i for i in self._items.values() if not (i.committed or i.cleared)), None)
        if item is None:
            item = self._committed[before] = Item(make_id("item"))
        item.seconds = seconds
        return self._commit(item)

    def clear(self) -> list[ServerEvent]:
        """The client forgets the audio that is not committed."""
        self._cleared = self._call() + 1
        for item in self._items.values():
            item.cleared = not item.committed
        return [server_event(f"{BUFFER}.cleared")]

    def _call(self) -> int:
        """Count a commit or a clear. Returns how many came before it."""
        self._calls, self._buffered = self._calls + 1, 0.0
        return self._calls - 1

    def events(self, event: LiveEvent) -> list[ServerEvent]:
        """What the client is told about an event of the stream."""
        match event:
            case SpeechStarted():
                return self._started(event)
            case SpeechStopped():
                return self._stopped(event)
            case Text():
                return self._text(self._items[event.utterance], event)
            case Ended():
                return self._ended(event)
            case Failed():
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
        before, self.last = self.last, item.id
        message = {
            "id": item.id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        place = {"previous_item_id": before}
        return [
            server_event(f"{BUFFER}.committed", item_id=item.id, **place),
            server_event("conversation.item.added", item=message, **place),
            server_event("conversation.item.done", item=message, **place),
        ]

    def _text(self, item: Item, event: Text) -> list[ServerEvent]:
        """New committed text, and what follows it for now; an item begins without a space."""
        found = []
        if text := event.committed if item.text else event.committed.lstrip():
            item.text += text
            words = list(map(_word, event.words))
            timed = {"words": words} if self.config.includes(WORDS) else {}
            found.append(self._about(item, DELTA, delta=text, **timed))
        tentative = event.tentative if item.text else event.tentative.lstrip()
        if tentative != item.tentative and self.config.includes(TENTATIVE):
            found.append(self._about(item, TENTATIVE_TEXT, text=tentative))
        item.tentative = tentative
        return found

    def _ended(self, event: Ended) -> list[ServerEvent]:
        item = self._items.pop(event.utterance)
        if item.cleared and not event.text:
            return []
        found = [] if item.committed else self._commit(item)
        text = event.text.strip()
        found += [self._segment(item, s) for s in event.segments if s.text.strip()]
        completed = self._about(
            item,
            COMPLETED,
            transcript=text,
            usage={"type": "duration", "seconds": round(item.seconds, 3)},
            languages=[{"code": event.language}] if text else [],
        )
        return [*found, completed]

    def _segment(self, item: Item, segment: Segment) -> ServerEvent:
        fields: dict[str, Any] = {
            "id": make_id("seg"),
            "start": round(segment.start, 3),
            "end": round(segment.end, 3),
            "text": segment.text,
            "speaker": "",  # a field of the API; nobody is told apart
        }
        if self.config.includes(WORDS):
            fields["words"] = list(map(_word, segment.words or ()))
        if self.config.includes(DETAILS):
            fields |= {name: getattr(segment, name) for name in SEGMENT_DETAILS}
        return self._about(item, SEGMENT, **fields)

    def _failed(self, error: APIError) -> list[ServerEvent]:
        """For every item that has not ended, and for the session."""
        body = error.body()["error"]
        items = (*self._items.values(), *self._committed.values())
        failed = [self._about(item, FAILED, error=body) for item in items if not item.cleared]
        return [*failed, error_event(error)]

    def _about(self, item: Item, type: str, **fields: Any) -> ServerEvent:
        return server_event(type, item_id=item.id, content_index=0, **fields)


def _word(word: Word) -> dict[str, Any]:
    return {
        "word": word.word,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "probability": round(word.probability, 4),
    }
