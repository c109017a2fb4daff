"""A stream that follows a script, for tests of what is above it; what a client sends and gets."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray
from openai.resources.realtime.realtime import RealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.live_stream import Listener
from slimwhisper.audio.load import load_audio
from slimwhisper.errors import OptionError
from slimwhisper.live.types import (
    Ended,
    Failed,
    LiveEvent,
    LiveOptions,
    SpeechStarted,
    SpeechStopped,
    Text,
)
from slimwhisper.types import SAMPLE_RATE, Segment, Word
from tests.support.paths import SAMPLES

QUERY = {"intent": "transcription"}
PATH = "conversation.item.input_audio_transcription"
EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
# our own, and what may have fields of ours
OURS = (f"{PATH}.tentative", "transcription_session.updated", "session.updated")

WORDS = "five five five zero one four two seven nine eight"
WORD = Word(" five", 0.25, 0.5, 0.875)


@dataclass(eq=False)
class ScriptedStream:
    """Sound is speech, zeros are silence: half a second of them ends an utterance with turns.

    Each piece of speech commits " five"; " six" is tentative.
    """

    model: ModelChoice
    options: LiveOptions
    user: str
    listener: Listener
    backlog: float = 0.0
    heard: int = 0  # samples
    closed: bool = False
    number: int = 0
    calls: int = 0  # of `commit` and `clear`
    text: str | None = None  # of the open utterance
    began: int = 0
    silence: int = 0
    appended: list[NDArray[np.float32]] = field(default_factory=list)

    def tell(self, event: LiveEvent | None) -> None:
        if not self.closed:
            self.listener(event)

    def append(self, samples: NDArray[np.float32]) -> None:
        self.appended.append(samples)
        speaks = bool(len(samples)) and float(np.abs(samples).mean()) > 0.05
        self.silence = 0 if speaks else self.silence + len(samples)
        if speaks and self.text is None:
            self._begin(self.heard)
        self.heard += len(samples)
        if speaks and len(samples) > SAMPLE_RATE // 20:  # not what a resampler held back
            new = " five" if self.text else "five"
            self.text = f"{self.text}{new}"
            now = self.heard / SAMPLE_RATE
            words = (WORD,) if self.options.words else ()
            self.tell(Text(self.number, new, " six", words, now))
        if self.text is not None and self.options.turns and self.silence >= SAMPLE_RATE // 2:
            self._stop()

    def commit(self) -> None:
        if self.text is None and not self.options.turns:
            self._begin(self.began)
        if self.text is not None:
            self._stop()
        self.began, self.calls = self.heard, self.calls + 1

    def clear(self) -> None:
        if self.text is not None:
            self._stop()
        self.began, self.calls = self.heard, self.calls + 1

    def change(self, options: LiveOptions) -> None:
        if options.language == "yi":
            raise OptionError("language 'yi': not in this model")
        self.options = options

    def finish(self) -> None:
        if self.text is not None:
            self._stop()
        self.tell(None)

    def fail(self, error: OptionError) -> None:
        self.tell(Failed(error))
        self.tell(None)

    def close(self) -> None:
        self.closed = True

    def _begin(self, at: int) -> None:
        self.text, self.began = "", at
        self.tell(SpeechStarted(self.number, round(at / SAMPLE_RATE, 3), self.calls))

    def _stop(self) -> None:
        start, end, text = self.began / SAMPLE_RATE, self.heard / SAMPLE_RATE, self.text or ""
        self.tell(SpeechStopped(self.number, round(end, 3)))
        words = [WORD] if self.options.words else None
        segment = Segment(0, 0, start, end, text, [], 0.0, -0.1, 1.0, 0.0, words=words)
        self.tell(Ended(self.number, (segment,), text, "en"))
        self.number, self.text, self.began = self.number + 1, None, self.heard


def tone(seconds: float, rate: int = 24_000) -> str:
    """Speech, as pcm16 in base64."""
    return _encoded(np.sin(np.arange(round(seconds * rate)) / 5) * 8000)


def silence(seconds: float, rate: int = 24_000) -> str:
    """Silence, as pcm16 in base64."""
    return _encoded(np.zeros(round(seconds * rate)))


def _encoded(samples: NDArray[np.float64]) -> str:
    return encoded(samples.astype("<i2").tobytes())


def encoded(data: bytes) -> str:
    """As an event carries it."""
    return base64.b64encode(data).decode()


def sample(rate: int, seconds: float) -> list[bytes]:
    """The WORDS as pcm16, in pieces."""
    speech = soxr.resample(load_audio(str(SAMPLES / "phone-number.wav")), 16_000, rate)
    whole = (np.concatenate([speech, np.zeros(rate)]) * 32767).clip(-32768, 32767).astype("<i2")
    step = round(seconds * rate)
    return [whole[i : i + step].tobytes() for i in range(0, len(whole), step)]


def next_event(connection: RealtimeConnection) -> dict[str, Any]:
    """The next event as it was sent; it is one of OpenAI's, or of our own."""
    event = json.loads(connection._connection.recv(timeout=10))
    if event["type"] not in OURS:
        EVENTS.validate_python(event, strict=True)
    return dict(event)


def until(connection: RealtimeConnection, last: str) -> list[dict[str, Any]]:
    """The events up to one of this type."""
    found = [next_event(connection)]
    while found[-1]["type"] != last:
        found.append(next_event(connection))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("conversation.item.") for event in events]


def update(connection: RealtimeConnection, session: dict[str, Any]) -> dict[str, Any]:
    """The answer to a `session.update`."""
    event: Any = {"type": "session.update", "session": {"type": "transcription", **session}}
    connection.send({**event, "event_id": "mine"})
    return next_event(connection)


def sound(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": fields}}
