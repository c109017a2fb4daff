"""Real streams through OpenAI's client: the right words of a sample."""

import json
import socket
from collections.abc import Iterator

import pytest

from slimwhisper.api import SlimWhisper
from tests.support.live import Live, freed, start, stop
from tests.support.realtime import PATH, QUERY, WORDS, encoded, sample


@pytest.fixture(scope="module")
def live(model: SlimWhisper) -> Iterator[Live]:
    running = start(model)
    yield running
    stop(running)


def test_the_words_of_a_sample(live: Live) -> None:
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        for piece in sample(24_000, 0.5):
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
    connection.input_audio_buffer.append(audio=encoded(sample(24_000, 2.0)[0]))
    while (
        json.loads(connection._connection.recv(timeout=20))["type"]
        != "input_audio_buffer.speech_started"
    ):
        pass
    connection._connection.socket.shutdown(socket.SHUT_RDWR)
    assert freed(live)
