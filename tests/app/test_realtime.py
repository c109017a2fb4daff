"""OpenAI's Realtime API with OpenAI's client, on a server whose streams follow a script."""

import asyncio
from typing import Any

import openai
import pytest
from openai.resources.realtime.realtime import RealtimeConnection

from slimwhisper.app.realtime.conversation import Conversation
from slimwhisper.app.realtime.session import START, update_session
from slimwhisper.errors import OptionError
from slimwhisper.live.types import Ended, SpeechStarted, SpeechStopped
from slimwhisper.types import Segment
from tests.support.live import Live, eventually
from tests.support.realtime import (
    PATH,
    QUERY,
    ScriptedStream,
    kinds,
    next_event,
    silence,
    sound,
    tone,
    until,
    update,
)


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
    wanted = [f"item.input_audio_transcription.{n}" for n in ("words", "tentative", "details")]
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
    segment = next(e for e in found if e["type"] == f"{PATH}.segment")
    assert segment["words"] == [word]
    assert (segment["tokens"], segment["avg_logprob"], segment["no_speech_prob"]) == ([], -0.1, 0)
    assert {"temperature", "compression_ratio"} <= segment.keys()


def test_the_asynchronous_client(scripted: Live, streams: list[ScriptedStream]) -> None:
    async def main() -> list[str]:
        client = openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="any")
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
    assert eventually(lambda: streams[0].closed) and streams[0].user == "127.0.0.1"


def test_a_stream_that_fails(connection: RealtimeConnection, streams: list[ScriptedStream]) -> None:
    connection.input_audio_buffer.append(audio=tone(0.5))
    until(connection, f"{PATH}.delta")
    streams[0].fail(OptionError("no memory is left"))
    failed, error = next_event(connection), next_event(connection)
    assert failed["type"] == f"{PATH}.failed" and error["type"] == "error"
    assert failed["error"]["message"] == error["error"]["message"] == "no memory is left"
    with pytest.raises(Exception, match="1011"):
        connection._connection.recv(timeout=10)


def test_what_the_client_does_is_matched_with_what_the_stream_tells_later() -> None:
    """A stream may tell of utterances long after the client has cleared or committed them."""
    session = {"type": "transcription", **sound(turn_detection=None)}
    conversation = Conversation(update_session(START, session)[0])
    conversation.append(1.0)
    conversation.clear()
    conversation.append(1.0)
    (committed, *_) = conversation.commit()
    conversation.append(1.0)

    def ended(number: int, start: float, end: float, text: str, calls: int) -> list[dict[str, Any]]:
        segment = Segment(0, 0, start, end, text, [], 0.0, 0.0, 1.0, 0.0)
        told = conversation.events(SpeechStarted(number, start, calls))
        told += conversation.events(SpeechStopped(number, end))
        return told + conversation.events(Ended(number, (segment,), text, "en"))

    assert ended(0, 0.2, 0.5, "", 0) == ended(1, 0.6, 1.0, "", 0) == []
    found = ended(2, 1.0, 2.0, "five", 1)
    assert {e["item_id"] for e in found} == {committed["item_id"]}
    assert found[-1]["transcript"] == "five" and found[-1]["usage"]["seconds"] == 1.0
    third = ended(3, 2.0, 2.5, "six", 2)
    assert third[0]["type"] == "input_audio_buffer.committed"
    assert third[0]["previous_item_id"] == committed["item_id"] != third[0]["item_id"]
