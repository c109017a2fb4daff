"""Limits a server's connections: their number, the time that a client may keep one waiting, and the
pieces in which it sends: headers, chunks of a body, and frames of a websocket.

Uvicorn itself ends only connections that are idle between two requests. Its `limit_concurrency`
counts a connection only after a whole head has arrived. A piece takes some 10 µs of the event loop,
however few bytes it has.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import Any

import h11
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import ProtocolError
from websockets.frames import Frame
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS
from websockets.server import ServerProtocol

from slimwhisper.app.api.access import is_loopback, network_of
from slimwhisper.app.api.errors import RETRY_AFTER, APIError

logger = logging.getLogger("slimwhisper.serve")

# -- pieces --------------------------------------------------------------------------------------

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


# -- their number and their progress -------------------------------------------------------------

MAX_FILES = 65_536  # open files and connections that the server requests of the system
MAX_CONNECTIONS = 4096
SHARE = 4  # an address may have a quarter of them
HEAD = 20.0  # seconds for the head of a request
DROPPING = 5.0  # seconds for a client that still sends to read the response
BLOCK = 1 << 14  # bytes that are parsed at once: h11 limits heads that come in several blocks
BODY = 30.0  # seconds for the next kB of a body
UNREAD = 120.0  # seconds in which a client must read some of the response
BACKLOG = 2048  # connections that wait to be accepted, uvicorn's default

_BUSY = APIError(
    *(503, "too many connections are open; try again later", "too_many_connections"),
    headers={"Retry-After": str(RETRY_AFTER), "Connection": "close"},
).response()
_STATUS = b"HTTP/1.1 503 Service Unavailable"
BUSY = b"\r\n".join([_STATUS, *map(b": ".join, _BUSY.raw_headers), b"", _BUSY.body])


class Connections(ServerState):
    """The open connections of a server."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__()
        self._limit = min(raise_file_limit() // 2, MAX_CONNECTIONS)  # the other half is for files
        app: Any = config.app
        self._proxies = ProxyHeadersMiddleware(app, config.forwarded_allow_ips).trusted_hosts
        self._address = lru_cache(MAX_CONNECTIONS)(self._find_address)
        self._addresses: Counter[str] = Counter()  # of connections open a second ago, and since
        self._waiting: dict[tuple[Any, object], float] = {}  # since when, by the awaited input
        self._log = LogOncePerMinute()

    def admit(self, client: tuple[str, int] | None) -> bool:
        """Whether a new connection, already one of `connections`, may stay open."""
        address = self._address(client[0] if client else "")
        self._addresses[address] += 1
        count, share = self._addresses[address], self._limit // SHARE
        if len(self.connections) > self._limit:
            self._log.warning("%d connections are open; new ones are refused", self._limit)
        elif address and count > share:
            self._log.warning("%s has %d connections; new ones of it are refused", address, count)
        else:
            return True
        return False

    def sweep(self) -> None:
        """Close the connections whose clients made no progress for too long; once a second."""
        now, waits = time.monotonic(), {}
        self._addresses.clear()
        connection: Any
        for connection in self.connections:
            if connection.client:
                self._addresses[self._address(connection.client[0])] += 1
            if unread := unread_bytes(connection.transport):
                awaited: tuple[object, float] | None = ("unread", unread), UNREAD
            else:
                awaited = connection.awaited() if isinstance(connection, Http) else None
            if awaited is None:
                continue
            progress, seconds = awaited
            since = self._waiting.get((connection, progress), now)
            if now - since > seconds:
                connection.transport.abort()
            waits[connection, progress] = since
        self._waiting = waits

    def _find_address(self, host: str) -> str:
        """The address by which a connection is counted; "" if it counts only in the total."""
        if not host or is_loopback(host) or host in self._proxies:
            return ""
        return network_of(host)


def unread_bytes(transport: asyncio.Transport) -> int:
    """The bytes that the client has not yet read."""
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # a TLS transport that was closed twice no longer has its connection
        return 0


class Http(H11Protocol):
    """Uvicorn's HTTP connection, within the limits of `Connections`."""

    received = 0  # bytes
    dropping = False  # whether what arrives is not parsed any more

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Refuse the connection if there are too many."""
        self.conn = BodyParser()
        self._app, self.app = self.app, self._respond
        super().connection_made(transport)
        assert isinstance(self.server_state, Connections)
        if not self.server_state.admit(self.client):
            transport.write(BUSY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Count the bytes, to see the progress of a body; the rest of one is dropped unread."""
        self.received += len(data)
        for start in range(0, len(data), BLOCK):
            if not (self.dropping or self.transport.is_closing()):
                super().data_received(data[start : start + BLOCK])

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app. If it responds before the whole body is there, the connection closes, a
        little later: a client that still sends would not get the response.
        """

        async def send_or_drop(message: Message) -> None:
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                self.dropping = True
                message = {**message, "headers": [*message["headers"], CLOSE_HEADER]}
            elif self.dropping and not message.get("more_body"):
                await send({**message, "more_body": True})
                with suppress(TimeoutError):
                    async with asyncio.timeout(DROPPING):
                        while (await receive())["type"] != "http.disconnect":
                            pass
                message = {"type": message["type"]}
            await send(message)

        await self._app(scope, receive, send_or_drop)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed. A request that it is the body of gets no other response."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Refuse a head that `websockets` cannot read: uvicorn would leave it without an answer."""
        fields = b"".join(b"%b: %b\r\n" % field for field in event.headers)
        reader = ServerProtocol()
        reader.receive_data(b"%b %b HTTP/1.1\r\n%b\r\n" % (event.method, event.target, fields))
        if reader.handshake_exc is None:
            super().handle_websocket_upgrade(event)
        else:
            limits = f"at most {MAX_NUM_HEADERS} headers and {MAX_LINE_LENGTH} bytes per line"
            rule = f"send a GET request without a body, with {limits}"
            self.send_400_response(f"To open a websocket, {rule}.")

    def awaited(self) -> tuple[object, float] | None:
        """The input that the client has to send next, and within how many seconds; None if it need
        not send any. While it sends enough, the first value changes.
        """
        cycle = self.cycle
        match self.conn.their_state:
            case h11.IDLE if self.timeout_keep_alive_task is None:
                return ("head", cycle), HEAD
            case h11.SEND_BODY if not (self.flow.read_paused or cycle.waiting_for_100_continue):
                return ("body", self.received >> 10), BODY
        return None


class LogOncePerMinute:
    """Logs at most one line a minute."""

    def __init__(self) -> None:
        self._next = 0.0

    def warning(self, message: str, *values: object) -> None:
        """Log a line, if none was logged for a minute."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + 60
            logger.warning(message, *values)


def raise_file_limit() -> int:
    """Let this process open more files and connections. Returns its limit."""
    try:
        import resource
    except ImportError:  # Windows limits neither
        return MAX_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_FILES
    target = max(soft, MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def listen(server: asyncio.Server) -> None:
    """Let BACKLOG connections wait for a server that was made with `backlog=1`.

    asyncio also accepts up to `backlog` connections at a time. When no file can be opened, older
    Pythons make that many attempts and log lines, and start as many timers that do the same a
    second later (github.com/python/cpython/issues/151615).
    """
    for listener in server.sockets:
        with listener.dup() as duplicate:
            duplicate.listen(BACKLOG)


def log_exhaustion(loop: asyncio.AbstractEventLoop) -> None:
    """Log one line a minute, not a traceback a second, while no connection can be accepted."""
    log = LogOncePerMinute()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context["message"] == "socket.accept() out of system resource":
            log.warning("cannot accept connections: %s", context["exception"].strerror)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
