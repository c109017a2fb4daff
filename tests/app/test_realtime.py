"""OpenAI's Realtime API without a server: fields, events, secrets and audio of a session."""

import time
from typing import Any

import av
import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.realtime.connection import Conversation
from slimwhisper.app.realtime.routes import ClientSecrets, read_request
from slimwhisper.app.realtime.session import (
    LOGPROBS,
    START,
    TENTATIVE,
    WORDS,
    from_beta,
    session_object,
    update_session,
)
from slimwhisper.app.realtime.stream_feed import SoundDecoder, SoundFormat
from slimwhisper.app.service.host import Models
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.errors import CheckpointError, OptionError
from slimwhisper.live import types as live
from slimwhisper.types import Segment, Word
from tests.support.fuzz import examples
from tests.support.realtime import PATH, checked, sound
from tests.support.refusals import TABLES

# -- events --------------------------------------------------------------------------------------

WORD = Word(" five", 0.25, 0.5, 0.875)
BY_HAND = sound(turn_detection=None)


def live_event(kind: str, number: int, rest: str) -> live.LiveEvent:
    match kind:
        case "start":
            at, _, calls = rest.partition(" ")
            return live.SpeechStarted(number, float(at), int(calls or 0))
        case "text":
            return live.TextUpdate(number, rest, " six", (WORD,))
        case "stop":
            return live.SpeechStopped(number, float(rest))
        case "end":
            segment = Segment(0, 0, 0.0, 1.0, rest, [], 0.0, -0.1, 1.0, 0.0, words=[WORD])
            return live.UtteranceEnded(number, (segment,), rest, "en")
    return live.StreamFailed(OptionError("no memory is left"))


