"""Audio as it arrives on a connection, turned into samples at 16 kHz, piece by piece."""

from dataclasses import dataclass

import numpy as np
import soxr

from slimwhisper.errors import AudioError
from slimwhisper.types import SAMPLE_RATE

Sound = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
MAX_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class Format:
    """How audio is sent: a coding, samples a second, and channels, interleaved."""

    coding: str = "pcm16"  # or "pcm32" (both signed, little endian), "mulaw", "alaw" (8 bits)
    rate: int = 24_000
    channels: int = 1

    @property
    def frame_bytes(self) -> int:
        """Bytes of a sample of all channels."""
        return {"pcm16": 2, "pcm32": 4}.get(self.coding, 1) * self.channels


def mulaw_table() -> Sound:
    """The value of each mu-law byte, float32 [256] within -1 to 1 (ITU-T G.711, table 2a/2b)."""
    code = ~np.arange(256, dtype=np.uint8)  # sent with all bits inverted
    segment, step = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = ((2 * step + 33) << segment) - 33  # of 8159
    return (np.where(code & 128, -size, size) * 4 / 32768).astype(np.float32)


def alaw_table() -> Sound:
    """The value of each A-law byte, float32 [256] within -1 to 1 (ITU-T G.711, table 1a/1b)."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55  # sent with every other bit inverted
    segment, step = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = np.where(segment > 0, (2 * step + 33) << np.maximum(segment - 1, 0), 2 * step + 1)
    return (np.where(code & 128, size, -size) * 8 / 32768).astype(np.float32)


class Decoder:
    """Turns the bytes of one stream into samples; it keeps what the resampler still holds."""

    def __init__(self, format: Format) -> None:
        self.format = format
        self._table = {"mulaw": mulaw_table, "alaw": alaw_table}.get(format.coding, lambda: None)()
        self._resampler = self._make_resampler()

    def decode(self, data: bytes) -> Sound:
        """The samples of `data`, float32 [n] at 16 kHz; some may come with the next piece.

        Raises AudioError if `data` ends within a sample.
        """
        if len(data) % self.format.frame_bytes:
            raise AudioError(
                f"audio: {len(data)} bytes are not a whole number of samples of "
                f"{self.format.frame_bytes} bytes; send whole samples"
            )
        sound = self._samples(data)
        if self.format.channels > 1:
            sound = sound.reshape(-1, self.format.channels).mean(axis=1, dtype=np.float32)
        if self._resampler is None:
            return sound
        return np.asarray(self._resampler.resample_chunk(sound), np.float32)

    def flush(self) -> Sound:
        """The samples that were held back, float32 [n] at 16 kHz. The next piece starts anew."""
        if self._resampler is None:
            return np.zeros(0, np.float32)
        rest = self._resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        self._resampler = self._make_resampler()
        return np.asarray(rest, np.float32)

    def _make_resampler(self) -> soxr.ResampleStream | None:
        rate = self.format.rate
        if rate == SAMPLE_RATE:
            return None
        return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")

    def _samples(self, data: bytes) -> Sound:
        if self._table is not None:
            return self._table[np.frombuffer(data, np.uint8)]
        bits = 16 if self.format.coding == "pcm16" else 32
        whole = np.frombuffer(data, f"<i{bits // 8}")
        return whole.astype(np.float32) / np.float32(2 ** (bits - 1))
