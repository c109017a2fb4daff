"""Clients of `/v1/realtime` that play recordings at their own speed, and scores of what they show;
for `live.py`.
"""

import asyncio
import base64
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate, takewhile
from operator import eq
from typing import Any

import numpy as np
from conversations import Spoken, aligned, words_of
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect

PIECE = 0.1  # seconds of audio in a message
RATE = 16_000
SILENCE = 2.0  # seconds after the recording, so that its last utterance ends by itself
PATIENCE = 30.0  # seconds to wait for the last text
TRANSCRIPTION = "conversation.item.input_audio_transcription"


# -- scores ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownWord:
    """A word of a live transcript."""

    word: str
    at: float  # seconds since the stream's first sample was sent


@dataclass(slots=True)
class Shown:
    """The text of an utterance as a client shows it."""

    committed: str = ""
    parts: list[tuple[int, float]] = field(default_factory=list)  # its length, and since when
    shown: list[str] = field(default_factory=list)  # words, the tentative ones too
    erased: int = 0  # words

    def commit(self, text: str, at: float) -> None:
        """More text is committed, at this time."""
        self.committed += text
        self.parts.append((len(self.committed), at))

    def show(self, tentative: str) -> None:
        """What follows the committed text now."""
        words = words_of(self.committed + tentative)
        self.erased += len(self.shown) - sum(takewhile(bool, map(eq, self.shown, words)))
        self.shown = words

    def words(self) -> list[ShownWord]:
        """The committed words; one counts when its last letter is there."""
        shown_words, end = [], 0
        for token in self.committed.split():
            end = self.committed.index(token, end) + len(token)
            at = next(at for length, at in self.parts if length >= end)
            shown_words += [ShownWord(word, at) for word in words_of(token)]
        return shown_words


@dataclass(frozen=True, slots=True)
class Score:
    """Of one stream, or of several together."""

    delays: tuple[float, ...]  # seconds, of the words that are right
    last_delays: tuple[float, ...]  # of those that end an utterance
    truth_words: int
    truth_errors: int
    live_words: int
    erased: int

    def __add__(self, other: "Score") -> "Score":
        return Score(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def summary(self) -> dict[str, float | None]:
        """Percentiles of the delay in seconds, and rates in percent or for each word."""
        return {
            **{f"p{p}": percentile(self.delays, p) for p in (50, 95, 99)},
            **{f"last_p{p}": percentile(self.last_delays, p) for p in (50, 95)},
            "erasure": self.erased / max(self.live_words, 1),
            "word_errors": 100 * self.truth_errors / max(self.truth_words, 1),
        }


def percentile(values: Sequence[float], p: int) -> float | None:
    """By linear interpolation; None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[p - 1]


def score(truth: Sequence[Spoken], utterances: Sequence[Shown]) -> Score:
    """One stream against the words that it should have."""
    texts = [shown.words() for shown in utterances]
    shown_words = [word for text in texts for word in text]
    last = {end - 1 for end in accumulate(map(len, texts))}
    words = [word.word for word in shown_words]
    pairs, errors = aligned([word.word for word in truth], words)
    return Score(
        tuple(shown_words[j].at - truth[i].end for i, j in pairs),
        tuple(shown_words[j].at - truth[i].end for i, j in pairs if j in last),
        len(truth),
        errors,
        len(words),
        sum(shown.erased for shown in utterances),
    )


# -- clients: one process, many streams ------------------------------------------------------------


@dataclass(slots=True)
class Played:
    """What one stream received."""

    utterances: dict[str, Shown] = field(default_factory=dict)  # by item, in order
    late: float = 0.0  # seconds by which this client was, at most, late with a piece
    open: set[str] = field(default_factory=set)  # items that are not complete
    error: str | None = None


async def play_all(
    url: str, sounds: Sequence[NDArray[np.float32]], stagger: float, language: str
) -> list[Played]:
    """Play every sound to a stream of its own, starts spread over `stagger` seconds.

    url: of the server, ws://. sounds: float32 [n] at 16 kHz.
    """
    starts = [stagger * i / len(sounds) for i in range(len(sounds))]
    pairs = zip(sounds, starts, strict=True)
    return list(await asyncio.gather(*(play(url, *pair, language) for pair in pairs)))


def session(language: str) -> dict[str, Any]:
    """What a client asks for."""
    sound = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": {"language": language}}
    include = ["item.input_audio_transcription.tentative"]
    return {"type": "transcription", "include": include, "audio": {"input": sound}}


async def play(url: str, sound: NDArray[np.float32], start: float, language: str) -> Played:
    """Play one sound, beginning `start` seconds from now."""
    played = Played()
    await asyncio.sleep(start)
    async with connect(f"{url}/v1/realtime?intent=transcription", max_size=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": session(language)}))
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "session.updated":
                break
            if event["type"] == "error":
                raise SystemExit(f"the server refuses a stream: {event['error']['message']}")
        began = time.perf_counter()
        listener = asyncio.create_task(listen(socket, played, began))
        await send(socket, sound, played, began)
        for _ in range(round(PATIENCE / PIECE)):
            if not played.open or listener.done():
                break
            await asyncio.sleep(PIECE)
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
    if played.open and not played.error:
        played.error = f"{len(played.open)} utterances without their last text"
    return played


async def send(
    socket: ClientConnection, sound: NDArray[np.float32], played: Played, began: float
) -> None:
    """Each piece at the time at which its last sample would have been recorded."""
    silence = np.zeros(round(SILENCE * RATE), np.float32)
    samples = np.clip(np.concatenate([sound, silence]) * 32768, -32768, 32767).astype("<i2")
    size = round(PIECE * RATE)
    for at in range(0, len(samples), size):
        piece = samples[at : at + size]
        due = began + (at + len(piece)) / RATE
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        played.late = max(played.late, time.perf_counter() - due)
        audio = base64.b64encode(piece.tobytes()).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


async def listen(socket: ClientConnection, played: Played, began: float) -> None:
    """Handle the server's events until the connection ends."""
    async for message in socket:
        handle_event(json.loads(message), played, time.perf_counter() - began)


def handle_event(event: dict[str, str], played: Played, at: float) -> None:
    """Handle one event of the server; `at`: seconds since the first sample."""
    kind = event["type"]
    if kind == "input_audio_buffer.speech_started":
        played.utterances[event["item_id"]] = Shown()
        played.open.add(event["item_id"])
    elif kind == "error" or kind == f"{TRANSCRIPTION}.failed":
        played.error = str(event["error"])
    elif kind.startswith(TRANSCRIPTION):
        shown = played.utterances[event["item_id"]]
        if kind == f"{TRANSCRIPTION}.delta":
            shown.commit(event["delta"], at)
        elif kind == f"{TRANSCRIPTION}.tentative":
            shown.show(event["text"])
        elif kind == f"{TRANSCRIPTION}.completed":
            shown.show("")
            played.open.discard(event["item_id"])
