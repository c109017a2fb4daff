"""Clients of `/v1/realtime` that play recordings at their own speed, and scores of what they show;
for `live.py`.
"""

import asyncio
import base64
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, takewhile
from operator import eq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from websockets.asyncio.client import ClientConnection, connect

from slimwhisper.research.comparison import edits, words_of

PIECE = 0.1  # seconds of audio in a message
RATE = 16_000
SILENCE = 2.0  # seconds after the recording, so that its last utterance ends by itself
PATIENCE = 30.0  # seconds to wait for the last text
TRANSCRIPTION = "conversation.item.input_audio_transcription"


# -- scores ----------------------------------------------------------------------------------------


class Word(NamedTuple):
    """A word of the truth, or of a live transcript."""

    word: str
    at: float  # seconds: its end in the audio, or when it was committed


@dataclass(slots=True)
class Shown:
    """The text of an utterance as a client shows it."""

    language: str
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
        words = words_of(self.committed + tentative, self.language)
        self.erased += len(self.shown) - sum(takewhile(bool, map(eq, self.shown, words)))
        self.shown = words

    def words(self) -> list[Word]:
        """The committed words; one counts when its last letter is there."""
        found, end = [], 0
        for token in self.committed.split():
            end = self.committed.index(token, end) + len(token)
            at = next(at for length, at in self.parts if length >= end)
            found += [Word(word, at) for word in words_of(token, self.language)]
        return found


def score(streams: Iterable[tuple[Sequence[Word], Sequence[Shown]]]) -> dict[str, Any]:
    """Streams, each against the words that it should have: percentiles of the delay in seconds, of
    the words that are right and of those that end an utterance; rates in percent, or for each word.
    """
    delays, last_delays = list[float](), list[float]()
    said = heard = errors = erased = 0
    for truth, utterances in streams:
        texts = [shown.words() for shown in utterances]
        words, last = list(chain.from_iterable(texts)), {*accumulate(map(len, texts))}
        pairs = ([word.word for word in truth], [word.word for word in words])
        for block in Levenshtein.opcodes(*pairs).as_matching_blocks():
            for i in range(block.size):
                delay = words[block.b + i].at - truth[block.a + i].at
                delays.append(delay)
                if block.b + i + 1 in last:
                    last_delays.append(delay)
        said += len(truth)
        heard += len(words)
        errors += edits(*pairs)
        erased += sum(shown.erased for shown in utterances)
    return {
        "words": said,
        **{f"p{p}": percentile(delays, p) for p in (50, 95, 99)},
        **{f"last_p{p}": percentile(last_delays, p) for p in (50, 95)},
        "erasure": erased / max(heard, 1),
        "word_errors": 100 * errors / max(said, 1),
    }


def percentile(values: Sequence[float], p: int) -> float | None:
    """By linear interpolation; None of nothing."""
    return float(np.percentile(values, p)) if values else None


# -- clients: one process, many streams ------------------------------------------------------------


@dataclass(slots=True)
class Played:
    """What one stream received."""

    language: str
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


async def play(url: str, sound: NDArray[np.float32], start: float, language: str) -> Played:
    """Play one sound, beginning `start` seconds from now."""
    played, transcription = Played(language), {"language": language}
    sent = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": transcription}
    include = ["item.input_audio_transcription.tentative"]
    session = {"type": "transcription", "include": include, "audio": {"input": sent}}
    await asyncio.sleep(start)
    async with connect(f"{url}/v1/realtime?intent=transcription", max_size=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": session}))
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
    """Keep what the server's events say, until the connection ends."""
    async for message in socket:
        event, at = json.loads(message), time.perf_counter() - began
        kind = event["type"]
        if kind == "input_audio_buffer.speech_started":
            played.utterances[event["item_id"]] = Shown(played.language)
            played.open.add(event["item_id"])
        elif kind in ("error", f"{TRANSCRIPTION}.failed"):
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
