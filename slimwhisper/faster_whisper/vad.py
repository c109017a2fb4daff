"""The voice activity detection of faster-whisper, by our own."""

from dataclasses import asdict
from typing import Any

from slimwhisper.audio.load import AudioSource, load_samples
from slimwhisper.errors import OptionError
from slimwhisper.faster_whisper.types import VadOptions
from slimwhisper.options import Options
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import find_speech

__all__ = ["VadOptions", "get_speech_timestamps"]


def get_speech_timestamps(
    audio: AudioSource,
    vad_options: VadOptions | None = None,
    sampling_rate: int = SAMPLE_RATE,
    **kwargs: Any,
) -> list[dict[str, int]]:
    """Find the speech in some samples.

    Args:
        audio: The samples [n] at 16 kHz, float or int16, or a recording.
        vad_options: What counts as speech. None means the defaults with `kwargs`.
        sampling_rate: The rate in Hz, which must be 16,000.
        **kwargs: The fields of `VadOptions`.

    Returns:
        Dictionaries of "start" and "end", in samples.

    Raises:
        AudioError: When the recording cannot be read.
        OptionError: When the rate is another one.
    """
    if sampling_rate != SAMPLE_RATE:
        raise OptionError(f"sampling_rate {sampling_rate!r}: give samples at {SAMPLE_RATE} Hz")
    options = VadOptions(**kwargs) if vad_options is None else vad_options
    found = find_speech(load_samples(audio), Options(**option_fields(options)))
    return [{"start": start, "end": end} for start, end in found]


def option_fields(vad: VadOptions) -> dict[str, Any]:
    """Convert what counts as speech.

    Args:
        vad: The options of faster-whisper.

    Returns:
        The same as fields of `slimwhisper.Options`.
    """
    fields = {f"vad_{name}": value for name, value in asdict(vad).items()}
    longest = vad.max_speech_duration_s
    return fields | {"vad_max_speech_duration_s": None if longest == float("inf") else longest}