def told(script: str, session: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that a client gets, each of which is OpenAI's."""
    found: list[dict[str, Any]] = []
    config = update_session(START, {"type": "transcription", **session})[0]
    to = Conversation(config, found.append)
    for step in script.split(", "):
        kind, _, rest = step.partition(" ")
        if kind == "append":
            to.append(float(rest))
        elif kind == "switch":
            session = sound(turn_detection={} if rest == "on" else None)
            to.change(update_session(config, {"type": "transcription", **session})[0])
        elif kind in ("commit", "clear"):
            getattr(to, kind)()
        else:
            number, _, rest = rest.partition(" ")
            to.hear(live_event(kind, int(number or 0), rest))
    return [checked(event) for event in found]


@pytest.mark.parametrize(("by_hand", "script", "expected"), TABLES["realtime_conversations"])
def test_conversations(by_hand: bool, script: str, expected: str) -> None:
    events = told(script, BY_HAND if by_hand else {})
    assert len({event["event_id"] for event in events}) == len(events)
    letters: dict[str | None, str] = {None: "-"}
    lines = []
    for event in events:
        item = event.get("item_id", event.get("item", {}).get("id"))
        letter = letters.setdefault(item, chr(64 + len(letters)))
        kind = event["type"].rpartition(".")[2]
        before = "after " + letters.get(event.get("previous_item_id"), "?")
        seconds = event.get("usage", {}).get("seconds")
        said = event.get("transcript", event.get("delta", event.get("text")))
        at = event.get("audio_start_ms", event.get("audio_end_ms"))
        more = [before if kind == "committed" else None, said, at, seconds]
        lines.append(" ".join([letter, kind, *(str(x) for x in more if x is not None)]))
    assert ", ".join(lines) == expected


def test_optional_events_and_fields() -> None:
    names = ("tentative", "words", "details")
    asked = {"include": [f"item.input_audio_transcription.{name}" for name in names]}
    script = "start 0 0, text 0 five, stop 0 1.5, end 0 five"
    found = {e["type"].removeprefix(f"{PATH}."): e for e in told(script, asked)}
    shown = {"word": " five", "start": 0.25, "end": 0.5, "probability": 0.875}
    assert found["delta"]["words"] == found["segment"]["words"] == [shown]
    tentative, segment = found["tentative"], found["segment"]
    assert (tentative["text"], tentative["content_index"], tentative["heard"]) == (" six", 0, 0.0)
    assert (segment["tokens"], segment["avg_logprob"], segment["no_speech_prob"]) == ([], -0.1, 0)
    assert {"temperature", "compression_ratio"} <= segment.keys()
    plain = {e["type"] for e in told(script, {})}
    assert f"{PATH}.tentative" not in plain and f"{PATH}.segment" in plain


def test_a_commit_needs_audio() -> None:
    with pytest.raises(APIError, match="50 ms") as raised:
        told("append 0.05, commit", BY_HAND)
    assert raised.value.code == "input_audio_buffer_commit_empty"


# -- a session's fields --------------------------------------------------------------------------

MODELS = Models("digits", strict=True)
TURNS = {"type": "server_vad", "threshold": 0.25, "prefix_padding_ms": 100}
GIVEN = {
    "model": "gpt-4o-transcribe",
    "language": "de",
    "prompt": "Numbers.",
    "delay": "low",
    "keywords": ["Zürich", "Bern"],
    "task": "translate",
    "condition_on_previous_text": False,
}


def test_every_field_reaches_the_stream() -> None:
    format = {"type": "audio/pcm", "rate": 16000}
    session = sound(format=format, transcription=GIVEN, turn_detection=TURNS, noise_reduction=None)
    config, unknown = update_session(START, {"type": "transcription", **session})
    shown = session_object(config, MODELS, "sess_1")["audio"]["input"]
    assert shown["transcription"] == GIVEN and shown["format"] == format and unknown == []
    assert shown["turn_detection"] == {**TURNS, "silence_duration_ms": 500}
    assert (config.format.coding, config.format.rate) == ("PCM_16", 16_000)
    wanted: dict[str, Any] = {"task": "translate", "language": "de", "prompt": "Numbers."}
    wanted |= {"hotwords": "Zürich, Bern", "update": 0.75, "condition_on_previous_text": False}
    wanted |= {"vad_threshold": 0.25, "prefix_padding_ms": 100}
    assert config.options(live.LiveOptions()) == live.LiveOptions(**wanted)
    # what is not named stays
    change = {"type": "transcription", **sound(transcription={"language": None})}
    kept = update_session(config, {**change, "include": [WORDS]})[0]
    options = kept.options(live.LiveOptions())
    assert options.words and options.language is None and options.vad_threshold == 0.25
    for name in ("gpt-realtime", "gpt-realtime-mini-2025-10-06", "gpt-4o-mini-realtime-preview"):
        given = {"type": "transcription", **sound(transcription={"model": name})}
        assert update_session(START, given)[0].choice(MODELS) == (ModelChoice("digits"), [])
    given = {"type": "transcription", **sound(transcription={"model": "nope"})}
    choice, warnings = update_session(START, given)[0].choice(Models("digits", strict=False))
    assert choice == ModelChoice("digits") and warnings == ["model 'nope' is not here"]


def test_what_is_not_served_is_ignored_and_named() -> None:
    """Values of OpenAI's guide, and unknown ones; the rest of the update is applied."""
    turns = {"type": "semantic_vad", "eagerness": "low", "silence_duration_ms": 300}
    given = {"type": "transcription", "include": [LOGPROBS, TENTATIVE], "speed": 2} | sound(
        noise_reduction={"type": "near_field"}, turn_detection=turns, transcription=GIVEN
    )
    config, unknown = update_session(START, given)
    assert config.options(live.LiveOptions()).language == "de"
    shown = session_object(config, MODELS, "sess_1", unknown=unknown)
    found, where = shown["audio"]["input"], "session.audio.input"
    assert found["noise_reduction"] is None and shown["include"] == [TENTATIVE]
    assert found["turn_detection"]["type"] == "server_vad"
    assert found["turn_detection"]["silence_duration_ms"] == 300
    assert {warning.partition(": ")[0] for warning in shown["warnings"]} == {
        "unknown field 'session.speed' was ignored",
        "unknown field 'session.audio.input.turn_detection.eagerness' was ignored",
        f"{where}.turn_detection.type was ignored",
        f"{where}.noise_reduction was ignored",
        "session.include was ignored",
    }
    secret = read_request({"session": given})
    assert secret[0] == config and secret[2] == unknown


@pytest.mark.parametrize(
    ("session", "param", "message"),
    [
        *TABLES["realtime_sessions"],
        (sound(transcription=None), ".transcription", "nothing to do"),
        (sound(transcription={"prompt": "x" * 10_001}), ".prompt", "at most 10000"),
    ],
)
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
    assert session_object(config, MODELS, "sess_1")["audio"]["input"]["format"] == {
        "type": "audio/pcmu"
    }
    assert config.options(live.LiveOptions()).silence_duration_ms == 300 and unknown == []


# -- client secrets ------------------------------------------------------------------------------


def test_a_secret_is_ours_whole_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    found = ClientSecrets(lambda: now[0])
    before = int(time.time())
    german = {"type": "transcription", **sound(transcription={"language": "de"})}
    value, expires_at = found.issue(read_request({"session": german})[0], 60)
    assert before + 60 <= expires_at <= time.time() + 60
    assert ClientSecrets(lambda: now[0]).session(value) is None, "another server's"
    for place in range(len(value)):
        other = "A" if value[place] != "A" else "B"
        assert found.session(f"{value[:place]}{other}{value[place + 1 :]}") is None
    assert [found.session(odd) for odd in ("", "ek_", "ek_.", "é.é", value[:-1])] == [None] * 5
    now[0] = 1059.9
    for wall in (0.0, time.time() + 10**6):
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        session = found.session(value)
        assert session is not None and session.audio.input.transcription.language == "de"
    now[0] = 1060.1
    assert found.session(value) is None


def test_how_long_a_secret_lasts() -> None:
    body = {"expires_after": {"anchor": "created_at", "seconds": 7200}, "x": 1}
    assert read_request(body) == (START, 7200, ["x"])
    assert read_request({})[1] == 600
    for wrong, message in (
        *(({"anchor": "now"}, "anchor 'now'"), ({"seconds": 9}, "greater than or equal to 10")),
        *(({"seconds": True}, "a valid integer"), ({"seconds": 10.5}, "a valid integer")),
    ):
        with pytest.raises(APIError, match=message) as raised:
            read_request({"expires_after": wrong})
        assert raised.value.status_code == 400


# -- audio ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coding", "theirs"), [("ULAW", "pcm_mulaw"), ("ALAW", "pcm_alaw")])
def test_g711_is_ffmpegs(coding: str, theirs: str) -> None:
    codec = av.CodecContext.create(theirs, "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    every_byte = bytes(range(256))
    (frame,) = codec.decode(av.Packet(every_byte))
    found = SoundDecoder(SoundFormat(coding, 16_000)).decode(every_byte)
    assert frame.format.name == "s16" and found.dtype == np.float32
    np.testing.assert_array_equal(found, frame.to_ndarray()[0] / np.float32(32768))


@examples(20)
@given(st.sampled_from([8_000, 16_000, 24_000, 44_100]), st.lists(st.integers(0, 16_000)))
def test_pieces_give_what_the_whole_gives(rate: int, cuts: list[int]) -> None:
    """And again after a flush, which leaves nothing of what was before."""
    speech = np.random.default_rng(0).normal(0, 3000, rate // 2).astype("<i2")
    whole = speech / np.float32(32768)
    if rate != 16_000:
        whole = soxr.resample(whole, rate, 16_000, quality="HQ")
    decoder = SoundDecoder(SoundFormat("PCM_16", rate))
    for _ in range(2):
        parts = np.split(speech, sorted(min(cut, len(speech)) for cut in cuts))
        found = [decoder.decode(part.tobytes()) for part in parts]
        np.testing.assert_allclose(np.concatenate([*found, decoder.flush()]), whole, atol=1e-4)


def test_channels_wide_samples_and_halves_of_samples() -> None:
    """In floating point, what is no number is silence."""
    odd = np.array([np.nan, np.inf, -np.inf, 0.5], "<f4")
    found = SoundDecoder(SoundFormat("FLOAT", 16_000)).decode(odd.tobytes())
    np.testing.assert_array_equal(found, np.float32([0, 1, -1, 0.5]))
    wide = np.array([[1 << 30, -(1 << 30)], [1 << 30, 1 << 30]], "<i4")
    found = SoundDecoder(SoundFormat("PCM_32", 16_000, 2)).decode(wide.tobytes())
    np.testing.assert_array_equal(found, np.float32([0, 0.5]))
    decoder = SoundDecoder(SoundFormat("PCM_32", 16_000, 2))  # in pieces that end within samples
    found = np.concatenate([decoder.decode(wide.tobytes()[i : i + 3]) for i in range(0, 16, 3)])
    np.testing.assert_array_equal(found, np.float32([0, 0.5]))
