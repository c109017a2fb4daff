"""Clients that hold connections, each of which has a deadline, or send a byte at a time."""

import asyncio
import errno
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h11
import httpx
import pytest
from websockets.protocol import Protocol
from websockets.sync.client import connect

from slimwhisper.app import connections, server
from slimwhisper.app.realtime.wyoming import WyomingClient
from tests.support.live import (
    Begin,
    Live,
    connected,
    eventually,
    free_port,
    held_readers,
    rest,
    serving,
    status_of,
)
from tests.support.paths import PHONE
from tests.support.realtime import HANDSHAKE

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPLOAD = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
FORM = b"Authorization: Bearer s3cret\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x"
# what a client sends at once, and what it goes on to send, byte by byte
SLOW = {
    "nothing": (b"", b""),
    "half a request line": (b"GET /he", b"a"),
    "half a head": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: ", b"a"),
    "empty lines": (b"\r\n", b"\r\n"),
    "half a handshake": (HANDSHAKE + b"X-Half: ", b"a"),
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


def is_closed(live: Live, first: bytes, more: bytes) -> bool:
    """Whether the server closes a connection on which a client is slow."""
    deadline = time.monotonic() + 20
    with connected(live, first) as connection, suppress(ConnectionError):
        connection.settimeout(0.05)
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                if not connection.recv(1 << 16):
                    return True
            connection.sendall(more)
    return time.monotonic() < deadline


@pytest.mark.usefixtures("hasty")
def test_slow_clients_are_closed(keyed: Live) -> None:
    with ThreadPoolExecutor(len(SLOW)) as pool:
        tried = {what: pool.submit(is_closed, keyed, *sent) for what, sent in SLOW.items()}
    assert [what for what, closed in tried.items() if not closed.result()] == []


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
    monkeypatch.setattr(server, "generate_latest", lambda _: b"x" * (8 << 20))
    opened = keyless.server.server_state.connections
    others = len(opened)
    with connected(keyless, HEALTH.replace(b"health", b"metrics")):
        assert eventually(lambda: len(opened) > others)
        assert eventually(lambda: len(opened) <= others)


def test_too_many_connections(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    live = begin()
    short = [httpx.get(f"{live.url}/health").status_code for _ in range(30)]
    assert short == [200] * 30, "of this machine, only those that are open count"
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
    live = begin(wyoming=free_port())
    accept = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with monkeypatch.context() as patched, connected(live) as first:
        patched.setattr(socket.socket, "accept", accept)
        with connected(live, HEALTH) as waits, connected(live, HEALTH):
            assert eventually(lambda: accept.call_count > 5)
            time.sleep(0.5)
            assert accept.call_count < 30, "one a try, not one for each connection that could wait"
            patched.undo()
            assert waits.recv(100).startswith(b"HTTP/1.1 200 ")
        first.sendall(HEALTH)
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
    assert caplog.text.count("Too many open files") == 1 and "Traceback" not in caplog.text


def test_requests_for_websockets_that_cannot_be_read(keyless: Live) -> None:
    long, line = b"a" * 9000, b"\r\n"
    for query, header in (
        *((b"?x=" + long, b""), (b"", b"X-Long: " + long + line), (b"", (b"X: a" + line) * 200)),
        (b"", b"Content-Length: 3\r\n"),
    ):
        asked = HANDSHAKE.replace(b" HTTP", query + b" HTTP") + header + line
        with connected(keyless, asked) as client:
            assert rest(client).startswith(b"HTTP/1.1 400 ")


@pytest.mark.slow
def test_a_thousand_slow_connections(tmp_path: Path) -> None:
    """With 1024 files, which is a usual limit, the server goes on to answer, and logs little."""
    log = tmp_path / "log"
    with serving(log, "--no-page", files=1024) as (url, _), ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(connected(int(url.rpartition(":")[2]), b"GET /he"))
        assert status_of(url) == 503
        assert eventually(lambda: status_of(url) == 200, 60)
    found = log.read_text()
    assert found.count("new ones are refused") == 1
    assert "Traceback" not in found and len(found) < 100_000


# Clients that send a byte at a time: others do not wait until all of it has been parsed


HOST = b"Host: localhost\r\n"
CHUNKED = b"Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\n" + HOST + CHUNKED
KEYED = CHUNKED.replace(b"\r\n", b"\r\nAuthorization: Bearer s3cret\r\n", 1)
CHUNK = b"1\r\na\r\n"
OPEN = HANDSHAKE + b"Authorization: Bearer s3cret\r\n\r\n"
MASKED = b"\x80\0\0\0\0"  # no bytes
# what comes first, and what then comes again and again
POURED = {
    "refused": (POST % b"/v1/audio/transcriptions", CHUNK),
    "unknown": (POST % b"/nothing", CHUNK),
    "open": (POST % b"/health", CHUNK),
    "login": (POST % b"/login", CHUNK),
    "accepted": ((POST % b"/inference").replace(CHUNKED, KEYED), CHUNK),
    "extensions": ((POST % b"/inference").replace(CHUNKED, KEYED), b"1;a=b\r\na\r\n"),
    "fragments": (OPEN + b"\x01" + MASKED, b"\0" + MASKED),
    "fragments of a byte": (OPEN + b"\x01" + MASKED, b"\0\x81\0\0\0\0a"),
    "pings": (OPEN, b"\x89" + MASKED),
    "pongs": (OPEN, b"\x8a" + MASKED),
    "messages": (OPEN, b"\x81" + MASKED),
    "headers": (b"GET /health HTTP/1.1\r\n", b"a:\r\n"),
}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Is called for every piece that is parsed."""
    called = Mock()
    for kind, name in ((h11.Connection, "next_event"), (Protocol, "recv_frame")):
        usual = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *a, parse=usual: (called(), parse(*a))[1])
    return called


@pytest.mark.parametrize("what", POURED)
def test_tiny_pieces_are_not_parsed_for_long(
    keyed: Live, parsed: Mock, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the server read them for long."""
    monkeypatch.setattr(connections, "DROPPING", 0.2)
    first, again = POURED[what]
    with connected(keyed, first) as client, suppress(ConnectionError):
        client.settimeout(0.2)  # what it answers to pings is not read
        time.sleep(0.1)
        with suppress(TimeoutError):
            for _ in range(100):
                client.sendall(again * 300)
        client.settimeout(20)
        rest(client)
    assert parsed.call_count < 3000


def test_a_refusal_is_read_by_a_client_that_still_sends(
    keyed: Live, parsed: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only that connection is closed: one goes on after a whole body."""
    monkeypatch.setattr(connections, "DROPPING", 0.5)
    with connected(keyed, POST % b"/v1/audio/transcriptions") as client:
        first = client.recv(1)
        for _ in range(100):
            client.sendall(CHUNK * 300)
        head, _, body = (first + rest(client)).lower().partition(b"\r\n\r\n")
    assert head.startswith(b"http/1.1 401 ") and b"\r\nconnection: close" in head
    assert b"invalid_api_key" in body
    assert parsed.call_count < 3000
    with httpx.Client(base_url=keyed.url) as other:
        for _ in range(2):
            refused = other.post("/nothing", content=b"")
            assert refused.status_code == 401 and "connection" not in refused.headers


def test_pieces_with_content_may_be_many(keyless: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PIECES", 20)
    monkeypatch.setattr(connections, "PER_SECOND", 0.1)
    request = httpx.Request("POST", keyless.url, files={"file": PHONE.read_bytes()})
    body, step = request.read(), 2 * connections.PIECE
    pieces = (body[start : start + step] for start in range(0, len(body), step))
    headers = {"Content-Type": request.headers["content-type"]}
    url = f"{keyless.url}/v1/audio/transcriptions"
    answer = httpx.post(url, content=pieces, headers=headers, timeout=60)
    assert answer.status_code == 200 and answer.json()["text"]
    with connect(f"{keyless.url.replace('http', 'ws')}/v1/realtime?model=digits") as client:
        client.recv()
        client.send(["x" * step] * 100)  # in fragments
        assert "not JSON" in str(client.recv())


def test_a_client_with_much_to_say_lets_others_speak(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the Wyoming port, whose events are read from a buffer."""
    most = together = 0
    handle = WyomingClient._handle

    def turn() -> None:
        nonlocal together
        together = 0

    async def counts(self: WyomingClient, frame: Any) -> None:
        nonlocal most, together
        if not together:
            asyncio.get_running_loop().call_soon(turn)
        together += 1
        most = max(most, together)
        await handle(self, frame)

    monkeypatch.setattr(WyomingClient, "_handle", counts)
    begin(wyoming=(port := free_port()))
    with connected(port, b'{"type": "other"}\n' * 1000 + b'{"type": "ping"}\n') as client:
        assert b"pong" in client.recv(100)
    assert most == 1
