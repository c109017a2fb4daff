"""Real streams through OpenAI's client and Wyoming's: the right words of a sample."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import soxr

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_audio
from tests.support.live import Begin, Live, free_port, freed, start, stop
from tests.support.paths import ROOT
from tests.support.realtime import encoded

QUERY = {"intent": "transcription"}
SAMPLE = ROOT / "samples/phone-number.wav"
WORDS = "five five five zero one four two seven nine eight"
WYOMING = free_port()
PATH = "conversation.item.input_audio_transcription"

pytestmark = pytest.mark.skipif(not SAMPLE.exists(), reason="needs the source tree")


@pytest.fixture(scope="module")
def live(model: SlimWhisper) -> Iterator[Live]:
    running = start(model, wyoming=WYOMING)
    yield running
    stop(running)


def pieces(rate: int, seconds: float) -> list[bytes]:
    """The sample as pcm16, in pieces."""
    speech = soxr.resample(load_audio(str(SAMPLE)), 16_000, rate)
    whole = (np.concatenate([speech, np.zeros(rate)]) * 32767).clip(-32768, 32767).astype("<i2")
    step = round(seconds * rate)
    return [whole[i : i + step].tobytes() for i in range(0, len(whole), step)]


def test_the_words_of_a_sample(live: Live) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        for piece in pieces(24_000, 0.5):
            connection.input_audio_buffer.append(audio=encoded(piece))
        connection.input_audio_buffer.commit()
        texts: list[str] = []
        deltas = ""
        while len(" ".join(texts).split()) < len(WORDS.split()):
            event = json.loads(connection._connection.recv(timeout=20))
            if event["type"] == f"{PATH}.delta":
                deltas += event["delta"]
            if event["type"] == f"{PATH}.completed":
                texts.append(event["transcript"])
                deltas += " "
                assert event["usage"]["seconds"] > 0.5
    assert " ".join(texts) == " ".join(deltas.split()) == WORDS
    assert freed(live)


def test_a_connection_that_drops_during_a_decode_leaves_nothing(live: Live) -> None:
    connection = live.client().realtime.connect(extra_query=QUERY).enter()
    connection.input_audio_buffer.append(audio=encoded(pieces(24_000, 2.0)[0]))
    while (
        json.loads(connection._connection.recv(timeout=20))["type"]
        != "input_audio_buffer.speech_started"
    ):
        pass
    connection._connection.socket.shutdown(socket.SHUT_RDWR)
    assert freed(live)


@pytest.mark.filterwarnings("ignore:'audioop' is deprecated:DeprecationWarning")
def test_wyomings_own_client(live: Live) -> None:
    pytest.importorskip("wyoming")
    from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.info import Describe, Info

    async def main() -> tuple[Info, list[str], str, str]:
        async with AsyncTcpClient("127.0.0.1", WYOMING, read_timeout=20) as client:
            await client.write_event(Describe().event())
            answer = await client.read_event()
            assert answer is not None
            await client.write_event(Transcribe(name="digits", language="en").event())
            await client.write_event(AudioStart(22_050, 2, 1).event())
            for piece in pieces(22_050, 0.25):
                await client.write_event(AudioChunk(22_050, 2, 1, piece).event())
            await client.write_event(AudioStop().event())
            kinds, chunks = [], ""
            while not kinds or not TranscriptStop.is_type(kinds[-1]):
                event = await client.read_event()
                assert event is not None
                kinds.append(event.type)
                if TranscriptChunk.is_type(event.type):
                    chunks += TranscriptChunk.from_event(event).text
                if Transcript.is_type(event.type):
                    whole = Transcript.from_event(event)
            assert TranscriptStart.is_type(kinds[0])
            assert whole.language == "en"
            return Info.from_event(answer), kinds, chunks, whole.text

    info, kinds, chunks, text = asyncio.run(main())
    assert chunks == text == WORDS and kinds.count("transcript-chunk") > 1
    program = info.asr[0]
    assert program.supports_transcript_streaming and program.name == "slimwhisper"
    assert program.models[0].name == "digits" and program.models[0].languages == ["en"]
    assert freed(live)


def frames(answer: bytes) -> list[tuple[str, dict[str, Any]]]:
    """What a Wyoming server sent: types, and data."""
    found = []
    while answer:
        head, _, answer = answer.partition(b"\n")
        line = json.loads(head)
        length = line.get("data_length", 0)
        found.append((line["type"], json.loads(answer[:length] or b"{}")))
        answer = answer[length:]
    return found


def test_wyoming_at_shutdown(begin: Begin) -> None:
    """What was heard is told; a recording that the server cuts off gets no transcript."""
    port = free_port()
    stopped = begin(wyoming=port, patience=60.0)
    chunk = b'{"type": "%s", "data": {"rate": 16000, "width": 2, "channels": 1}'
    sound = b"".join(
        chunk % b"audio-chunk" + b', "payload_length": %d}\n' % len(piece) + piece
        for piece in pieces(16_000, 1.0)
    )
    with ExitStack() as stack:
        idle, cut, whole = (
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(3)
        )
        whole.sendall(sound + chunk % b"audio-stop" + b"}\n")
        while not any(stream.finished for stream in list(stopped.service.streams.open)):
            time.sleep(0.01)
        cut.sendall(sound + b'{"type": "ping"}\n')
        answer = b""
        while b"pong" not in answer:
            answer += cut.recv(1 << 16)
        stopped.server.handle_exit(signal.SIGTERM, None)
        told = [frames(raw.makefile("rb").read()) for raw in (idle, whole)]
        told.append(frames(answer + cut.makefile("rb").read()))
    for events in told:
        kind, data = events[-1]
        assert kind == "error" and data["code"] == "stopping" and "connect again" in data["text"]
    assert len(told[0]) == 1
    for events, transcripts in ((told[1], [WORDS]), (told[2], [])):
        chunks = [data["text"] for kind, data in events if kind == "transcript-chunk"]
        assert "".join(chunks) == WORDS
        assert [data["text"] for kind, data in events if kind == "transcript"] == transcripts
    assert not stopped.service.streams.open
