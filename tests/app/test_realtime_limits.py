"""How realtime sessions go on and end, and how many there may be."""

import json
import socket
from typing import Any

import pytest
import torch
from openai.resources.realtime.realtime import RealtimeConnection
from websockets.exceptions import ConnectionClosed

from slimwhisper.app.realtime import connection as connection_module
from slimwhisper.service.shared_engine import SharedEngine
from tests.support.live import Begin, Live, freed, held_engines
from tests.support.realtime import (
    PATH,
    QUERY,
    WORDS,
    encoded,
    next_event,
    sample,
    silence,
    sound,
    until,
    update,
)

SPEECH = [encoded(piece) for piece in sample(24_000, 1.0)]


def say(connection: RealtimeConnection, *pieces: str) -> None:
    for piece in pieces:
        connection.input_audio_buffer.append(audio=piece)


def ends_with(connection: RealtimeConnection) -> int:
    """The code that the server closes with."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            connection._connection.recv(timeout=20)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_the_words_of_a_sample(live: Live) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        say(connection, *SPEECH)
        connection.input_audio_buffer.commit()
        texts, deltas = list[str](), ""
        while len(" ".join(texts).split()) < len(WORDS.split()):
            event = next_event(connection)
            if event["type"] == f"{PATH}.delta":
                deltas += event["delta"]
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
    assert freed(live)


def test_what_the_stream_refuses_changes_nothing(live: Live) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        before = update(connection, {})["session"]
        event: Any = {"type": "session.update", "event_id": "mine"}
        other = {"type": "transcription", **sound(transcription={"model": "tiny"})}
        connection.send({**event, "session": other})
        error = next_event(connection)["error"]
        assert "not available here" in error["message"] and error["event_id"] == "mine"
        assert update(connection, {})["session"] == before


def test_a_connection_that_drops_during_a_decode_leaves_nothing(live: Live) -> None:
    connection = live.client().realtime.connect(extra_query=QUERY).enter()
    say(connection, *SPEECH[:2])
    until(connection, "input_audio_buffer.speech_started")
    connection._connection.socket.shutdown(socket.SHUT_RDWR)
    assert freed(live)


@pytest.mark.parametrize(
    ("limit", "code", "message", "closed"),
    [
        ("_deadline", "session_expired", "limit", 1008),
        ("_idle_deadline", "session_idle", "no audio for", 1008),
        ("", "stopping", "shutting down", 1001),
    ],
)
def test_a_session_ends_with_the_last_text(
    begin: Begin, limit: str, code: str, message: str, closed: int
) -> None:
    live = begin()
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        say(connection, *SPEECH[:2])
        until(connection, "input_audio_buffer.speech_started")
        if limit:
            (session,) = live.server._realtime._open
            setattr(session, limit, 0.0)  # the time is over
            update(connection, {})
        else:
            live.server.should_exit = True
        found = until(connection, "error")
        assert f"{PATH}.completed" in [e["type"] for e in found]
        assert found[-1]["error"]["code"] == code and message in found[-1]["error"]["message"]
        assert ends_with(connection) == closed
    assert freed(live)


def test_a_stream_that_fails_ends_its_session(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SharedEngine.step

    def fails(self: Any) -> Any:
        monkeypatch.setattr(SharedEngine, "step", step)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with live.client().realtime.connect(extra_query=QUERY) as connection:
        say(connection, SPEECH[0])
        until(connection, "input_audio_buffer.speech_started")
        monkeypatch.setattr(SharedEngine, "step", fails)
        say(connection, *SPEECH[1:])
        *_, failed, error = until(connection, "error")
        assert failed["type"] == f"{PATH}.failed"
        assert failed["error"]["message"] == error["error"]["message"]
        assert ends_with(connection) == 1011


def test_a_full_backlog_stops_the_reading(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    go = held_engines(monkeypatch)
    monkeypatch.setattr("slimwhisper.app.realtime.stream_feed.MAX_BACKLOG", 2.0)
    live = begin()
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


def test_a_client_that_does_not_read_is_dropped(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit has three events."""
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        update(connection, sound(turn_detection=None))
        say(connection, silence(0.2))
        monkeypatch.setattr(connection_module, "MAX_UNREAD", 2)
        connection.input_audio_buffer.commit()
        with pytest.raises(ConnectionClosed) as closed:
            until(connection, "conversation.item.done")
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
        assert "unread" in closed.value.rcvd.reason
    assert freed(live)
