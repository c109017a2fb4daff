"""faster-whisper's voice activity detection, by our own."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.audio.vad import speech_regions
from slimwhisper.errors import OptionError
from slimwhisper.faster_whisper.types import VadOptions
from slimwhisper.types import SAMPLE_RATE

__all__ = ["VadOptions", "get_speech_timestamps"]


def get_speech_timestamps(
    audio: NDArray[np.float32],
    vad_options: VadOptions | None = None,
    sampling_rate: int = SAMPLE_RATE,
    **kwargs: Any,
) -> list[dict[str, int]]:
    """Where float32 [n] has speech: dictionaries of "start" and "end", in samples.

    kwargs: fields of `VadOptions`. Raises OptionError unless the rate is 16,000 Hz.
    """
    if sampling_rate != SAMPLE_RATE:
        raise OptionError(f"sampling_rate {sampling_rate!r}: give samples at {SAMPLE_RATE} Hz")
    options = VadOptions(**kwargs) if vad_options is None else vad_options
    found = speech_regions(
        ArraySamples(np.asarray(audio, np.float32)),
        threshold=options.threshold,
        end_threshold=options.neg_threshold,
        min_speech_ms=options.min_speech_duration_ms,
        max_speech_s=options.max_speech_duration_s,
        min_silence_ms=options.min_silence_duration_ms,
        pad_ms=options.speech_pad_ms,
    )
    return [{"start": start, "end": end} for start, end in found]
