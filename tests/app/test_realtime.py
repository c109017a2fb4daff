"""OpenAI's Realtime API with OpenAI's client, on a server whose streams follow a script."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.resources.realtime.realtime import RealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from slimwhisper.api import SlimWhisper
from slimwhisper.app.realtime.conversation import Conversation
from slimwhisper.app.realtime.session import SessionConfig
from slimwhisper.app.service.jobs import BusyError, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.streams import Listener
from slimwhisper.errors import OptionError
from slimwhisper.live.types import Ended, LiveOptions, SpeechStarted, SpeechStopped
from slimwhisper.types import Segment
from tests.support.live import Begin, Live, start, stop
from tests.support.realtime import ScriptedStream, silence, tone

QUERY = {"intent": "transcription"}
PATH = "conversation.item.input_audio_transcription"
EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
# our own, and what may have fields of ours
OURS = (f"{PATH}.tentative", "transcription_session.updated", "session.updated")


@pytest.fixture(scope="module")
def opened() -> Iterator[list[ScriptedStream]]:
    """The streams that were opened; the servers have no others."""
    found: list[ScriptedStream] = []

    def open_stream(
        _: Service, model: ModelChoice, options: LiveOptions, user: str, listener: Listener
    ) -> ScriptedStream:
        if sum(not s.closed for s in found) >= 2:
            raise BusyError("2 streams are open; try again in a minute")
        found.append(ScriptedStream(model, options, user, listener))
        return found[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Service, "open_stream", open_stream)
        yield found


@pytest.fixture(scope="module")
def live(model: SlimWhisper, opened: list[ScriptedStream]) -> Iterator[Live]:
    running = start(model)
    yield running
    stop(running)


@pytest.fixture
def streams(opened: list[ScriptedStream]) -> list[ScriptedStream]:
    """Those of one test."""
    opened.clear()
    return opened


@pytest.fixture
def connection(live: Live, streams: list[ScriptedStream]) -> Iterator[RealtimeConnection]:
    with live.client().realtime.connect(extra_query=QUERY) as found:
        assert next_event(found)["type"] == "session.created"
        yield found


def next_event(connection: RealtimeConnection) -> dict[str, Any]:
    """The next event as it was sent; it is one of OpenAI's, or of our own."""
    event = json.loads(connection._connection.recv(timeout=10))
    if event["type"] not in OURS:
        EVENTS.validate_python(event, strict=True)
    return dict(event)


def until(connection: RealtimeConnection, last: str) -> list[dict[str, Any]]:
    """The events up to one of this type."""
    found = [next_event(connection)]
    while found[-1]["type"] != last:
        found.append(next_event(connection))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("conversation.item.") for event in events]


def update(connection: RealtimeConnection, session: dict[str, Any]) -> dict[str, Any]:
    """The answer to a `session.update`."""
    event: Any = {"type": "session.update", "session": {"type": "transcription", **session}}
    connection.send({**event, "event_id": "mine"})
    return next_event(connection)


