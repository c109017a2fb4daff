"""Clients that hold connections: each has a deadline, and all together are bounded."""

import asyncio
import errno
import resource
import selectors
import socket
import time
from contextlib import ExitStack

import httpx
import pytest

from slimwhisper.app import connections, server
from tests.support.live import Begin, Live, connected, eventually, free_port, held_readers, rest
from tests.support.page_calls import PHONE

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
WEBSOCKET = b"GET /v1/realtime%s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
UPLOAD = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
FORM = b"Authorization: Bearer s3cret\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x"
# what a client sends at once, and what it goes on to send, byte by byte
SLOW = {
    "nothing": (b"", b""),
    "half a request line": (b"GET /he", b"a"),
    "half a head": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: ", b"a"),
    "empty lines": (b"\r\n", b"\r\n"),
    "half a handshake": (WEBSOCKET % b"" + b"Upgrade: websocket\r\nX-Half: ", b"a"),
    "the second request": (HEALTH + b"GET /he", b"a"),
    "no body": (UPLOAD + FORM, b""),
    "a slow body": (UPLOAD + FORM, b"a"),
    "a body that was refused": (UPLOAD + b"\r\n", b"a"),
}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of time are short."""
    for limit in ("HEAD", "BODY", "UNREAD"):
        monkeypatch.setattr(connections, limit, 0.5)
    monkeypatch.setattr(server, "SWEEP", 1)


@pytest.mark.usefixtures("hasty")
def test_slow_clients_are_closed(keyed: Live) -> None:
    with ExitStack() as stack, selectors.DefaultSelector() as still_open:
        for what, (first, more) in SLOW.items():
            connection = stack.enter_context(connected(keyed, first))
            still_open.register(connection, selectors.EVENT_READ, (what, more))
        deadline = time.monotonic() + 20
        while still_open.get_map():
            names = [key.data[0] for key in still_open.get_map().values()]
            assert time.monotonic() < deadline, f"still open: {names}"
            ready = [key.fileobj for key, _ in still_open.select(0.05)]
            for key in list(still_open.get_map().values()):
                try:
                    if key.fileobj in ready and not key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                        still_open.unregister(key.fileobj)
                        continue
                    key.fileobj.sendall(key.data[1])  # type: ignore[union-attr]
                except ConnectionError:
                    still_open.unregister(key.fileobj)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_an_upload_that_goes_on_has_time(keyless: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """So has a client whose request takes long, and one that is told to wait."""
    data, form = PHONE.read_bytes(), httpx.Request("POST", "http://x", files={"file": b"@"})
    before, after = form.read().split(b"@")
    head = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    head += f"Content-Type: {form.headers['content-type']}\r\nConnection: close\r\n"
    head += f"Content-Length: {len(before + data + after)}\r\n\r\n"
    go = held_readers(monkeypatch)
    with connected(keyless, head.encode()) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(before)
        for start in range(0, len(data), len(data) // 12):
            time.sleep(0.1)
            client.sendall(data[start : start + len(data) // 12])
        client.sendall(after)
        time.sleep(1)
        go.set()
        assert rest(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("hasty")
def test_a_client_that_does_not_read(keyless: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "metrics_text", lambda _: b"x" * (8 << 20))
    with connected(keyless, HEALTH.replace(b"health", b"metrics")):
        assert eventually(lambda: bool(keyless.server.server_state.connections))
        assert eventually(lambda: not keyless.server.server_state.connections)


def test_too_many_connections(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    live = begin()
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(live))
        for _ in range(20):
            refused = httpx.get(f"{live.url}/health")
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "too_many_connections"
        with connected(live) as silent:
            assert rest(silent).startswith(b"HTTP/1.1 503 ")
    assert eventually(lambda: httpx.get(f"{live.url}/health").status_code == 200)
    assert caplog.text.count("new ones are refused") == 1


@pytest.mark.slow
def test_connections_of_one_address(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trusted proxy, and this machine, may have more; here, this machine's are strangers'."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.9")
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(connections, "is_loopback", lambda _: False)
    live = begin()
    with ExitStack() as stack:

        def served(source: str) -> bool:
            connection = stack.enter_context(connected(live, HEALTH, source))
            return connection.recv(100).startswith(b"HTTP/1.1 200 ")

        assert all(served("127.0.0.2") for _ in range(5)) and not served("127.0.0.2")
        assert all(served("127.0.0.3") for _ in range(5)) and not served("127.0.0.3")
        assert all(served("127.0.0.9") for _ in range(8))
    assert eventually(lambda: not live.server.server_state.connections)
    with ExitStack() as stack:
        assert eventually(lambda: served("127.0.0.2")), "those that are closed do not count"


@pytest.mark.slow
def test_no_file_can_be_opened(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.1)
    live, tries = begin(wyoming=free_port()), 0

    def accept(_: socket.socket) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched, connected(live) as first:
        patched.setattr(socket.socket, "accept", accept)
        with connected(live, HEALTH) as waits, connected(live, HEALTH):
            assert eventually(lambda: tries > 5)
            time.sleep(0.5)
            assert tries < 30, "one a try, not one for each connection that could wait"
            patched.undo()
            assert waits.recv(100).startswith(b"HTTP/1.1 200 ")
        first.sendall(HEALTH)
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
    assert caplog.text.count("Too many open files") == 1 and "Traceback" not in caplog.text


def test_more_files_may_be_open() -> None:
    before = now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(now, 1024), most))
        assert connections.raise_file_limit() >= min(most, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("query", "header"),
    [
        (b"?x=" + b"a" * 9000, b""),
        (b"", b"X-Long: " + b"a" * 9000 + b"\r\n"),
        (b"", b"X: a\r\n" * 200),
        (b"", b"Content-Length: 3\r\n"),
    ],
    ids=["query", "header", "headers", "body"],
)
def test_requests_for_websockets_that_cannot_be_read(
    keyless: Live, query: bytes, header: bytes
) -> None:
    asked = WEBSOCKET % query + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    asked += b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + header + b"\r\n"
    with connected(keyless, asked) as client:
        assert rest(client).startswith(b"HTTP/1.1 400 ")
