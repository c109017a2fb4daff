"""Uvicorn's websocket, which also tells a client that its request or a message is too large.

Uvicorn leaves such a request without an answer, and open. After such a message it closes the
connection before the session hears of it.
"""

import json

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig, SecurityError
from websockets.frames import Frame, Opcode

from slimwhisper.app.realtime.conversation import error_event
from slimwhisper.app.realtime.messages import too_large


class WebSocket(WebSocketsSansIOProtocol):
    """A connection; `uvicorn.Config` takes this class as `ws`."""

    def data_received(self, data: bytes) -> None:
        """Answer a request that `websockets` cannot read; uvicorn's own parser could."""
        super().data_received(data)
        error = self.conn.handshake_exc
        if error is not None and not self.handshake_initiated:
            large = isinstance(error.__cause__, SecurityError)
            answer = self.conn.reject(431 if large else 400, f"{error}: {error.__cause__}")
            self.transport.write(answer.serialize())
            self.transport.close()

    def handle_parser_exception(self) -> None:
        """What the client sends is no message, or one of more than `ws_max_size` bytes."""
        if not isinstance(self.conn.parser_exc, PayloadTooBig) or self.conn.close_sent is None:
            super().handle_parser_exception()
            return
        if self.close_sent:
            return  # the rest of the message
        close = self.conn.close_sent
        gone = {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
        self.queue.put_nowait(gone)  # type: ignore[arg-type]
        error = json.dumps(error_event(too_large())).encode()
        told = Frame(Opcode.TEXT, error).serialize(mask=False)
        self.transport.write(told + b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_sent = self.disconnected = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        # the rest is read and thrown away: bytes that nobody reads would reset the connection,
        # and the client might lose what it was told
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    async def send(self, message: ASGISendEvent) -> None:
        """Uvicorn's, without its log of an error where a connection was refused properly
        (github.com/Kludex/uvicorn/pull/3138).
        """
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True
