"""Whisper speech-to-text with a decoder cache 5 to 20 times smaller, and the same transcripts.

>>> import slimwhisper
>>> model = slimwhisper.load_model("turbo")  # doctest: +SKIP
>>> model.transcribe("talk.mp3")["text"]  # doctest: +SKIP
"""

import os
import sys
from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names, openai_whisper_path
from slimwhisper.errors import (
    AudioError,
    CacheError,
    CheckpointError,
    DependencyError,
    OptionError,
    OutputError,
    SlimWhisperError,
)
from slimwhisper.options import Options
from slimwhisper.types import Dims as ModelDimensions
from slimwhisper.types import Segment, Transcript

__all__ = [
    "AudioError",
    "CacheError",
    "CheckpointError",
    "DecodingOptions",
    "DecodingResult",
    "DependencyError",
    "ModelDimensions",
    "OptionError",
    "Options",
    "OutputError",
    "Segment",
    "SlimWhisper",
    "SlimWhisperError",
    "Transcript",
    "Whisper",
    "available_models",
    "decode",
    "detect_language",
    "load_audio",
    "load_model",
    "log_mel_spectrogram",
    "pad_or_trim",
    "save_transcript",
    "transcribe",
]

# While threads of PyTorch wait for one another, they keep their cores for milliseconds, which on a
# busy machine others need, also those that are waited for. GNU's OpenMP reads this when torch is
# imported: how often they look before they sleep, about 50 to 100 microseconds.
SPINS = "2000"
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)

# `utils`, `normalizers` and `timing` are openai-whisper's where that is installed, for scripts
# written for it.
__path__ += openai_whisper_path()

# Modules that need torch are imported on first use, so that the command line starts fast and
# `slimwhisper doctor` works even where torch does not.
if TYPE_CHECKING:
    from slimwhisper.api import SlimWhisper
    from slimwhisper.api import SlimWhisper as Whisper
    from slimwhisper.audio.load import load_audio
    from slimwhisper.audio.mel import log_mel_spectrogram, pad_or_trim
    from slimwhisper.decoding import DecodingOptions, DecodingResult, decode, detect_language
    from slimwhisper.formats.names import available_models
    from slimwhisper.loading import load_model
    from slimwhisper.outputs import save_transcript
    from slimwhisper.transcribe import transcribe
    from slimwhisper.version import __version__ as __version__
else:  # hidden from type checkers, which would then accept any name
    _DECODING = ("DecodingOptions", "DecodingResult", "decode", "detect_language")
    _AUDIO = ("load_audio", "log_mel_spectrogram", "pad_or_trim")
    _MODULES = ("audio", "decoding", "model", "normalizers", "timing", "tokenizer", "utils")
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("SlimWhisper", "Whisper"), "slimwhisper.api"),
            **dict.fromkeys(_DECODING, "slimwhisper.decoding"),
            **dict.fromkeys(_AUDIO, "slimwhisper.audio"),
            **{name: f"slimwhisper.{name}" for name in _MODULES},
            # for scripts that preload files
            "_ALIGNMENT_HEADS": "slimwhisper.formats.names:ALIGNMENT_DUMPS",
            "_MODELS": "slimwhisper.formats.names:MODEL_URLS",
            "_download": "slimwhisper.formats.downloads:download",
            "__version__": "slimwhisper.version",
            "available_models": "slimwhisper.formats.names",
            "load_model": "slimwhisper.loading",
            "save_transcript": "slimwhisper.outputs",
            "transcribe": "slimwhisper.transcribe:transcribe",
            "version": "slimwhisper.version",
        },
    )
