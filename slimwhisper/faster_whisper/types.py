"""faster-whisper's dataclasses: its names, fields, order and defaults."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Word:
    """One word of a segment; times in seconds."""

    start: float
    end: float
    word: str  # with its leading space
    probability: float

    def _asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Segment:
    """A stretch of speech; times in seconds."""

    id: int  # from 1
    seek: int  # mel frames of 10 ms: where its window starts
    start: float
    end: float
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None  # None: not requested
    temperature: float | None

    def _asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class VadOptions:
    """What counts as speech; see docs/guides/faster-whisper.md."""

    threshold: float = 0.5
    neg_threshold: float | None = None  # None: 0.15 less than `threshold`
    min_speech_duration_ms: int = 0
    max_speech_duration_s: float = float("inf")
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400


@dataclass
class TranscriptionOptions:
    """The options of a transcription, as they were understood."""

    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    log_prob_threshold: float | None
    no_speech_threshold: float | None
    compression_ratio_threshold: float | None
    condition_on_previous_text: bool
    prompt_reset_on_temperature: float
    temperatures: list[float]
    initial_prompt: str | Iterable[int] | None
    prefix: str | None
    suppress_blank: bool
    suppress_tokens: list[int] | None
    without_timestamps: bool
    max_initial_timestamp: float
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    multilingual: bool
    max_new_tokens: int | None
    clip_timestamps: str | list[float]
    hallucination_silence_threshold: float | None
    hotwords: str | None


@dataclass
class TranscriptionInfo:
    """What is known of a recording before its text; durations in seconds."""

    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list[tuple[str, float]] | None  # most likely first; None: not detected
    transcription_options: TranscriptionOptions
    vad_options: VadOptions | None
