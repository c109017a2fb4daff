"""The Wyoming port: its own client, clients that do not read, and what no client should send."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.app.realtime import wyoming
from slimwhisper.app.server import Server, make_app
from slimwhisper.app.service.host import Models, ServerSettings
from slimwhisper.app.service.jobs import Limits
from slimwhisper.app.service.service import Service
from tests.support.live import Begin, Live, connected, free_port, freed, rest, served, stop
from tests.support.paths import WORDS
from tests.support.realtime import sample
from tests.support.refusals import TABLES
from tests.support.waiting import eventually

PORT = free_port()  # of the module's server
OTHER = free_port()  # of a test's own


@pytest.fixture(scope="module")
def live(model: SlimWhisper) -> Iterator[Live]:
    yield from served(model, Limits(streams=8), wyoming=PORT)


def chunk(more: bytes) -> bytes:
    """The head of a piece of sound."""
    return b'{"type": "audio-chunk", "data": {"rate": 16000, "width": 2, "channels": 1}%s}\n' % more


def ping(data: bytes) -> bytes:
    """The event, with its data as JSON."""
    return b'{"type": "ping", "data_length": %d}\n' % len(data) + data


PING, END = ping(b'{"text": "here"}'), b'{"type": "audio-stop"}\n'


def until_pong(client: socket.socket, data: bytes) -> bytes:
    """What is said to this, up to the answer to a ping."""
    client.sendall(data + PING)
    answer = b""
    while b"pong" not in answer:
        answer += client.recv(1 << 16)
    return answer


def frames(answer: bytes) -> list[tuple[str, dict[str, Any]]]:
    """What the server sent: types, and data."""
    found = []
    while answer:
        head, _, answer = answer.partition(b"\n")
        line = json.loads(head)
        length = line.get("data_length", 0)
        found.append((line["type"], json.loads(answer[:length] or b"{}")))
        answer = answer[length:]
    return found


def answers(port: int, data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """All that is said to a client that sends this and no more."""
    with connected(port, data) as client:
        client.shutdown(socket.SHUT_WR)
        return frames(rest(client))


@pytest.mark.filterwarnings("ignore:'audioop' is deprecated:DeprecationWarning")
def test_wyomings_own_client(live: Live) -> None:
    pytest.importorskip("wyoming")
    from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.event import Event
    from wyoming.info import Describe, Info

    async def main() -> tuple[Info, list[Event]]:
        async with AsyncTcpClient("127.0.0.1", PORT, read_timeout=20) as client:

            async def read() -> Event:
                event = await client.read_event()
                assert event is not None
                return event

            await client.write_event(Describe().event())
            info = Info.from_event(await read())
            await client.write_event(Transcribe(name="digits", language="en").event())
            await client.write_event(AudioStart(22_050, 2, 1).event())
            for piece in sample(22_050, 0.25):
                await client.write_event(AudioChunk(22_050, 2, 1, piece).event())
            await client.write_event(AudioStop().event())
            events = [await read()]
            while not TranscriptStop.is_type(events[-1].type):
                events.append(await read())
            return info, events

    info, (start, *chunks, whole, _) = asyncio.run(main())
    assert TranscriptStart.is_type(start.type) and len(chunks) > 1
    assert "".join(TranscriptChunk.from_event(chunk).text for chunk in chunks) == WORDS
    found = Transcript.from_event(whole)
    assert (found.text, found.language) == (WORDS, "en")
    program = info.asr[0]
    assert program.supports_transcript_streaming and program.name == "slimwhisper"
    assert program.models[0].name == "digits" and program.models[0].languages == ["en"]
    assert freed(live)


def test_what_cannot_be_served_ends_the_server_with_one_line(
    live: Live, model: SlimWhisper, caplog: pytest.LogCaptureFixture
) -> None:
    service, chosen = Service(lambda _: model), ServerSettings(port=free_port(), wyoming=PORT)
    server = Server(make_app(service, Models("digits", strict=True), chosen))
    server.run()
    service.close()
    assert not server.started and f"--wyoming {PORT}: " in caplog.text


def test_wyoming_at_shutdown(begin: Begin) -> None:
    """What was heard is told; a recording that the server cuts off gets no transcript."""
    stopped = begin(wyoming=OTHER, patience=60.0)
    pieces = sample(16_000, 1.0)
    sound = b"".join(chunk(b', "payload_length": %d' % len(piece)) + piece for piece in pieces)
    with ExitStack() as stack:
        idle, cut, whole = (stack.enter_context(connected(OTHER)) for _ in range(3))
        whole.sendall(sound + END)
        opened = stopped.service.streams.open
        assert eventually(lambda: any(stream.finished for stream in list(opened)))
        answer = until_pong(cut, sound)
        stopped.server.handle_exit(signal.SIGTERM, None)
        told = [frames(rest(raw)) for raw in (idle, whole)]
        told.append(frames(answer + rest(cut)))
    for events in told:
        kind, data = events[-1]
        assert kind == "error" and data["code"] == "stopping" and "connect again" in data["text"]
    assert len(told[0]) == 1
    for events, transcripts in ((told[1], [WORDS]), (told[2], [])):
        chunks = [data["text"] for kind, data in events if kind == "transcript-chunk"]
        assert "".join(chunks) == WORDS
        assert [data["text"] for kind, data in events if kind == "transcript"] == transcripts
    assert not stopped.service.streams.open


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data.encode(), message) for data, message in TABLES["wyoming"]),
        (b"x" * 70_000, "is longer than"),
    ],
)
def test_says_what_is_wrong(live: Live, data: bytes, message: str) -> None:
    events = answers(PORT, data)
    (said,) = (data["text"] for kind, data in events if kind == "error")
    assert message in said
    of_recording = b'"audio-' in data
    ends = [("transcript", {"text": ""}), ("transcript-stop", {})]
    assert (events[-2:] == ends) == of_recording
    assert freed(live)


def test_a_recording_that_began_while_streams_were_full_is_refused_whole(live: Live) -> None:
    """One error, one empty transcript; the next recording of the connection is heard."""
    silence = chunk(b', "payload_length": 3200') + bytes(3200)
    with ExitStack() as stack:
        others = [stack.enter_context(connected(PORT, silence)) for _ in range(8)]
        assert eventually(lambda: len(live.service.streams.open) == 8)
        client = stack.enter_context(connected(PORT))
        answer = until_pong(client, silence * 3)
        assert [kind for kind, _ in frames(answer)] == [
            *("error", "transcript", "transcript-stop", "pong")
        ]
        assert frames(answer)[0][1]["code"] == "queue_full"
        for other in others:
            other.close()
        assert freed(live)
        client.sendall(silence * 3 + END + silence + END)
        client.shutdown(socket.SHUT_WR)
        kinds = [kind for kind, _ in frames(rest(client))]
    assert kinds == ["transcript-start", "transcript", "transcript-stop"]


def test_data_that_is_not_json(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """After data of its own, the next event is found."""
    for data in (rb'{"text": "\ud800"}', b'{"text": NaN}', b'{"text": %s}' % (b"1" * 5000), b"{"):
        ((kind, said),) = answers(PORT, b'{"type": "ping", "data": %s}\n' % data)
        assert kind == "error" and "is not JSON" in said["text"]
        (kind, said), *after = answers(PORT, ping(data) + PING)
        assert kind == "error" and "is not JSON" in said["text"]
        assert after == [("pong", {"text": "here"})]
    assert "Traceback" not in caplog.text


@contextmanager
def asking_for_much() -> Iterator[int]:
    """Two clients that ask for much, and read nothing of it, once they are connected; how many the
    server keeps waiting, as it cannot send them more.
    """
    stuck = 0
    with ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(0.5)
            client.connect(("127.0.0.1", OTHER))
            try:
                for _ in range(20):
                    client.sendall(ping(b'{"text": "%s"}' % (b"a" * 1_000_000)))
            except TimeoutError:  # the server reads no more
                stuck += 1
            except OSError:  # it has dropped the client
                pass
        yield stuck


@pytest.mark.slow
def test_clients_that_do_not_read(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are dropped; nor do they hold a shutdown as long as a client may take to read."""
    monkeypatch.setattr(wyoming, "CLOSING", 0.5)
    live = begin(wyoming=OTHER, patience=0.5)
    with patch.multiple(wyoming, MAX_CONNECTIONS=2, UNREAD=1.0), asking_for_much():
        assert eventually(lambda: answers(OTHER, PING)[0][0] == "pong"), "they hold the port"
    with asking_for_much() as stuck:
        assert stuck == 2
        started = time.monotonic()
        stop(live)  # waits for at most 30 s
        assert time.monotonic() - started < 15
    assert "Exception in callback" not in caplog.text
