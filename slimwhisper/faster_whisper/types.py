"""The dataclasses of faster-whisper: its names, fields, order and defaults."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass
class Word:
    """One word of a segment, as `faster_whisper.transcribe.Word`.

    Attributes:
        start: When it begins, in seconds.
        end: When it ends, in seconds.
        word: Its text, with its leading space.
        probability: The mean probability of its tokens.
    """

    start: float
    end: float
    word: str
    probability: float

    _asdict = asdict


@dataclass
class Segment:
    """A stretch of speech, as `faster_whisper.transcribe.Segment`.

    Attributes:
        id: The number of the segment, from 1.
        seek: The mel frame of 10 ms at which its window starts.
        start: When it begins, in seconds.
        end: When it ends, in seconds.
        text: Its text.
        tokens: The tokens of its text.
        avg_logprob: The mean log-probability of its window's tokens.
        compression_ratio: The length of its window's text divided by its length after compression.
        no_speech_prob: The probability that its window has no speech.
        words: Its words with their times. None means that they were not requested.
        temperature: The temperature that its window's text was sampled at.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None
    temperature: float | None

    _asdict = asdict


@dataclass
class VadOptions:
    """What counts as speech, as `faster_whisper.vad.VadOptions`.

    docs/guides/faster-whisper.md has what differs.

    Attributes:
        threshold: The lowest probability that counts as speech.
        neg_threshold: The probability below which speech ends. None means 0.15 less than
            `threshold`.
        min_speech_duration_ms: Speech that is shorter than this many milliseconds is dropped.
        max_speech_duration_s: Speech that is longer than this many seconds is cut.
        min_silence_duration_ms: The milliseconds of silence that end speech.
        speech_pad_ms: The milliseconds that are added to speech on both sides.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 0
    max_speech_duration_s: float = float("inf")
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400


@dataclass
class TranscriptionOptions:
    """The options of a transcription, as they were understood.

    This is `faster_whisper.transcribe.TranscriptionOptions`. The fields are the arguments of
    `WhisperModel.transcribe`, except that `temperatures` has all temperatures and `suppress_tokens`
    all suppressed tokens.

    Attributes:
        beam_size: The number of beams.
        best_of: The number of texts that are sampled at temperatures above 0.
        patience: A search ends after `beam_size` times this many finished texts.
        length_penalty: Always 1.
        repetition_penalty: The penalty of tokens that a text has already.
        no_repeat_ngram_size: The tokens in a row that a text may not repeat.
        log_prob_threshold: The mean log-probability below which a text fails.
        no_speech_threshold: The probability of no speech above which a window may be silent.
        compression_ratio_threshold: The compression ratio above which a text fails.
        condition_on_previous_text: Whether each window's text continues the text before it.
        prompt_reset_on_temperature: The temperature above which a text is not in later prompts.
        temperatures: The temperatures, in the order in which they are tried.
        initial_prompt: The text, or its tokens, that the first window's text continues.
        prefix: The text that a window's text begins with.
        suppress_blank: Whether a text must not start with a blank.
        suppress_tokens: The tokens that are never sampled.
        without_timestamps: Whether the text has no timestamps.
        max_initial_timestamp: The latest possible first timestamp in seconds.
        word_timestamps: Whether to find the times of words.
        prepend_punctuations: The punctuation that belongs to the next word.
        append_punctuations: The punctuation that belongs to the word before it.
        multilingual: Whether the language of every window is detected.
        max_new_tokens: The most tokens of a window.
        clip_timestamps: The clips to transcribe, in seconds.
        hallucination_silence_threshold: The seconds of silence that are skipped around text that
            may be invented.
        hotwords: Words to expect.
    """

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
    """What is known of a recording before its text.

    This is `faster_whisper.transcribe.TranscriptionInfo`.

    Attributes:
        language: The code of the language.
        language_probability: The probability of the language. It is 1 if the language was given.
        duration: The length of the recording in seconds.
        duration_after_vad: The length of its speech in seconds.
        all_language_probs: The languages with their probabilities, the most likely first. None
            means that the language was not detected.
        transcription_options: The options, as they were understood.
        vad_options: What counts as speech. None means that all is decoded.
    """

    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list[tuple[str, float]] | None
    transcription_options: TranscriptionOptions
    vad_options: VadOptions | None
