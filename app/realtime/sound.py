"""Audio as it arrives on a connection, turned into samples at 16 kHz, piece by piece."""

import io
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr

from slimwhisper.errors import AudioError
from slimwhisper.types import SAMPLE_RATE

Sound = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
MAX_CHANNELS = 8
SAMPLE_BYTES = {"PCM_16": 2, "PCM_32": 4, "ULAW": 1, "ALAW": 1}  # by coding, as soundfile has it


@dataclass(frozen=True, slots=True)
class Format:
    """How audio is sent: a coding, samples a second, and channels, interleaved."""

    coding: str = "PCM_16"  # of SAMPLE_BYTES; PCM is signed and little endian
    rate: int = 24_000
    channels: int = 1


class Decoder:
    """Turns the bytes of one stream into samples; it keeps what the resampler still holds."""

    def __init__(self, format: Format) -> None:
        self.format = format
        self._resampler = self._make_resampler()

    def decode(self, data: bytes) -> Sound:
        """The samples of `data`, float32 [n] at 16 kHz; some may come with the next piece.

        Raises AudioError if `data` ends within a sample.
        """
        sent = self.format
        frame = SAMPLE_BYTES[sent.coding] * sent.channels
        if len(data) % frame:
            raise AudioError(
                f"audio: {len(data)} bytes are not a whole number of samples of {frame} bytes; "
                "send whole samples"
            )
        layout = {"samplerate": sent.rate, "channels": sent.channels, "subtype": sent.coding}
        sound, _ = soundfile.read(
            io.BytesIO(data), dtype="float32", format="RAW", endian="LITTLE", **layout
        )
        if sent.channels > 1:
            sound = sound.mean(axis=1, dtype=np.float32)
        return self._resampled(sound)

    def flush(self) -> Sound:
        """The samples that were held back, float32 [n] at 16 kHz. The next piece starts anew."""
        rest = self._resampled(np.zeros(0, np.float32), last=True)
        self._resampler = self._make_resampler()
        return rest

    def _resampled(self, sound: Sound, last: bool = False) -> Sound:
        if self._resampler is None:
            return sound
        return np.asarray(self._resampler.resample_chunk(sound, last), np.float32)

    def _make_resampler(self) -> soxr.ResampleStream | None:
        rate = self.format.rate
        if rate == SAMPLE_RATE:
            return None
        return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
