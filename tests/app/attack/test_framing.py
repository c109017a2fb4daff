"""Clients that send a byte at a time: others do not wait until all of it has been parsed."""

import asyncio
import time
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import h11
import httpx
import pytest
from websockets.protocol import Protocol
from websockets.sync.client import connect

from slimwhisper.app import connections
from slimwhisper.app.realtime.wyoming import WyomingClient
from tests.support.live import Begin, Live, connected, free_port, rest
from tests.support.paths import PHONE
from tests.support.realtime import HANDSHAKE

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
