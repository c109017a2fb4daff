"""Clients of `/v1/realtime` that send recordings at their own speed: one process, many streams."""

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from live_score import Shown
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect

PIECE = 0.1  # seconds of audio in a message
RATE = 16_000
SILENCE = 2.0  # seconds after the recording, so that its last utterance ends by itself
PATIENCE = 30.0  # seconds to wait for the last text
TRANSCRIPTION = "conversation.item.input_audio_transcription"
SESSION = {
    "type": "transcription",
    "include": ["item.input_audio_transcription.tentative"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": RATE},
            "transcription": {"language": "en"},
            "turn_detection": {"type": "server_vad"},
        }
    },
}


@dataclass(slots=True)
class Played:
    """What one stream was told."""

    utterances: dict[str, Shown] = field(default_factory=dict)  # by item, in order
    late: float = 0.0  # seconds by which this client was, at most, late with a piece
    open: set[str] = field(default_factory=set)  # items that are not complete
    error: str | None = None


async def play_all(url: str, sounds: Sequence[NDArray[np.float32]], stagger: float) -> list[Played]:
    """Play every sound to a stream of its own, starts spread over `stagger` seconds.

    url: of the server, ws://. sounds: float32 [n] at 16 kHz.
    """
    starts = [stagger * i / len(sounds) for i in range(len(sounds))]
    return list(await asyncio.gather(*map(play, [url] * len(sounds), sounds, starts)))


async def play(url: str, sound: NDArray[np.float32], start: float) -> Played:
    """Play one sound, beginning `start` seconds from now."""
    played = Played()
    await asyncio.sleep(start)
    async with connect(f"{url}/v1/realtime?intent=transcription", max_size=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": SESSION}))
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
    """Take in what the server tells, until the connection ends."""
    async for message in socket:
        hear(json.loads(message), played, time.perf_counter() - began)


def hear(event: dict[str, str], played: Played, at: float) -> None:
    """Take in one event of the server; `at`: seconds since the first sample."""
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
