"""How realtime sessions end, and how many there may be."""

import asyncio
import json
from typing import Any

import pytest
from openai.resources.realtime.realtime import RealtimeConnection

from slimwhisper.app.realtime import connection as connection_module
from slimwhisper.app.realtime.connection import Connection
from slimwhisper.app.realtime.session import START
from slimwhisper.app.service.host import Host
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.settings import Settings
from slimwhisper.live.types import SpeechStarted, Text
from tests.support.live import Begin, Live, eventually
from tests.support.realtime import (
    PATH,
    QUERY,
    ScriptedStream,
    next_event,
    tone,
    until,
)


def ends_with(connection: RealtimeConnection) -> int:
    """The code that the server closes with."""
    from websockets.exceptions import ConnectionClosed

    with pytest.raises(ConnectionClosed) as closed:
        while True:
            connection._connection.recv(timeout=10)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


@pytest.mark.parametrize(
    ("limit", "code", "message"),
    [
        ({"session_seconds": 0.3}, "session_expired", "has lasted"),
        ({"idle_seconds": 0.3}, "session_idle", "no audio for 0.3 s"),
    ],
)
def test_limits_of_time_end_with_the_last_text(
    begin: Begin, streams: list[ScriptedStream], limit: Any, code: str, message: str
) -> None:
    live = begin(**limit)
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        connection.input_audio_buffer.append(audio=tone(0.2))
        found = until(connection, "error")
        assert f"{PATH}.completed" in [e["type"] for e in found]
        assert found[-1]["error"]["code"] == code and message in found[-1]["error"]["message"]
        assert ends_with(connection) == 1008
    assert eventually(lambda: streams[0].closed)


def test_shutdown_gives_the_last_text(begin: Begin, streams: list[ScriptedStream]) -> None:
    live = begin()
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        connection.input_audio_buffer.append(audio=tone(0.2))
        until(connection, f"{PATH}.delta")
        live.server.should_exit = True
        found = until(connection, "error")
        assert f"{PATH}.completed" in [e["type"] for e in found]
        assert found[-1]["error"]["code"] == "stopping"
        assert ends_with(connection) == 1001
    assert eventually(lambda: streams[0].closed)


def test_too_many_streams(scripted: Live, streams: list[ScriptedStream]) -> None:
    from websockets.exceptions import InvalidStatus

    connect = scripted.client().realtime.connect
    with connect(extra_query=QUERY) as one, connect(extra_query=QUERY) as two:
        next_event(one), next_event(two)
        with pytest.raises(InvalidStatus) as refused, connect(extra_query=QUERY):
            pass
        response = refused.value.response
        assert response.status_code == 429 and response.headers["Retry-After"]
        assert json.loads(response.body)["error"]["type"] == "rate_limit_error"


def test_a_full_backlog_stops_the_reading(
    connection: RealtimeConnection, streams: list[ScriptedStream]
) -> None:
    streams[0].backlog = 31.0
    connection.input_audio_buffer.append(audio=tone(0.2))
    update_event: Any = {"type": "session.update", "session": {"type": "transcription"}}
    connection.send(update_event)
    with pytest.raises(TimeoutError):
        connection._connection.recv(timeout=0.15)
    assert not streams[0].appended
    streams[0].backlog = 0.0
    assert until(connection, "session.updated")
    assert sum(map(len, streams[0].appended)) > 2000


class Unread:
    """A websocket whose client reads nothing."""

    client = None

    def __init__(self) -> None:
        self.closed: tuple[int, str] | None = None

    async def accept(self, subprotocol: str | None) -> None: ...

    async def send_text(self, text: str) -> None:
        await asyncio.Event().wait()

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason


def test_a_client_that_does_not_read_is_dropped(
    scripted: Live, streams: list[ScriptedStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CLOSING", 0.05)
    websocket: Any = Unread()

    async def main() -> None:
        session = Connection(websocket, START, Host(scripted.service, Models("digits"), Settings()))
        running = asyncio.create_task(session.run(None))
        streams[0].tell(SpeechStarted(0, 0.0))
        for _ in range(connection_module.MAX_UNREAD + 10):
            streams[0].tell(Text(0, " five", ""))
        await asyncio.wait_for(running, 20)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert websocket.closed[0] == 1013 and "read them as they come" in websocket.closed[1]
    assert streams[0].closed
