"""faster-whisper's module of this name."""

from typing import Any

from slimwhisper.faster_whisper.batched import BatchedInferencePipeline
from slimwhisper.faster_whisper.model import WhisperModel
from slimwhisper.faster_whisper.types import (
    Segment,
    TranscriptionInfo,
    TranscriptionOptions,
    VadOptions,
    Word,
)

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "get_ctranslate2_storage",
]


def get_ctranslate2_storage(segment: Any) -> Any:
    """The array itself: `WhisperModel.model.encode` takes it."""
    return segment
