"""Gives a stream its audio, as fast as it takes it."""

import asyncio

from slimwhisper.app.realtime.sound import Sound
from slimwhisper.app.service.streams import LiveStream
from slimwhisper.types import SAMPLE_RATE

MAX_BACKLOG = 30.0  # seconds of audio; no more is given while so much waits
PIECE = 10 * SAMPLE_RATE  # samples that are given at a time
POLL = 0.05  # seconds between looks at a full backlog


async def feed(stream: LiveStream, samples: Sound) -> None:
    """Append samples, float32 [n] at 16 kHz. While it waits, its caller reads no more from the
    client, whose connection fills.
    """
    for start in range(0, len(samples), PIECE):
        while stream.backlog > MAX_BACKLOG:
            await asyncio.sleep(POLL)
        stream.append(samples[start : start + PIECE])
