"""Limits the pieces in which a client sends: headers, chunks of a body, and frames of a websocket.

Each takes some 10 µs of the event loop, however few bytes it has.
"""

import re
import time
from typing import Any

import h11
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ProtocolError
from websockets.frames import Frame
from websockets.http11 import MAX_NUM_HEADERS
from websockets.server import ServerProtocol

PIECES = 500  # at once, of any size
PER_SECOND = 100  # that may follow, of any size
PIECE = 256  # bytes of each one more
BLANK_LINE = re.compile(rb"\n\r?\n")


class Allowance:
    """A token bucket."""

    def __init__(self, per_second: float, most: float) -> None:
        """most: tokens, all there at first."""
        self._per_second, self._most, self._tokens = per_second, most, most
        self._refilled = time.monotonic()

    def take(self, earned: float = 0.0) -> float:
        """Take a token, after adding `earned`. Returns the seconds until there is one; 0: now."""
        now = time.monotonic()
        earned += (now - self._refilled) * self._per_second
        self._tokens = min(self._tokens + earned, self._most) - 1
        self._refilled = now
        return max(0.0, -self._tokens / self._per_second)


class BodyParser(h11.Connection):
    """The server's side of h11; too many headers or small chunks are an error of the client."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self._pieces = Allowance(PER_SECOND, PIECES)

    def next_event(self) -> Any:
        """What the client sent next. Raises h11.RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            head = BLANK_LINE.split(self.trailing_data[0], 1)[0]
            if head.count(b"\n") > MAX_NUM_HEADERS:
                raise h11.RemoteProtocolError("too many headers")
        event = super().next_event()
        if isinstance(event, h11.Data) and event.chunk_start:
            if self._pieces.take(len(event.data) / PIECE):
                raise h11.RemoteProtocolError("too many small chunks")
        return event


class FrameParser(ServerProtocol):
    """The server's side of a websocket; too many small frames are an error of the client."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._pieces = Allowance(PER_SECOND, PIECES)

    def recv_frame(self, frame: Frame) -> None:
        """Process a frame: of a message, a part of one, or a ping. Raises ProtocolError."""
        if self._pieces.take(len(frame.data) / PIECE):
            raise ProtocolError("too many small frames; send whole messages")
        super().recv_frame(frame)


class WebSocket(WebSocketsSansIOProtocol):
    """Uvicorn's websocket, with a `FrameParser`."""

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self.conn = FrameParser(max_size=self.config.ws_max_size, logger=self.logger)
