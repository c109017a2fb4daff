"""Realtime sessions of a server: who may open one, what none should send, and how each ends."""

import base64
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.resources.realtime.realtime import RealtimeConnection
from openai.types.realtime import ClientSecretCreateResponse
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from slimwhisper.api import SlimWhisper
from slimwhisper.app.realtime import stream_socket as module
from slimwhisper.app.realtime.stream_socket import MAX_MESSAGE
from tests.support.fuzz import examples
from tests.support.live import Begin, Live, freed, full_memory, held_engines, served
from tests.support.paths import WORDS
from tests.support.realtime import (
    PATH,
    QUERY,
    encoded,
    next_event,
    sample,
    silence,
    sound,
    until,
    update,
)
from tests.support.refusals import TABLES

BASIC = {"Authorization": "Basic " + base64.b64encode(b"ann:secret").decode()}
BEARER = {"Authorization": "Bearer the-key"}
ROUTE = "/v1/realtime/client_secrets"
SPEECH = [encoded(piece) for piece in sample(24_000, 1.0)]


def opened(live: Live, key: str = "", **headers: str) -> ClientConnection:
    """A session. key: in a subprotocol, as browsers send it."""
    url = f"{live.url}/v1/realtime?intent=transcription".replace("http", "ws", 1)
    protocols: Any = ["realtime", f"openai-insecure-api-key.{key}"] if key else None
    return connect(url, subprotocols=protocols, additional_headers=headers, max_size=None)


# -- who may open a session ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(model: SlimWhisper) -> Iterator[Live]:
    """A server with a key and a login."""
    yield from served(model, api_key="the-key", login=("ann", "secret"))


def session_of(live: Live, key: str = "", **headers: str) -> dict[str, Any]:
    """The session's first event."""
    with opened(live, key, **headers) as websocket:
        assert websocket.subprotocol == ("realtime" if key else None)
        return dict(json.loads(websocket.recv(timeout=10))["session"])


def status_of(live: Live, key: str = "", **headers: str) -> int:
    """101 if a session begins."""
    try:
        return 101 if session_of(live, key, **headers) else 0
    except InvalidStatus as refused:
        assert json.loads(refused.response.body)["error"]["message"]
        return refused.response.status_code


def secret_of(live: Live, headers: dict[str, str], **transcription: Any) -> httpx.Response:
    session = {"type": "transcription", **sound(transcription=transcription, turn_detection=None)}
    return httpx.post(f"{live.url}{ROUTE}", json={"session": session}, headers=headers)


