"""Whisper speech-to-text with a decoder cache several times smaller and the same transcripts.

>>> import slimwhisper
>>> model = slimwhisper.load_model("turbo")  # doctest: +SKIP
>>> model.transcribe("talk.mp3")["text"]  # doctest: +SKIP
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names
from slimwhisper.errors import (
    AudioError,
    CacheError,
    CheckpointError,
    DependencyError,
    OptionError,
    OutputError,
    SlimWhisperError,
)
from slimwhisper.types import Options, Segment, Transcript

__version__ = version("slimwhisper")

__all__ = [
    "AudioError",
    "CacheError",
    "CheckpointError",
    "DecodingOptions",
    "DecodingResult",
    "DependencyError",
    "OptionError",
    "Options",
    "OutputError",
    "Segment",
    "SlimWhisper",
    "SlimWhisperError",
    "Transcript",
    "available_models",
    "decode",
    "load_audio",
    "load_model",
    "log_mel_spectrogram",
    "pad_or_trim",
]

# What needs torch is imported when it is first asked for, so that the command line starts at once
# and `slimwhisper doctor` runs where torch does not.
if TYPE_CHECKING:
    from whisper import DecodingOptions, DecodingResult, log_mel_spectrogram, pad_or_trim

    from slimwhisper.api import SlimWhisper, load_model
    from slimwhisper.audio.load import load_audio
    from slimwhisper.checkpoint.load import available_models
    from slimwhisper.decoding import decode
else:  # hidden from type checkers, which would take any name for one of the module's
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "DecodingOptions": "whisper",
            "DecodingResult": "whisper",
            "SlimWhisper": "slimwhisper.api",
            "available_models": "slimwhisper.checkpoint.load",
            "decode": "slimwhisper.decoding",
            "load_audio": "slimwhisper.audio.load",
            "load_model": "slimwhisper.api",
            "log_mel_spectrogram": "whisper",
            "pad_or_trim": "whisper",
        },
    )
