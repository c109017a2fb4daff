"""The frames of the Wyoming protocol (github.com/OHF-Voice/wyoming, version 1.10).

A frame is a line of JSON with its type, then "data_length" bytes of JSON, then "payload_length"
bytes of sound.
The project's own package reads whatever length a peer names; a server must not.
"""

import asyncio
import json
from typing import Any, NamedTuple

from pydantic_core import from_json

from slimwhisper.app.api.fields import refused
from slimwhisper.errors import SlimWhisperError

MAX_LINE = 1 << 16  # bytes, with data that stands in it
MAX_PART = 1 << 20  # bytes of data, and of a payload


class FrameError(SlimWhisperError):
    """What arrives is not a frame of the protocol; where the next one begins is not known."""


class Frame(NamedTuple):
    """An event, as it came."""

    type: str
    data: dict[str, Any]
    payload: bytes


def encoded(type: str, data: dict[str, Any]) -> bytes:
    """An event without sound, as it is sent."""
    more = json.dumps(data, ensure_ascii=False).encode() if data else b""
    head = {"type": type, **({"data_length": len(more)} if data else {})}
    return json.dumps(head).encode() + b"\n" + more


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None at the end of the connection.

    The reader's limit must be at least `MAX_LINE`. Raises FrameError, and APIError if only the data
    is not JSON: the next frame can be read.
    """
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the connection ended within an event") from None
        return None
    except asyncio.LimitOverrunError:
        raise FrameError(f"the line of an event is longer than {MAX_LINE} bytes") from None
    head = _object(line)
    kind, data = head.get("type"), head.get("data") or {}
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise FrameError("an event has a type, which is a text, and data, which is an object")
    try:
        more = await reader.readexactly(_length(head, "data_length"))
        payload = await reader.readexactly(_length(head, "payload_length"))
    except asyncio.IncompleteReadError:
        raise FrameError("the connection ended within an event") from None
    try:
        return Frame(kind, data | _object(more) if more else data, payload)
    except FrameError as error:
        raise refused("data", str(error)) from None


def _length(head: dict[str, Any], name: str) -> int:
    length = head.get(name) or 0
    if not isinstance(length, int) or not 0 <= length <= MAX_PART:
        raise FrameError(f"{name} {str(length)[:40]} is not a number of bytes up to {MAX_PART}")
    return length


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError as reason:
        raise FrameError(f"an event is a JSON object: {reason}") from None
    if not isinstance(found, dict):
        raise FrameError("an event is a JSON object")
    return found
