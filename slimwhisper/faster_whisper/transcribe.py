"""The module of this name of faster-whisper."""

from collections.abc import Sequence
from typing import Any

from slimwhisper.faster_whisper.batched import BatchedInferencePipeline
from slimwhisper.faster_whisper.model import WhisperModel
from slimwhisper.faster_whisper.tokenizer import Tokenizer
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
    "get_suppressed_tokens",
]


def get_ctranslate2_storage(segment: Any) -> Any:
    """Return the array itself, which `WhisperModel.model.encode` takes.

    Args:
        segment: The array.

    Returns:
        The array.
    """
    return segment


def get_suppressed_tokens(tokenizer: Tokenizer, suppress_tokens: Sequence[int]) -> tuple[int, ...]:
    """List the tokens that are never sampled.

    Args:
        tokenizer: The tokenizer.
        suppress_tokens: The tokens. -1 stands for symbols that are not spoken.

    Returns:
        These tokens and the special tokens that stand before a text, sorted.
    """
    symbols = tokenizer.non_speech_tokens if -1 in suppress_tokens else ()
    before = (
        *(tokenizer.transcribe, tokenizer.translate, tokenizer.sot, tokenizer.sot_prev),
        *(tokenizer.sot_lm, tokenizer.no_speech),
    )
    chosen = {*(token for token in suppress_tokens if token >= 0), *symbols, *before}
    return tuple(sorted(token for token in chosen if token is not None))
