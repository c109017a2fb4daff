"""Connects a client to a live stream: decodes its audio into samples at 16 kHz, piece by piece, and
passes events to the event loop.
"""

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
import soxr

from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.types import SAMPLE_RATE

Sound = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
MAX_CHANNELS = 8
# by coding, as soundfile has it
SAMPLE_BYTES = {"PCM_16": 2, "PCM_32": 4, "FLOAT": 4, "ULAW": 1, "ALAW": 1}


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """The format of the audio that a client sends; its channels are interleaved."""

    coding: str = "PCM_16"  # of SAMPLE_BYTES; all are little endian, and PCM is signed
    rate: int = 24_000  # samples per second
    channels: int = 1


class SoundDecoder:
    """Decodes the bytes of one stream; the resampler carries samples from piece to piece."""

    def __init__(self, format: SoundFormat) -> None:
        self.format, self._rest = format, b""  # of a sample that has not arrived whole
        self._resampler = self._make_resampler()

    def decode(self, data: bytes) -> Sound:
        """The samples of `data`, float32 [n] at 16 kHz; the last few may come with the next piece,
        and what is missing of a sample with its first bytes.
        """
        format, data = self.format, self._rest + data
        whole = len(data) - len(data) % (SAMPLE_BYTES[format.coding] * format.channels)
        data, self._rest = data[:whole], data[whole:]
        if format.coding == "PCM_16":  # as soundfile, which takes 15 times as long for 0.1 s
            sound = np.frombuffer(data, "<i2") * np.float32(2**-15)
        elif format.coding == "FLOAT":
            sound = np.nan_to_num(np.frombuffer(data, "<f4")).clip(-1, 1)
        else:
            raw: dict[str, Any] = {"format": "RAW", "endian": "LITTLE", "subtype": format.coding}
            raw |= {"samplerate": format.rate, "channels": 1, "dtype": "float32"}
            sound, _ = soundfile.read(io.BytesIO(data), **raw)
        if format.channels > 1:
            sound = sound.reshape(-1, format.channels).mean(axis=1, dtype=np.float32)
        return self._resampled(sound)

    def flush(self) -> Sound:
        """The samples still in the resampler, float32 [n] at 16 kHz, which is reset."""
        tail = self._resampled(np.zeros(0, np.float32), last=True)
        self._resampler = self._make_resampler()
        return tail

    def _resampled(self, sound: Sound, last: bool = False) -> Sound:
        if self._resampler is None:
            return sound
        return np.asarray(self._resampler.resample_chunk(sound, last), np.float32)

    def _make_resampler(self) -> soxr.ResampleStream | None:
        rate = self.format.rate
        if rate == SAMPLE_RATE:
            return None
        return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")


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
        """Decode audio for the stream. Returns the seconds of audio that were appended."""
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
        self._decoder = SoundDecoder(self._decoder.format)  # without the rest of a sample
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
