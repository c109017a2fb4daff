"""Clients of the Wyoming port that do not read, and what no client should send."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from slimwhisper.app.realtime import wyoming
from tests.support.live import Begin, free_port, stop

PORT = free_port()


def ping(data: bytes) -> bytes:
    """The event, with its data as JSON."""
    return b'{"type": "ping", "data_length": %d}\n' % len(data) + data


PING = ping(b'{"text": "here"}')


@pytest.fixture
def unread() -> Iterator[list[socket.socket]]:
    """Two clients that ask for much, and read nothing of it, once they are connected."""
    found: list[socket.socket] = []
    yield found
    for client in found:
        client.close()


def ask_for_much(unread: list[socket.socket]) -> None:
    for _ in range(2):
        client = socket.socket()
        unread.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.5)
        client.connect(("127.0.0.1", PORT))
        with suppress(OSError):  # the server reads no more, or has dropped it
            for _ in range(20):
                client.sendall(ping(b'{"text": "%s"}' % (b"a" * 1_000_000)))


def answer(*asked: bytes) -> dict[str, Any]:
    """The last answer to these events: its type, and its data."""
    with socket.create_connection(("127.0.0.1", PORT), timeout=20) as client:
        file = client.makefile("rwb")
        file.write(b"".join(asked))
        file.flush()
        for _ in asked:
            head = json.loads(file.readline())
            data = json.loads(file.read(head["data_length"]))
        return {"type": head["type"], **data}


@pytest.mark.slow
def test_clients_that_do_not_read_are_dropped(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, unread: list[socket.socket]
) -> None:
    monkeypatch.setattr(wyoming, "UNREAD", 1.0)
    monkeypatch.setattr(wyoming, "MAX_CONNECTIONS", 2)
    begin(wyoming=PORT)
    ask_for_much(unread)
    deadline = time.monotonic() + 20
    while answer(PING)["type"] != "pong":
        assert time.monotonic() < deadline, "they still hold the port"
        time.sleep(0.05)


@pytest.mark.slow
def test_clients_that_do_not_read_do_not_hold_a_shutdown(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, unread: list[socket.socket]
) -> None:
    monkeypatch.setattr(wyoming, "UNREAD", 100.0)
    monkeypatch.setattr(wyoming, "CLOSING", 0.5)
    live = begin(wyoming=PORT, patience=0.5)
    ask_for_much(unread)
    stop(live)


def test_data_that_is_not_json(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    begin(wyoming=PORT)
    for data in (rb'{"text": "\ud800"}', b'{"text": NaN}', b'{"text": %s}' % (b"1" * 5000), b"{"):
        for event in (ping(data), b'{"type": "ping", "data": %s}\n' % data):
            found = answer(event)
            assert found["type"] == "error" and "is a JSON object" in found["text"]
        assert answer(ping(data), PING) == {"type": "pong", "text": "here"}
    assert "Traceback" not in caplog.text
