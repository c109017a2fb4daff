"""A connection's live stream: sound in as it is sent, events out to the connection's event loop."""

import asyncio
from collections.abc import Callable

from slimwhisper.app.realtime.sound import Decoder, Format, Sound
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.types import SAMPLE_RATE

MAX_BACKLOG = 30.0  # seconds of audio; no more is given while so much waits
PIECE = 10 * SAMPLE_RATE  # samples that are given at a time
POLL = 0.05  # seconds between looks at a full backlog


class Feed:
    """A stream of the service, and the decoder of what is sent to it."""

    def __init__(
        self,
        service: Service,
        choice: ModelChoice,
        options: LiveOptions,
        format: Format,
        tell: Callable[[LiveEvent | None], None],
    ) -> None:
        """tell: called in this event loop with what the stream tells, until `close`.

        Raises SlimWhisperError.
        """
        loop = asyncio.get_running_loop()
        self._closed = False
        self._decoder = Decoder(format)
        self.heard = False  # any audio

        def pass_on(event: LiveEvent | None) -> None:
            if not self._closed:
                tell(event)

        def listener(event: LiveEvent | None) -> None:
            loop.call_soon_threadsafe(pass_on, event)

        self.stream = service.open_stream(choice, options, listener)

    async def append(self, data: bytes) -> float:
        """Sound as it is sent. Returns how many seconds of audio the stream is given.

        Raises AudioError for half a sample.
        """
        samples = self._decoder.decode(data)
        self.heard = self.heard or bool(data)
        return await self._give(samples)

    async def flush(self) -> float:
        """What the decoder has held back; as `append`."""
        return await self._give(self._decoder.flush())

    async def change(self, format: Format) -> float:
        """From now on sound is sent in this format; as `flush`, if it is another one."""
        if format == self._decoder.format:
            return 0.0
        seconds = await self.flush()
        self._decoder = Decoder(format)
        return seconds

    def clear(self) -> None:
        """Forget what the stream has not committed."""
        self._decoder.flush()
        self.stream.clear()

    def finish(self) -> None:
        """No more sound comes. Raises BusyError."""
        self.stream.append(self._decoder.flush())
        self.stream.finish()

    def close(self) -> None:
        """Drop the stream; it tells no more."""
        self._closed = True
        self.stream.close()

    async def _give(self, samples: Sound) -> float:
        """float32 [n] at 16 kHz, as fast as the stream takes it. While this waits, nothing more is
        read from the client, whose connection fills.
        """
        for start in range(0, len(samples), PIECE):
            while self.stream.backlog > MAX_BACKLOG:
                await asyncio.sleep(POLL)
            self.stream.append(samples[start : start + PIECE])
        return len(samples) / SAMPLE_RATE
