"""Reads and encodes frames of the Wyoming protocol (github.com/OHF-Voice/wyoming, version 1.10).

A frame is a line of JSON with its type, then "data_length" bytes of JSON, then "payload_length"
bytes of audio. The `wyoming` package would read frames of any length; this module limits them.
"""

import asyncio
import json
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import NULL_IS_DEFAULT, LenientModel, check, json_object
from slimwhisper.errors import SlimWhisperError

MAX_LINE = 1 << 16  # bytes, including inline data
MAX_PART = 1 << 20  # bytes of data, and of a payload
Length = Annotated[int, Field(ge=0, le=MAX_PART), NULL_IS_DEFAULT]


class FrameError(SlimWhisperError):
    """The input is not a frame of the protocol, so the start of the next one is unknown."""


class Head(LenientModel):
    """The line of a frame."""

    type: str
    data: Annotated[dict[str, Any], NULL_IS_DEFAULT] = Field(default={})
    data_length: Length = 0
    payload_length: Length = 0


class Frame(NamedTuple):
    """A received event."""

    type: str
    data: dict[str, Any]
    payload: bytes


def encoded(type: str, data: dict[str, Any]) -> bytes:
    """The bytes of an event without audio."""
    data_bytes = json.dumps(data, ensure_ascii=False).encode() if data else b""
    head = {"type": type, **({"data_length": len(data_bytes)} if data else {})}
    return json.dumps(head).encode() + b"\n" + data_bytes


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None at the end of the connection.

    The reader's limit must be at least `MAX_LINE`. Raises FrameError, and APIError if only the data
    is not JSON: the next frame can be read.
    """
    line = b""
    try:
        line = await reader.readuntil(b"\n")
        head = check(Head, json_object(line, "an event"), "an event")
        data_bytes = await reader.readexactly(head.data_length)
        payload = await reader.readexactly(head.payload_length)
    except asyncio.IncompleteReadError as error:
        if line or error.partial:
            raise FrameError("the connection ended within an event") from None
        return None
    except asyncio.LimitOverrunError:
        raise FrameError(f"the line of an event is longer than {MAX_LINE} bytes") from None
    except APIError as error:
        raise FrameError(str(error)) from None
    data = json_object(data_bytes, "the data of an event") if data_bytes else {}
    return Frame(head.type, head.data | data, payload)
