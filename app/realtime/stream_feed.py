"""Connects a client to a live stream: decodes its audio, and passes events to the event loop."""

import asyncio
from collections.abc import Callable

from slimwhisper.app.realtime.audio_input import Sound, SoundDecoder, SoundFormat
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.types import SAMPLE_RATE

MAX_BACKLOG = 30.0  # seconds of audio; while more waits, none is appended
PIECE = 10 * SAMPLE_RATE  # samples that are appended at a time
POLL = 0.05  # seconds between checks of a full backlog


class StreamFeed:
    """A stream of the service, and the decoder of its audio."""

    def __init__(
        self,
        service: Service,
        choice: ModelChoice,
        options: LiveOptions,
        format: SoundFormat,
        on_event: Callable[[LiveEvent | None], None],
    ) -> None:
        """on_event: called in this event loop with the stream's events, until `close`.

        Raises SlimWhisperError.
        """
        loop = asyncio.get_running_loop()
        self._closed = False
        self._decoder = SoundDecoder(format)
        self.has_audio = False

        def deliver(event: LiveEvent | None) -> None:
            if not self._closed:
                on_event(event)

        def listener(event: LiveEvent | None) -> None:
            loop.call_soon_threadsafe(deliver, event)

        self.stream = service.open_stream(choice, options, listener)

    async def append(self, data: bytes) -> float:
        """Decode audio for the stream. Returns the seconds of audio that were appended.

        Raises AudioError if it ends within a sample.
        """
        self.has_audio = self.has_audio or bool(data)
        return await self._append_samples(self._decoder.decode(data))

    async def flush(self) -> float:
        """Append the samples still in the decoder; otherwise as `append`."""
        return await self._append_samples(self._decoder.flush())

    async def change(self, format: SoundFormat) -> float:
        """Set the format of the following audio. Returns as `flush`, if it is another format."""
        if format == self._decoder.format:
            return 0.0
        seconds = await self.flush()
        self._decoder = SoundDecoder(format)
        return seconds

    def clear(self) -> None:
        """Discard the audio and text that are not committed."""
        self._decoder.flush()
        self.stream.clear()

    def finish(self) -> None:
        """End the audio. Raises BusyError."""
        self.stream.append(self._decoder.flush())
        self.stream.finish()

    def close(self) -> None:
        """Drop the stream; there are no more events."""
        self._closed = True
        self.stream.close()

    async def _append_samples(self, samples: Sound) -> float:
        """Append float32 [n] at 16 kHz, waiting while the backlog is full. Meanwhile nothing is
        read from the client, so its connection fills and slows it down.
        """
        for start in range(0, len(samples), PIECE):
            while self.stream.backlog > MAX_BACKLOG:
                await asyncio.sleep(POLL)
            self.stream.append(samples[start : start + PIECE])
        return len(samples) / SAMPLE_RATE