def test_keys_and_pages_of_other_sites(
    closed: Live, live: Live, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of another site needs a key of its own: a browser sends a saved login along."""
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    for headers, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), (BASIC, 101)):
        assert status_of(closed, **headers) == status
    assert status_of(closed, "wrong") == 401 and status_of(closed, "the-key") == 101
    assert status_of(closed, **BEARER) == 101
    levels = {record.levelno for record in caplog.records}
    assert levels == {logging.INFO}, "a refusal is no error of the server"
    secret = secret_of(live, {}).json()["value"]
    for origin in ("https://evil.example", "null", closed.url.replace("http://", "http://x.")):
        assert status_of(closed, Origin=origin, **BASIC) == status_of(live, Origin=origin) == 403
        assert status_of(closed, "the-key", Origin=origin) == 101
        assert status_of(live, secret, Origin=origin) == 101
    assert status_of(closed, Origin=closed.url, **BASIC) == 101
    assert status_of(live, Origin=live.url) == 101
    assert status_of(live, "ek_x") == status_of(live, Authorization="Bearer ek_x") == 401


def test_a_client_secret_opens_its_session_and_nothing_else(closed: Live) -> None:
    assert secret_of(closed, {}).status_code == 401
    answer = secret_of(closed, BEARER, language="en", prompt="a" * 3500)
    found = ClientSecretCreateResponse.model_validate_json(answer.content, strict=True)
    bearer = {"Authorization": f"Bearer {found.value}"}
    for ways in (bearer, {**bearer, "Origin": "https://a.example"}, {"key": found.value}):
        given = session_of(closed, **ways)["audio"]["input"]
        assert given["transcription"]["language"] == "en" and given["turn_detection"] is None
        assert given["transcription"]["prompt"] == "a" * 3500
    for path in ("/v1/models", "/metrics", "/v1/realtime"):
        assert httpx.get(closed.url + path, headers=bearer).status_code == 401
    assert secret_of(closed, bearer).status_code == 401
    assert closed.post(headers=bearer, files={"file": b"x"}).status_code == 401
    for fields, message in (
        *(
            ({"prompt": long}, "too long for a client")
            for long in ("a" * 5000, "\U0001f600" * 1500)
        ),
        ({"model": "m" * 201}, "at most 200 characters"),
    ):
        refused = secret_of(closed, BEARER, **fields)
        assert refused.status_code == 400 and message in refused.text


def test_bodies_that_are_not_json_or_too_large(live: Live) -> None:
    json, deep, large = "application/json; charset=utf-8", b"[" * 100_000, b" " * (2 << 20)
    many = b'{"x": [' + b"[]," * 60_000 + b"1]}"
    for content, kind, status in (
        *((content, json, 400) for content in (b"{", b"[]", deep, many)),
        *((b"", "", 200), (b"{}", json, 200), (large, "", 413), (b"{}", "", 415)),
        *((b"{}", kind, 415) for kind in ("text/plain", "multipart/form-data")),
    ):
        headers = {"Content-Type": kind}
        answer = httpx.post(f"{live.url}{ROUTE}", content=content, headers=headers)
        assert answer.status_code == status, (content[:2], kind, answer.text)


@pytest.mark.parametrize(("query", "status", "message"), TABLES["realtime_queries"])
def test_queries_that_are_refused(live: Live, query: Any, status: int, message: str) -> None:
    with pytest.raises(InvalidStatus) as refused, live.client().realtime.connect(extra_query=query):
        pass
    assert refused.value.response.status_code == status
    assert message in refused.value.response.body.decode()


# -- how sessions go on and end ------------------------------------------------------------------


def say(connection: RealtimeConnection, *pieces: str) -> None:
    for piece in pieces:
        connection.input_audio_buffer.append(audio=piece)


def ends_with(connection: RealtimeConnection) -> tuple[int, str]:
    """The code and the reason that the server closes with."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            connection._connection.recv(timeout=20)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


def test_the_words_of_a_sample(live: Live) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        say(connection, encoded(bytes(4801)))
        connection.input_audio_buffer.clear()  # with the half of a sample
        say(connection, *SPEECH)
        connection.input_audio_buffer.commit()
        texts, deltas = list[str](), ""
        while len(" ".join(texts).split()) < len(WORDS.split()):
            event = next_event(connection)
            deltas += event.get("delta", "")
            if event["type"] == f"{PATH}.completed":
                texts.append(event["transcript"])
                deltas += " "
                assert event["usage"]["seconds"] > 0.5
        assert " ".join(texts) == " ".join(deltas.split()) == WORDS
        say(connection, silence(0.5))
        connection.input_audio_buffer.commit()
        empty = until(connection, "error")[-1]["error"]
        assert empty["code"] == "input_audio_buffer_commit_empty"
        assert "no speech" in empty["message"]
        # what the stream refuses changes nothing
        before = update(connection, {})["session"]
        other = {"type": "transcription", **sound(transcription={"model": "tiny"})}
        wrong: Any = {"type": "session.update", "event_id": "mine", "session": other}
        connection.send(wrong)
        error = next_event(connection)["error"]
        assert "not available here" in error["message"] and error["event_id"] == "mine"
        assert update(connection, {})["session"] == before
    assert freed(live)


def test_a_connection_that_drops_during_a_decode_leaves_nothing(live: Live) -> None:
    connection = live.client().realtime.connect(extra_query=QUERY).enter()
    say(connection, *SPEECH[:2])
    until(connection, "input_audio_buffer.speech_started")
    connection._connection.socket.shutdown(socket.SHUT_RDWR)
    assert freed(live)


@pytest.mark.parametrize(
    ("limit", "code", "closed"),
    [
        ("_deadline", "session_expired", 1008),
        ("_idle_deadline", "session_idle", 1008),
        ("", "stopping", 1001),
    ],
)
def test_a_session_ends_with_the_last_text(
    begin: Begin, live: Live, limit: str, code: str, closed: int
) -> None:
    live = live if limit else begin()
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        say(connection, *SPEECH[:2])
        until(connection, "input_audio_buffer.speech_started")
        if limit:
            (session,) = live.server._realtime.open
            setattr(session, limit, 0.0)  # the time is over
            update(connection, {})
        else:
            live.server.should_exit = True
        found = until(connection, "error")
        assert f"{PATH}.completed" in [e["type"] for e in found]
        assert found[-1]["error"]["code"] == code
        assert ends_with(connection)[0] == closed
    assert freed(live)


def test_a_stream_that_fails_ends_its_session(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        full_memory(monkeypatch)
        say(connection, SPEECH[0])
        *_, failed, error = until(connection, "error")
        assert failed["type"] == f"{PATH}.failed"
        assert failed["error"]["message"] == error["error"]["message"]
        assert ends_with(connection)[0] == 1011


def test_a_full_backlog_stops_the_reading(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    go = held_engines(monkeypatch)
    monkeypatch.setattr("slimwhisper.app.realtime.stream_feed.MAX_BACKLOG", 2.0)
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        say(connection, *SPEECH[:5])
        event: Any = {"type": "session.update", "session": {"type": "transcription"}}
        connection.send(event)
        with pytest.raises(TimeoutError):
            while event := json.loads(connection._connection.recv(timeout=0.5)):
                assert event["type"] != "session.updated"
        go.set()
        assert until(connection, "session.updated")
    assert freed(live)


def test_a_client_that_never_reads_is_dropped(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit has three events."""
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        update(connection, sound(turn_detection=None))
        say(connection, silence(0.2))
        monkeypatch.setattr(module, "MAX_UNREAD", 2)
        connection.input_audio_buffer.commit()
        code, reason = ends_with(connection)
        assert code == 1013 and "unread" in reason
    assert freed(live)


# -- what no client should send ------------------------------------------------------------------

SAID = st.sampled_from(
    [
        *(None, "", "x", 0, -1, 1e9, True, [], {}, {"type": "server_vad"}, "transcription"),
        *("audio/pcm", "input_audio_buffer.append", "session.update", "\ud800", "é" * 300),
        *(SPEECH[0][:6400], silence(0.1), "AAA", "AA=="),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "event_id", "audio", "session", "include", "input", "format", "rate", "prompt"),
        *("turn_detection", "transcription", "language", "model", "threshold", "x"),
    ]
)
TYPES = (
    *("session.update", "input_audio_buffer.append", "input_audio_buffer.commit"),
    *("input_audio_buffer.clear", "transcription_session.update", "response.create"),
)
VALUES = st.recursive(
    SAID,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
SESSIONS = VALUES | VALUES.map(lambda v: {"type": "transcription", "audio": {"input": v}})
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES), "session": SESSIONS, "audio": VALUES | SAID}
)


@examples(6)
@given(st.lists(EVENTS, min_size=10, max_size=30))
def test_random_events_never_end_a_session(live: Live, events: list[Any]) -> None:
    with opened(live) as websocket:
        for event in [*events, {"type": "end", "event_id": "end"}]:
            websocket.send(json.dumps(event))
        while True:
            found = json.loads(websocket.recv(timeout=20))
            if found["type"] == "error":
                assert found["error"]["type"] in ("invalid_request_error", "rate_limit_error")
                if found["error"]["event_id"] == "end":
                    break
    assert freed(live)


UPDATE = '{"type": "session.update", "session": {"type": "transcription", "audio": {"input": %s}}}'
MESSAGES: list[tuple[str | bytes, str]] = [
    *map(tuple, TABLES["realtime_messages"]),
    (b"\x00\x01", "as text, not as binary"),
    ("[" * 10_000, "is not JSON"),
    ('{"type": [' + "[]," * 60_000 + "1]}", "objects and arrays"),
    ('{"type": 1' + "1" * 5000 + "}", "is not JSON"),
    (
        UPDATE % f'{{"turn_detection": {{"silence_duration_ms": {"1" * 400}}}}}',
        "silence_duration_ms",
    ),
]


def test_wrong_messages(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Each says what is wrong, and the session goes on; unless its bytes are no text."""
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
        websocket.send(b"\xff", text=True)
        with pytest.raises(ConnectionClosed, match="1007"):
            websocket.recv(timeout=10)
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
