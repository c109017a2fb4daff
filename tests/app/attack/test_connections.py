"""Clients that hold connections: each has a deadline, and all together are bounded."""

import asyncio
import errno
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from slimwhisper.app import connections, server
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
