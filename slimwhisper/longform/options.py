"""The options of the core: how windows are searched, when a text fails, times of words, clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from slimwhisper.audio.options import SpeechOptions
from slimwhisper.errors import OptionError
from slimwhisper.option_group import AUDIO_WINDOWS, ModelFacts, OptionGroup, option
from slimwhisper.tokens.options import HotWordOptions, LanguageOptions, PromptOptions

ON_FAILURE = ("last", "best")
WORD_TIMES = ("whisper", "fine")
decoding, words = partial(option, section="decoding"), partial(option, section="words")
thresholds = partial(option, section="thresholds")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OptionGroup):
    """How the text of a window is searched. `repetition_penalty` and `no_repeat_ngram_size` are
    faster-whisper's, `seed` and `token_logprobs` slimwhisper's, all others `whisper`'s.
    """

    # one, or several to try in turn until a window's text passes the thresholds
    temperature: float | tuple[float, ...] = decoding(
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "first temperature to try; 0 means greedy or beam search"
    )
    best_of: int | None = decoding(
        None, "samples per window at temperatures above 0", low=1, high=100
    )
    beam_size: int | None = decoding(
        None,
        "beams at temperature 0; None means greedy search, several times faster",
        low=1,
        high=100,
    )
    patience: float | None = decoding(
        None,
        "stop a search after beam_size times this many finished texts [1.0]",
        needs=("beam_size",),
    )
    length_penalty: float | None = decoding(
        None, "alpha of the Google NMT length penalty [rank by mean log-probability]", low=0, high=1
    )
    sample_len: int | None = decoding(None, "maximum number of tokens per window [224]")
    repetition_penalty: float = decoding(
        1.0,
        "divide the logits of tokens that a window's text has already, or multiply those below 0",
        low=0,
        high=100,
        open=True,
    )
    no_repeat_ngram_size: int = decoding(
        0, "tokens in a row that a window's text may not repeat; 0: no limit", low=0
    )
    seed: int = decoding(0, "random seed for sampling", low=0)  # each file has its own
    without_timestamps: bool = decoding(False, "decode text without timestamps")
    max_initial_timestamp: float | None = decoding(
        1.0, "latest possible first timestamp, in seconds"
    )
    suppress_blank: bool = decoding(True, "do not start with a blank")
    suppress_tokens: str | tuple[int | str, ...] | None = decoding(
        "-1",
        "comma-separated token ids; -1 means symbols that are not spoken, and numerals all tokens "
        "with a digit",
    )
    token_logprobs: bool = decoding(False, "write the log-probability of every token, in json")

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """A model whose vocabulary has no timestamps decodes without."""
        if not model.vocabulary.timestamps:
            defaults["without_timestamps"] = True

    def check(self, model: ModelFacts) -> None:
        """Whether a search with these ends with a text."""
        valid = [isinstance(t, Real) and 0 <= t <= 10 for t in self.temperatures]
        if not valid or not all(valid):
            rule = "give one number, or several to try in turn, from 0 (greedy) to 10"
            raise OptionError(f"temperature {self.temperature!r}: {rule}")
        if self.patience is not None and round((self.beam_size or 1) * self.patience) < 1:
            raise OptionError(f"patience {self.patience!r} ends the search at once; give 1.0")
        if not self.without_timestamps and not model.vocabulary.timestamps:
            reason = "its vocabulary has no timestamps; drop without_timestamps"
            raise OptionError(f"{model.name}: {reason}")
        limit = model.dims.n_text_ctx // 2
        if self.sample_len is not None and not 1 <= self.sample_len <= limit:
            raise OptionError(f"sample_len {self.sample_len!r} is not between 1 and {limit}")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """`temperature`, one or several, in the order in which they are tried."""
        temperature = self.temperature
        return tuple(temperature) if isinstance(temperature, Sequence) else (temperature,)


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions(OptionGroup):
    """When a text fails, and what then; `whisper`'s, but for `on_failure`."""

    compression_ratio_threshold: float | None = thresholds(
        2.4, "fall back if the text compresses better than this, which means it repeats itself"
    )
    logprob_threshold: float | None = thresholds(
        -1.0, "fall back if the average log-probability is lower"
    )
    no_speech_threshold: float | None = thresholds(
        0.6,
        "treat a window as silent if its no-speech probability is higher "
        "and it fails --logprob_threshold",
    )
    on_failure: str = thresholds(
        "last",
        "which text to keep if all temperatures fail a threshold: the last, as whisper does, "
        "or the most likely one that does not repeat itself (best)",
        choices=ON_FAILURE,
    )
    hallucination_silence_threshold: float | None = thresholds(
        None,
        "skip silence longer than this many seconds around text that may be hallucinated; "
        "requires --word_timestamps",
        needs=("word_timestamps",),
    )

    def check(self, model: ModelFacts) -> None:
        """Whether the model says how probable speech is."""
        default = ThresholdOptions().no_speech_threshold
        if model.vocabulary.no_speech is None and self.no_speech_threshold not in (None, default):
            reason = "its vocabulary has no <|nospeech|>; drop no_speech_threshold"
            raise OptionError(f"{model.name}: {reason}")


@dataclass(frozen=True, kw_only=True)
class WordOptions(OptionGroup):
    """Times of words; `whisper`'s, but for `word_times`."""

    word_timestamps: bool = words(False, "find the start and end of each word")
    prepend_punctuations: str = words("\"'“¿([{-", "punctuation to attach to the next word")
    append_punctuations: str = words(
        "\"'.。,，!！?？:：”)]}、", "punctuation to attach to the previous word"
    )
    word_times: str = words(
        "whisper",
        "times of words: whisper's, or fine: closer to the sound, by attention and loudness",
        choices=WORD_TIMES,
        needs=("word_timestamps",),
    )


# the fields of a later base come first
@dataclass(frozen=True, kw_only=True)
class RecordingOptions(
    WordOptions,
    ThresholdOptions,
    HotWordOptions,
    PromptOptions,
    SpeechOptions,
    SearchOptions,
    LanguageOptions,
):
    """All that the core reads."""

    clip_timestamps: str | tuple[float, ...] = decoding(
        "0", "clips to transcribe, in seconds: start,end,start,end,...; the last end is optional"
    )
    # the flag is among the model's, as `load_model` has the argument, too
    audio_window: str | None = option(
        None,
        "windows as long as their audio (auto), with silence up to 20 s (near) or 30 (full, None)",
        choices=AUDIO_WINDOWS,
    )

    def check(self, model: ModelFacts) -> None:
        """Whether the clips are times, and the prefix leaves room for a text."""
        from slimwhisper.tokens.texts import prefix_tokens

        try:
            seconds = self.clip_seconds
        except (TypeError, ValueError):
            seconds = [-1.0]
        if any(not 0 <= t < float("inf") for t in seconds):
            rule = "give seconds, start,end,start,end,... such as '0,12.5,60'"
            raise OptionError(f"clip_timestamps {self.clip_timestamps!r}: {rule}")
        prefix_tokens(model.vocabulary.tokenizer(), model.dims, self.prefix, self.sample_len)

    @property
    def clip_seconds(self) -> list[float]:
        """The numbers of `clip_timestamps`. Raises ValueError or TypeError for others."""
        clips = self.clip_timestamps
        parts = [t for t in clips.split(",") if t.strip()] if isinstance(clips, str) else clips
        return [float(t) for t in parts]
