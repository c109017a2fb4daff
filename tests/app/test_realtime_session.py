"""Every field of a realtime session: honoured, or refused with the reason."""

from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.realtime.client_secrets import read_request
from slimwhisper.app.realtime.session import (
    LOGPROBS,
    START,
    TENTATIVE,
    from_beta,
    session_object,
    update_session,
)
from slimwhisper.app.service.models import Models
from slimwhisper.errors import CheckpointError
from slimwhisper.live.types import LiveOptions
from tests.support.live import Live
from tests.support.realtime import sound
from tests.support.refusals import TABLES

MODELS = Models("digits")
TURNS = {"type": "server_vad", "threshold": 0.25, "prefix_padding_ms": 100}
GIVEN = {
    "model": "gpt-4o-transcribe",
    "language": "de",
    "prompt": "Numbers.",
    "keywords": ["Zürich", "Bern"],
    "delay": "low",
    "task": "translate",
}


def test_every_field_reaches_the_stream() -> None:
    format = {"type": "audio/pcm", "rate": 16000}
    session = sound(format=format, transcription=GIVEN, turn_detection=TURNS, noise_reduction=None)
    config, unknown = update_session(START, {"type": "transcription", **session})
    shown = session_object(config, "sess_1")["audio"]["input"]
    assert shown["transcription"] == GIVEN and shown["format"] == format and unknown == []
    assert shown["turn_detection"] == {**TURNS, "silence_duration_ms": 500}
    assert (config.format.coding, config.format.rate) == ("PCM_16", 16_000)
    assert config.choice(MODELS).name == "digits"
    assert config.options(LiveOptions()) == LiveOptions(
        task="translate",
        language="de",
        prompt="Numbers.",
        hotwords="Zürich, Bern",
        update=0.75,
        vad_threshold=0.25,
        prefix_padding_ms=100,
    )
    words = {"type": "transcription", "include": ["item.input_audio_transcription.words"]}
    assert update_session(config, words)[0].options(LiveOptions()).words
    # what is not named stays
    change = {"type": "transcription", **sound(transcription={"language": None})}
    kept = session_object(update_session(config, change)[0], "sess_1")["audio"]["input"]
    assert kept["transcription"] == {**GIVEN, "language": None}
    assert kept["turn_detection"]["threshold"] == 0.25


def test_unknown_fields_are_named() -> None:
    given = {"type": "transcription", "speed": 2, **sound(echo={"a": 1})}
    config, unknown = update_session(START, given)
    assert session_object(config, "sess_1", unknown=unknown)["warnings"] == [
        "unknown field 'session.speed' was ignored",
        "unknown field 'session.audio.input.echo' was ignored",
    ]


def test_what_is_not_served_is_ignored_and_named() -> None:
    """Values of OpenAI's guide; the rest of the update is applied."""
    included = [LOGPROBS, TENTATIVE]
    turns = {"type": "semantic_vad", "eagerness": "low", "silence_duration_ms": 300}
    given = {"type": "transcription", "include": included} | sound(
        noise_reduction={"type": "near_field"}, turn_detection=turns, transcription=GIVEN
    )
    config, unknown = update_session(START, given)
    assert config.options(LiveOptions()).language == "de"
    shown = session_object(config, "sess_1", unknown=unknown)
    found, where = shown["audio"]["input"], "session.audio.input"
    assert found["noise_reduction"] is None and shown["include"] == [TENTATIVE]
    assert found["turn_detection"]["type"] == "server_vad"
    assert found["turn_detection"]["silence_duration_ms"] == 300
    assert [warning.partition(": ")[0] for warning in shown["warnings"]] == [
        "unknown field 'session.audio.input.turn_detection.eager' was ignored",
        f"{where}.turn_detection.type was ignored",
        f"{where}.noise_reduction was ignored",
        "session.include was ignored",
    ]
    secret = read_request({"session": given})
    assert secret[0] == config and secret[2] == unknown


@pytest.mark.parametrize(
    "name", ["gpt-realtime", "gpt-realtime-mini-2025-10-06", "gpt-4o-mini-realtime-preview"]
)
def test_names_of_models_for_sessions(name: str) -> None:
    given = {"type": "transcription", **sound(transcription={"model": name})}
    assert update_session(START, given)[0].choice(MODELS).name == "digits"


REFUSED = [
    *TABLES["realtime_sessions"],
    (sound(transcription=None), ".transcription", "nothing to do"),
    (sound(transcription={"prompt": "x" * 10_001}), ".prompt", "at most 10000"),
]


@pytest.mark.parametrize(("session", "param", "message"), REFUSED)
def test_what_is_refused_says_why(session: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises((APIError, CheckpointError)) as raised:
        update_session(START, {"type": "transcription", **session})[0].choice(MODELS)
    error = as_api_error(raised.value)
    assert message in str(error) and (error.param or "").endswith(param)
    assert error.body()["error"]["type"] == "invalid_request_error"


def test_the_beta_is_understood() -> None:
    session = {
        "input_audio_format": "g711_ulaw",
        "input_audio_transcription": {"model": "whisper-1", "language": "en"},
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
    }
    config, unknown = update_session(START, from_beta(session))
    assert session_object(config, "sess_1")["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    assert config.options(LiveOptions()).silence_duration_ms == 300 and unknown == []


@pytest.mark.parametrize(("query", "status", "message"), TABLES["realtime_queries"])
def test_queries_that_are_refused(live: Live, query: Any, status: int, message: str) -> None:
    connect = live.client().realtime.connect
    with pytest.raises(InvalidStatus) as refused, connect(extra_query=query):
        pass
    assert refused.value.response.status_code == status
    assert message in refused.value.response.body.decode()
