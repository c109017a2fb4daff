"""Every field of a realtime session: honoured, or refused with the reason."""

from typing import Any

import pytest
from openai.resources.realtime.realtime import RealtimeConnection

from slimwhisper.live.types import LiveOptions
from tests.support.live import Live
from tests.support.realtime import ScriptedStream, next_event, sound, update


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
    ({"type": "x"}, "session.type", "should be 'transcription'"),
    ({"include": ["item.x"]}, "session.include", "choose item."),
    (
        {"include": ["item.input_audio_transcription.logprobs"]},
        "session.include",
        "/v1/audio/transcriptions does",
    ),
    ({"audio": []}, "session.audio", "a valid dict"),
    (sound(noise_reduction={"type": "near_field"}), ".noise_reduction", "send null"),
    (sound(format={"type": "audio/mp3"}), ".format.type", "choose audio/pcm"),
    (sound(format={"type": "audio/pcm", "rate": 44100}), ".format.rate", "24000 or 16000"),
    (sound(format={"type": "audio/pcmu", "rate": 16000}), ".format.rate", "must be 8000"),
    (sound(turn_detection={"type": "semantic_vad"}), ".turn_detection.type", "server_vad, or null"),
    (sound(turn_detection={**VAD, "threshold": 2}), ".threshold", "less than or equal to 1"),
    (sound(turn_detection={**VAD, "silence_duration_ms": 1.5}), "duration_ms", "a valid integer"),
    (sound(turn_detection={**VAD, "create_response": True}), ".create_response", "no responses"),
    (sound(turn_detection={**VAD, "idle_timeout_ms": 5000}), ".idle_timeout_ms", "no response"),
    (sound(transcription=None), ".transcription", "nothing to do"),
    (sound(transcription={"language": "klingon"}), ".language", "not a language's code"),
    (sound(transcription={"language": "yi"}), None, "not in this model"),
    (sound(transcription={"languages": ["en", "de"]}), ".languages", "takes one language"),
    (sound(transcription={"model": "gpt-4o-transcribe-diarize"}), "model", "not told apart"),
    (sound(transcription={"model": "tiny"}), "model", "is not available here"),
    (sound(transcription={"delay": "none"}), ".delay", "choose minimal"),
    (sound(transcription={"prompt": "x" * 10_001}), ".prompt", "at most 10000"),
    (sound(transcription={"keywords": "x"}), ".keywords", "a valid list"),
    (sound(transcription={"task": "x"}), ".task", "choose transcribe"),
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
    scripted: Live, streams: list[ScriptedStream], query: Any, status: int, message: str
) -> None:
    from websockets.exceptions import InvalidStatus

    with (
        pytest.raises(InvalidStatus) as refused,
        scripted.client().realtime.connect(extra_query=query),
    ):
        pass
    assert refused.value.response.status_code == status
    assert message in refused.value.response.body.decode()
