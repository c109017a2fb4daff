"""Parses a client's messages as events, and limits their size and their rate."""

import base64
import binascii
from typing import Any

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import json_object, refused

MAX_MESSAGE = 1 << 20  # characters of an event
MAX_ID = 512  # characters of its event_id


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
