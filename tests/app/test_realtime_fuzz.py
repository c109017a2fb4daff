"""What no client should send to the realtime routes: all is answered, and nothing stays behind."""

import json
import random
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from slimwhisper.app.realtime.messages import MAX_MESSAGE
from tests.support.harm import open_files
from tests.support.live import Live, connected, freed
from tests.support.realtime import silence, tone
from tests.support.refusals import TABLES

PIECES = (
    *(None, "", "x", 0, -1, 1e9, True, [], {}, {"type": "server_vad"}, "transcription"),
    *("audio/pcm", "input_audio_buffer.append", "session.update", "\ud800", "é" * 300),
    *(tone(0.05), "AAA", "AA=="),
)
KEYS = (
    *("type", "event_id", "audio", "session", "include", "input", "format", "rate", "prompt"),
    *("turn_detection", "transcription", "language", "model", "threshold", "x"),
)
TYPES = (
    *("session.update", "input_audio_buffer.append", "input_audio_buffer.commit"),
    *("input_audio_buffer.clear", "transcription_session.update", "response.create"),
)


def opened(live: Live) -> ClientConnection:
    url = f"{live.url}/v1/realtime".replace("http", "ws", 1)
    return connect(url, max_size=None)


def anything(random: random.Random, depth: int = 0) -> Any:
    """A JSON value."""
    kind = random.random()
    if depth > 3 or kind < 0.4:
        return deepcopy(random.choice(PIECES))
    if kind < 0.5:
        return [anything(random, depth + 1) for _ in range(random.randrange(3))]
    return {random.choice(KEYS): anything(random, depth + 1) for _ in range(random.randrange(4))}


def event(random: random.Random) -> Any:
    """An event of a client that is nearly right."""
    found = {"type": random.choice(TYPES), "session": anything(random), "audio": anything(random)}
    if isinstance(found["session"], dict) and random.random() < 0.7:
        found["session"]["type"] = "transcription"
        found["session"]["audio"] = {"input": anything(random)}
    if random.random() < 0.3:
        found["audio"] = random.choice([tone(0.05), silence(0.1), "", tone(0.01)[:-4]])
    return found


@pytest.mark.parametrize("seed", range(2))
def test_random_events_never_end_a_session(live: Live, seed: int) -> None:
    generator = random.Random(seed)
    with opened(live) as websocket:
        for _ in range(60):
            websocket.send(json.dumps(event(generator)))
        websocket.send(json.dumps({"type": "end", "event_id": "end"}))
        while True:
            found = json.loads(websocket.recv(timeout=20))
            if found["type"] == "error":
                assert found["error"]["type"] in ("invalid_request_error", "rate_limit_error")
                if found["error"]["event_id"] == "end":
                    break
    assert freed(live)


TURNS = '{"type": "transcription", "audio": {"input": {"turn_detection": %s}}}'
LARGE = TURNS % f'{{"silence_duration_ms": {"1" * 400}}}'
MESSAGES: list[tuple[str | bytes, str]] = [
    *map(tuple, TABLES["realtime_messages"]),
    (b"\x00\x01", "as text, not as binary"),
    ("[" * 10_000, "is not JSON"),
    ('{"type": [' + "[]," * 60_000 + "1]}", "objects and arrays"),
    ('{"type": 1' + "1" * 5000 + "}", "is not JSON"),
    (f'{{"type": "session.update", "session": {LARGE}}}', "silence_duration_ms"),
]


def test_each_wrong_message_says_what_is_wrong(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """And the session goes on."""
    with opened(live) as websocket:
        websocket.recv(timeout=10)
        for message, expected in MESSAGES:
            websocket.send(message)
            found = json.loads(websocket.recv(timeout=10))
            assert found["type"] == "error", message
            assert found["error"]["type"] == "invalid_request_error", message
            assert expected in found["error"]["message"], (message, found)
        websocket.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(websocket.recv(timeout=10))["type"] == "input_audio_buffer.cleared"
    assert freed(live) and "Traceback" not in caplog.text


@pytest.mark.parametrize(("size", "fragments"), [(MAX_MESSAGE + 1, 1), (3 << 20, 7), (20 << 20, 1)])
def test_messages_that_are_too_large(live: Live, size: int, fragments: int) -> None:
    """More than the session reads, which says so; and more than the websocket reads."""
    part = " " * (size // fragments + 1)
    with opened(live) as websocket:
        websocket.recv(timeout=10)
        with suppress(ConnectionClosed):
            websocket.send([part] * fragments if fragments > 1 else part)
        with pytest.raises(ConnectionClosed) as closed:
            assert json.loads(websocket.recv(timeout=10))["error"]["code"] == "too_large"
            websocket.recv(timeout=10)
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert freed(live)


def test_bytes_that_are_no_text(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with opened(live) as websocket:
        websocket.recv(timeout=10)
        websocket.send(b"\xff", text=True)
        with pytest.raises(ConnectionClosed, match="1007"):
            websocket.recv(timeout=10)
    assert freed(live) and "Traceback" not in caplog.text


def test_a_hundred_connections_opened_and_dropped(live: Live) -> None:
    before = open_files()
    head = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    generator = random.Random(0)
    for number in range(100):
        whole = bool(number % 4)
        with connected(live, head if whole else head[:20]) as raw:
            if whole and number % 2:
                raw.recv(100)
            raw.sendall(generator.randbytes(generator.randrange(40)))
    assert freed(live) and open_files() <= before + 5
