"""Real streams through OpenAI's client and Wyoming's: the right words of a sample."""

import asyncio
import json
import time
from collections.abc import Iterator

import numpy as np
import pytest
import soxr

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_audio
from tests.support.live import Live, free_port, start, stop
from tests.support.paths import ROOT
from tests.support.realtime import encoded

QUERY = {"intent": "transcription"}
SAMPLE = ROOT / "samples/phone-number.wav"
WORDS = "five five five zero one four two seven nine eight"
PATH = "conversation.item.input_audio_transcription"

pytestmark = pytest.mark.skipif(not SAMPLE.exists(), reason="needs the source tree")


@pytest.fixture(scope="module")
def live(model: SlimWhisper) -> Iterator[Live]:
    running = start(model, wyoming=free_port())
    yield running
    stop(running)


def pieces(rate: int, seconds: float) -> list[bytes]:
    """The sample as pcm16, in pieces."""
    speech = soxr.resample(load_audio(str(SAMPLE)), 16_000, rate)
    whole = (np.concatenate([speech, np.zeros(rate)]) * 32767).clip(-32768, 32767).astype("<i2")
    step = round(seconds * rate)
    return [whole[i : i + step].tobytes() for i in range(0, len(whole), step)]


def freed(live: Live) -> bool:
    """Whether, soon, no stream is left and no slot is in use."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not live.service.streams_open and live.service.in_flight == 0:
            return True
        time.sleep(0.02)
    return False


def test_the_words_of_a_sample(live: Live) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        for piece in pieces(24_000, 0.5):
            connection.input_audio_buffer.append(audio=encoded(piece))
        connection.input_audio_buffer.commit()
        texts: list[str] = []
        deltas = ""
        while len(" ".join(texts).split()) < len(WORDS.split()):
            event = json.loads(connection._connection.recv(timeout=60))
            if event["type"] == f"{PATH}.delta":
                deltas += event["delta"]
            if event["type"] == f"{PATH}.completed":
                texts.append(event["transcript"])
                deltas += " "
                assert event["usage"]["seconds"] > 0.5
    assert " ".join(texts) == " ".join(deltas.split()) == WORDS
