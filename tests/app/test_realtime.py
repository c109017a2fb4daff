"""What a stream tells, as events of OpenAI's Realtime API."""

from typing import Any

import pytest

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.realtime.conversation import Conversation
from slimwhisper.app.realtime.session import START, update_session
from slimwhisper.errors import OptionError
from slimwhisper.live.types import (
    LiveEvent,
    SpeechStarted,
    SpeechStopped,
    StreamFailed,
    TextUpdate,
    UtteranceEnded,
)
from slimwhisper.types import Segment, Word
from tests.support.realtime import PATH, checked, sound

WORD = Word(" five", 0.25, 0.5, 0.875)
WORD_SHOWN = {"word": " five", "start": 0.25, "end": 0.5, "probability": 0.875}
NO_TURNS = sound(turn_detection=None)


def conversation(**session: Any) -> Conversation:
    return Conversation(update_session(START, {"type": "transcription", **session})[0])


def told(to: Conversation, *events: LiveEvent) -> list[dict[str, Any]]:
    return [checked(found) for event in events for found in to.events(event)]


def utterance(
    number: int, start: float, end: float, *texts: str, calls: int = 0
) -> list[LiveEvent]:
    """As a stream tells it, from its beginning to its end."""
    updates = [TextUpdate(number, text, " six", (WORD,)) for text in texts]
    text = "".join(texts)
    segment = Segment(0, 0, start, end, text, [], 0.0, -0.1, 1.0, 0.0, words=[WORD])
    ended = UtteranceEnded(number, (segment,), text, "en")
    return [SpeechStarted(number, start, calls), *updates, SpeechStopped(number, end), ended]


def test_an_utterance_with_server_vad() -> None:
    to = conversation()
    found = told(to, *utterance(0, 0.0, 1.5, "five", " five"))
    assert [event["type"].removeprefix("conversation.item.") for event in found] == [
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
    assert found[0]["audio_start_ms"] == 0 and found[3]["audio_end_ms"] == 1500
    assert [event["delta"] for event in found[1:3]] == ["five", " five"]
    assert found[4]["previous_item_id"] is None and found[5]["item"]["id"] == item
    assert found[-1]["transcript"] == "five five"
    assert found[-1]["usage"] == {"type": "duration", "seconds": 1.5}
    assert len({event["event_id"] for event in found}) == len(found)
    second = told(to, *utterance(1, 2.0, 3.0, "five"))
    committed = next(e for e in second if e["type"].endswith("committed"))
    assert committed["previous_item_id"] == item and committed["item_id"] != item


def test_manual_commits_of_speech_and_of_silence() -> None:
    """Each is answered before the stream tells what was said."""
    to = conversation(**NO_TURNS)
    committed = []
    for seconds in (0.25, 0.5):
        to.append(seconds)
        committed.append(to.commit()[0]["item_id"])
    found = told(to, *utterance(0, 0.0, 0.25), *utterance(1, 0.3, 0.75, "five", calls=1))
    ends = [event for event in found if event["type"] == f"{PATH}.completed"]
    assert [end["item_id"] for end in ends] == committed
    assert [end["transcript"] for end in ends] == ["", "five"]
    assert [end["usage"]["seconds"] for end in ends] == [0.25, 0.5]
    with pytest.raises(APIError, match="0 ms") as raised:
        to.commit()
    assert raised.value.code == "input_audio_buffer_commit_empty"


def test_a_commit_while_somebody_speaks() -> None:
    to = conversation(**NO_TURNS)
    to.append(1.0)
    begun, *rest = utterance(0, 0.0, 1.0, "five")
    assert told(to, begun) == []
    item = to.commit()[0]["item_id"]
    assert {event["item_id"] for event in told(to, *rest)} == {item}


def test_what_the_client_does_is_matched_with_what_the_stream_tells_later() -> None:
    """A stream may tell of utterances long after the client has cleared or committed them."""
    to = conversation(**NO_TURNS)
    to.append(1.0)
    assert [event["type"] for event in to.clear()] == ["input_audio_buffer.cleared"]
    to.append(1.0)
    (committed, *_) = to.commit()
    to.append(1.0)
    assert told(to, *utterance(0, 0.2, 0.5), *utterance(1, 0.6, 1.0)) == []
    found = told(to, *utterance(2, 1.0, 2.0, "five", calls=1))
    assert {e["item_id"] for e in found} == {committed["item_id"]}
    assert found[-1]["transcript"] == "five" and found[-1]["usage"]["seconds"] == 1.0
    _, third, *_ = told(to, *utterance(3, 2.0, 2.5, "six", calls=2))
    assert third["type"] == "input_audio_buffer.committed"
    assert third["previous_item_id"] == committed["item_id"] != third["item_id"]


def test_words_and_tentative_text_on_request() -> None:
    wanted = [f"item.input_audio_transcription.{n}" for n in ("words", "tentative", "details")]
    found = told(conversation(include=wanted), *utterance(0, 0.0, 1.0, "five"))
    by_kind = {event["type"].removeprefix(f"{PATH}."): event for event in found}
    assert by_kind["delta"]["words"] == by_kind["segment"]["words"] == [WORD_SHOWN]
    tentative, segment = by_kind["tentative"], by_kind["segment"]
    assert (tentative["text"], tentative["content_index"]) == (" six", 0)
    assert (segment["tokens"], segment["avg_logprob"], segment["no_speech_prob"]) == ([], -0.1, 0)
    assert {"temperature", "compression_ratio"} <= segment.keys()


def test_a_stream_that_fails() -> None:
    """Every item that has not ended is told so."""
    to = conversation(**NO_TURNS)
    to.append(1.0)
    (committed, *_) = to.commit()
    begun = utterance(1, 1.0, 2.0, "five", calls=1)[:2]
    *failed, error = told(to, *begun, StreamFailed(OptionError("no memory is left")))
    assert {event["type"] for event in failed[1:]} == {f"{PATH}.failed"}
    assert committed["item_id"] in {event["item_id"] for event in failed} and len(failed) == 3
    assert error["type"] == "error" and error["error"]["message"] == "no memory is left"
