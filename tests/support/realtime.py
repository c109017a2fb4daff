"""What a client of the realtime routes sends and gets."""

import base64
import json
from typing import Any

import numpy as np
import soxr
from openai.resources.realtime.realtime import RealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from slimwhisper.audio.load import load_audio
from tests.support.paths import PHONE

HANDSHAKE = (  # of a session's websocket, but for the empty line
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
QUERY = {"intent": "transcription"}
PATH = "conversation.item.input_audio_transcription"
EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
# our own, and what may have fields of ours
OURS = (f"{PATH}.tentative", "transcription_session.updated", "session.updated")


def silence(seconds: float) -> str:
    """Silence, as pcm16 at 24 kHz in base64."""
    return encoded(bytes(2 * round(seconds * 24_000)))


def encoded(data: bytes) -> str:
    """As an event carries it."""
    return base64.b64encode(data).decode()


def sample(rate: int, seconds: float) -> list[bytes]:
    """The words of PHONE, and a second of silence, as pcm16 in pieces."""
    speech = soxr.resample(load_audio(PHONE), 16_000, rate)
    whole = (np.concatenate([speech, np.zeros(rate)]) * 32767).clip(-32768, 32767).astype("<i2")
    step = round(seconds * rate)
    return [whole[i : i + step].tobytes() for i in range(0, len(whole), step)]


def checked(event: dict[str, Any]) -> dict[str, Any]:
    """An event, which is one of OpenAI's, or of our own."""
    if event["type"] not in OURS:
        EVENTS.validate_python(event, strict=True)
    return event


def next_event(connection: RealtimeConnection) -> dict[str, Any]:
    """The next event as it was sent."""
    return checked(json.loads(connection._connection.recv(timeout=20)))


def until(connection: RealtimeConnection, last: str) -> list[dict[str, Any]]:
    """The events up to one of this type."""
    found = [next_event(connection)]
    while found[-1]["type"] != last:
        found.append(next_event(connection))
    return found


def update(connection: RealtimeConnection, session: dict[str, Any]) -> dict[str, Any]:
    """The answer to a `session.update`."""
    event: Any = {"type": "session.update", "session": {"type": "transcription", **session}}
    connection.send({**event, "event_id": "mine"})
    return until(connection, "session.updated")[-1]


def sound(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": fields}}
