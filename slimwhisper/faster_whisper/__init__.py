"""The interface of faster-whisper 1.2: programs that were written for it run on this engine.

    import slimwhisper.faster_whisper as faster_whisper
    model = faster_whisper.WhisperModel("turbo")
    segments, info = model.transcribe("talk.mp3")

Names, arguments and defaults are those of faster-whisper. docs/guides/faster-whisper.md has what
differs. What cannot be offered raises OptionError, which is a ValueError, with one line.
"""

from slimwhisper.faster_whisper.audio import decode_audio
from slimwhisper.faster_whisper.transcribe import BatchedInferencePipeline, WhisperModel
from slimwhisper.faster_whisper.types import (
    Segment,
    TranscriptionInfo,
    TranscriptionOptions,
    VadOptions,
    Word,
)
from slimwhisper.faster_whisper.utils import available_models, download_model, format_timestamp
from slimwhisper.faster_whisper.version import __version__

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "__version__",
    "available_models",
    "decode_audio",
    "download_model",
    "format_timestamp",
]
