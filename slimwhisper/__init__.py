"""Whisper speech-to-text with a decoder cache several times smaller and the same transcripts.

>>> import slimwhisper
>>> model = slimwhisper.load_model("turbo")  # doctest: +SKIP
>>> model.transcribe("talk.mp3")["text"]  # doctest: +SKIP
"""

from importlib.metadata import version

from slimwhisper.audio import load_audio
from slimwhisper.checkpoint import available_models
from slimwhisper.errors import (
    AudioError,
    CacheError,
    CheckpointError,
    OptionError,
    OutputError,
    SlimWhisperError,
)
from slimwhisper.transcribe import SlimWhisper, load_model
from slimwhisper.types import Options, Segment, Transcript

__version__ = version("slimwhisper")

__all__ = [
    "AudioError",
    "CacheError",
    "CheckpointError",
    "OptionError",
    "Options",
    "OutputError",
    "Segment",
    "SlimWhisper",
    "SlimWhisperError",
    "Transcript",
    "available_models",
    "load_audio",
    "load_model",
]