def sound(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": fields}}


def test_an_utterance_with_server_vad(connection: RealtimeConnection) -> None:
    for audio in (tone(0.5), tone(0.5), silence(0.6)):
        connection.input_audio_buffer.append(audio=audio)
    found = until(connection, f"{PATH}.completed")
    assert kinds(found) == [
        "input_audio_buffer.speech_started",
        "input_audio_transcription.delta",
        "input_audio_transcription.delta",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "added",
        "done",
        "input_audio_transcription.segment",
        "input_audio_transcription.completed",
    ]
    item = found[0]["item_id"]
    assert all(event.get("item_id", item) == item for event in found)
    assert found[0]["audio_start_ms"] == 0 and 1000 < found[3]["audio_end_ms"] <= 1600
    assert [event["delta"] for event in found[1:3]] == ["five", " five"]
    assert found[4]["previous_item_id"] is None and found[5]["item"]["id"] == item
    assert found[-1]["transcript"] == "five five"
    assert found[-1]["usage"]["type"] == "duration" and 1 < found[-1]["usage"]["seconds"] <= 1.6
    assert len({event["event_id"] for event in found}) == len(found)
    connection.input_audio_buffer.append(audio=tone(0.5))
    connection.input_audio_buffer.append(audio=silence(0.6))
    second = until(connection, f"{PATH}.completed")
    committed = next(e for e in second if e["type"].endswith("committed"))
    assert committed["previous_item_id"] == item and committed["item_id"] != item


def test_manual_commits_of_speech_and_of_silence(connection: RealtimeConnection) -> None:
    assert update(connection, sound(turn_detection=None))["type"] == "session.updated"
    connection.input_audio_buffer.append(audio=silence(0.25))
    connection.input_audio_buffer.commit()
    connection.input_audio_buffer.append(audio=tone(0.5))
    connection.input_audio_buffer.commit()
    first, second = (until(connection, f"{PATH}.completed") for _ in range(2))
    assert first[-1]["transcript"] == "" and second[-1]["transcript"] == "five"
    committed = [e["item_id"] for e in (*first, *second) if e["type"].endswith("r.committed")]
    assert committed == [first[-1]["item_id"], second[-1]["item_id"]]
    assert [e[-1]["usage"]["seconds"] for e in (first, second)] == [0.25, 0.5]
    connection.input_audio_buffer.commit()
    refused = next_event(connection)["error"]
    assert refused["code"] == "input_audio_buffer_commit_empty" and "0 ms" in refused["message"]


def test_clear_forgets(connection: RealtimeConnection) -> None:
    update(connection, sound(turn_detection=None))
    connection.input_audio_buffer.append(audio=silence(0.2))
    connection.input_audio_buffer.clear()
    assert next_event(connection)["type"] == "input_audio_buffer.cleared"
    connection.input_audio_buffer.append(audio=tone(0.5))
    connection.input_audio_buffer.commit()
    found = until(connection, f"{PATH}.completed")
    assert found[-1]["transcript"] == "five" and found[-1]["usage"]["seconds"] < 0.55


def test_commit_with_server_vad(
    connection: RealtimeConnection, streams: list[ScriptedStream]
) -> None:
    connection.input_audio_buffer.append(audio=tone(0.5))
    connection.input_audio_buffer.commit()
    assert until(connection, f"{PATH}.completed")[-1]["transcript"] == "five"
    connection.input_audio_buffer.append(audio=silence(0.25))
    connection.input_audio_buffer.commit()
    assert "no speech" in next_event(connection)["error"]["message"]


def test_words_and_tentative_text_on_request(
    connection: RealtimeConnection, streams: list[ScriptedStream]
) -> None:
    wanted = ["item.input_audio_transcription.words", "item.input_audio_transcription.tentative"]
    session = update(connection, {"include": wanted})["session"]
    assert session["include"] == wanted and streams[0].options.words
    connection.input_audio_buffer.append(audio=tone(0.5))
    connection.input_audio_buffer.append(audio=silence(0.6))
    found = until(connection, f"{PATH}.completed")
    delta = next(e for e in found if e["type"] == f"{PATH}.delta")
    word = {"word": " five", "start": 0.25, "end": 0.5, "probability": 0.875}
    assert delta["words"] == [word]
    tentative = next(e for e in found if e["type"] == f"{PATH}.tentative")
    assert (tentative["text"], tentative["content_index"]) == (" six", 0)
    assert next(e for e in found if e["type"] == f"{PATH}.segment")["words"] == [word]


def test_every_field_reaches_the_stream(
    connection: RealtimeConnection, streams: list[ScriptedStream]
) -> None:
    turns = {"type": "server_vad", "threshold": 0.25, "prefix_padding_ms": 100}
    given = {
        "model": "gpt-4o-transcribe",
        "language": "de",
        "prompt": "Numbers.",
        "keywords": ["Zürich", "Bern"],
        "delay": "low",
        "task": "translate",
    }
    format = {"type": "audio/pcm", "rate": 16000}
    answer = update(
        connection,
        sound(format=format, transcription=given, turn_detection=turns, noise_reduction=None),
    )
    shown = answer["session"]["audio"]["input"]
    assert shown["transcription"] == given and shown["format"] == format
    assert shown["turn_detection"] == {**turns, "silence_duration_ms": 500}
    assert streams[0].options == LiveOptions(
        task="translate",
        language="de",
        prompt="Numbers.",
        hotwords="Zürich, Bern",
        update=0.75,
        vad_threshold=0.25,
        prefix_padding_ms=100,
    )
    # what is not named stays
    kept = update(connection, sound(transcription={"language": None}))["session"]["audio"]["input"]
    assert kept["transcription"] == {**given, "language": None}
    assert kept["turn_detection"]["threshold"] == 0.25


def test_unknown_fields_are_named_once(connection: RealtimeConnection) -> None:
    session = update(connection, {"speed": 2, **sound(echo={"a": 1})})["session"]
    assert session["warnings"] == [
        "unknown field 'session.speed' was ignored",
        "unknown field 'session.audio.input.echo' was ignored",
    ]
    assert "warnings" not in update(connection, {})["session"]


VAD = {"type": "server_vad"}
REFUSED = [
    ({"type": "realtime"}, "session.type", "transcribes and makes no responses"),
    ({"type": "x"}, "session.type", "must be 'transcription'"),
    ({"include": ["item.x"]}, "session.include", "choose from"),
    (
        {"include": ["item.input_audio_transcription.logprobs"]},
        "session.include item.input_audio_transcription.logprobs",
        "/v1/audio/transcriptions does",
    ),
    ({"audio": []}, "session.audio", "must be a JSON object"),
    (sound(noise_reduction={"type": "near_field"}), ".noise_reduction", "send null"),
    (sound(format={"type": "audio/mp3"}), ".format.type", "is not one of audio/pcm"),
    (sound(format={"type": "audio/pcm", "rate": 44100}), ".format.rate", "24000 or 16000"),
    (sound(format={"type": "audio/pcmu", "rate": 16000}), ".format.rate", "must be 8000"),
    (sound(turn_detection={"type": "semantic_vad"}), ".turn_detection.type", "server_vad, or null"),
    (sound(turn_detection={**VAD, "threshold": 2}), ".threshold", "is not between"),
    (sound(turn_detection={**VAD, "silence_duration_ms": 1.5}), "duration_ms", "whole number"),
    (sound(turn_detection={**VAD, "create_response": True}), ".create_response", "no responses"),
    (sound(turn_detection={**VAD, "idle_timeout_ms": 5000}), ".idle_timeout_ms", "no response"),
    (sound(transcription=None), ".transcription", "nothing to do"),
    (sound(transcription={"language": "klingon"}), ".language", "not a language's code"),
    (sound(transcription={"language": "yi"}), None, "not in this model"),
    (sound(transcription={"languages": ["en", "de"]}), ".languages", "takes one language"),
    (sound(transcription={"model": "gpt-4o-transcribe-diarize"}), "model", "not told apart"),
    (sound(transcription={"model": "tiny"}), "model", "is not available here"),
    (sound(transcription={"delay": "none"}), ".delay", "is not one of minimal"),
    (sound(transcription={"prompt": "x" * 10_001}), ".prompt", "at most 10000"),
    (sound(transcription={"keywords": "x"}), ".keywords", "a list of"),
    (sound(transcription={"task": "x"}), ".task", "is not one of"),
]


def test_what_is_refused_says_why_and_changes_nothing(
    connection: RealtimeConnection, streams: list[ScriptedStream]
) -> None:
    before = update(connection, {})["session"]
    for session, param, message in REFUSED:
        answer = update(connection, session)
        assert answer["type"] == "error", session
        error = answer["error"]
        assert message in error["message"], (session, error)
        assert error["type"] == "invalid_request_error" and error["event_id"] == "mine", session
        assert (error["param"] or "").endswith(param or ""), (session, error)
    assert update(connection, {})["session"] == before
    assert not streams[0].closed


def test_the_beta_is_understood(
    connection: RealtimeConnection, streams: list[ScriptedStream]
) -> None:
    session = {
        "input_audio_format": "g711_ulaw",
        "input_audio_transcription": {"model": "whisper-1", "language": "en"},
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
    }
    event: Any = {"type": "transcription_session.update", "session": session}
    connection.send(event)
    answer = next_event(connection)
    assert answer["type"] == "transcription_session.updated"
    assert answer["session"]["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    assert streams[0].options.silence_duration_ms == 300


def test_the_asynchronous_client(live: Live, streams: list[ScriptedStream]) -> None:
    async def main() -> list[str]:
        client = openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any")
        async with client, client.realtime.connect(extra_query=QUERY) as connection:
            await connection.session.update(session={"type": "transcription"})
            await connection.input_audio_buffer.append(audio=tone(0.5))
            await connection.input_audio_buffer.append(audio=silence(0.6))
            texts = []
            async for event in connection:
                texts += [event.delta or ""] if event.type == f"{PATH}.delta" else []
                if event.type == f"{PATH}.completed":
                    return [*texts, event.transcript]
            return texts

    assert asyncio.run(main()) == ["five", "five"]
    assert streams[0].closed and streams[0].user == "127.0.0.1"


def test_a_stream_that_fails(connection: RealtimeConnection, streams: list[ScriptedStream]) -> None:
    connection.input_audio_buffer.append(audio=tone(0.5))
    until(connection, f"{PATH}.delta")
    streams[0].fail(OptionError("no memory is left"))
    failed, error = next_event(connection), next_event(connection)
    assert failed["type"] == f"{PATH}.failed" and error["type"] == "error"
    assert failed["error"]["message"] == error["error"]["message"] == "no memory is left"
    with pytest.raises(Exception, match="1011"):
        connection._connection.recv(timeout=10)


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
    assert streams[0].closed


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
    assert streams[0].closed


def test_too_many_streams(live: Live, streams: list[ScriptedStream]) -> None:
    from websockets.exceptions import InvalidStatus

    connect = live.client().realtime.connect
    with connect(extra_query=QUERY) as one, connect(extra_query=QUERY) as two:
        next_event(one), next_event(two)
        with pytest.raises(InvalidStatus) as refused, connect(extra_query=QUERY):
            pass
        response = refused.value.response
        assert response.status_code == 429 and response.headers["Retry-After"]
        assert json.loads(response.body)["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ({"intent": "conversation"}, 400, "only transcribe"),
        ({"model": "gpt-realtime"}, 404, "is not available here"),
        ({"call_id": "x"}, 400, "no calls"),
        ({"model": "gpt-4o-transcribe-diarize"}, 400, "not told apart"),
    ],
)
def test_queries_that_are_refused(
    live: Live, streams: list[ScriptedStream], query: Any, status: int, message: str
) -> None:
    from websockets.exceptions import InvalidStatus

    with (
        pytest.raises(InvalidStatus) as refused,
        live.client().realtime.connect(extra_query=query),
    ):
        pass
    assert refused.value.response.status_code == status
    assert message in refused.value.response.body.decode()


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


def test_what_the_client_does_is_matched_with_what_the_stream_tells_later() -> None:
    """A stream may tell of utterances long after the client has cleared or committed them."""
    conversation = Conversation(SessionConfig(turns=None))
    conversation.append(1.0)
    conversation.clear()
    conversation.append(1.0)
    (committed, *_) = conversation.commit()
    conversation.append(1.0)

    def ended(number: int, start: float, end: float, text: str) -> list[dict[str, Any]]:
        segment = Segment(0, 0, start, end, text, [], 0.0, 0.0, 1.0, 0.0)
        told = conversation.events(SpeechStarted(number, start))
        told += conversation.events(SpeechStopped(number, end))
        return told + conversation.events(Ended(number, (segment,), text, "en"))

    assert ended(0, 0.2, 0.5, "") == ended(1, 0.6, 1.0, "") == []
    found = ended(2, 1.0, 2.0, "five")
    assert {e["item_id"] for e in found} == {committed["item_id"]}
    assert found[-1]["transcript"] == "five" and found[-1]["usage"]["seconds"] == 1.0
    third = ended(3, 2.0, 2.5, "six")
    assert third[0]["type"] == "input_audio_buffer.committed"
    assert third[0]["previous_item_id"] == committed["item_id"] != third[0]["item_id"]
