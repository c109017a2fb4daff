"""The options of the core.

They say how windows are searched, when a text fails, and which clips there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from slimwhisper.audio.options import SpeechOptions
from slimwhisper.errors import OptionError
from slimwhisper.option_group import AUDIO_WINDOWS, ModelFacts, OptionGroup, option
from slimwhisper.tokens.options import LanguageOptions, PromptOptions, prefix_tokens, token_entries

ON_FAILURE = ("last", "best")
decoding = partial(option, section="decoding")
thresholds = partial(option, section="thresholds")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OptionGroup):
    """How the text of a window is searched.

    `repetition_penalty` and `no_repeat_ngram_size` are options of faster-whisper, `seed` and
    `token_logprobs` of slimwhisper, all others are those of `whisper`.

    Attributes:
        temperature: The temperature to sample at, from 0 to 10, or several to try in turn until a
            window's text passes the thresholds. 0 means greedy or beam search. The default is (0.0,
            0.2, 0.4, 0.6, 0.8, 1.0).
        best_of: How many texts of a window are sampled at temperatures above 0, from 1 to 100. None
            means 1.
        beam_size: How many beams are searched at temperature 0, from 1 to 100. None means greedy
            search, which is several times faster.
        patience: A search ends after `beam_size` times this many finished texts, 1 to 10,000 in
            all. It needs `beam_size`. None means 1.0.
        length_penalty: The alpha of the length penalty of Google NMT, from 0 to 1. None ranks texts
            by their mean log-probability.
        sample_len: The most tokens of a window. None means half of the text context, 224.
        repetition_penalty: The logits of tokens that a window's text has already are divided by
            this, or multiplied if they are below 0. It is between 0 and 100. The default, 1.0,
            changes nothing.
        no_repeat_ngram_size: The tokens in a row that a window's text may not repeat. The default,
            0, means no limit.
        seed: The seed of the random numbers for sampling, from 0. Each file has random numbers of
            its own. The default is 0.
        without_timestamps: Whether to decode text without timestamps. The default is False.
        max_initial_timestamp: The latest possible first timestamp of a window in seconds, up to
            10,000. None means no limit. The default is 1.0.
        suppress_blank: Whether a text must not start with a blank. The default is True.
        suppress_tokens: The ids of the tokens that are never sampled, or the same separated by
            commas. -1 stands for symbols that are not spoken, and "numerals" for all tokens with a
            digit. None and "" allow all tokens. The default is "-1".
        token_logprobs: Whether segments have the log-probability of every token. The default is
            False.
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
        1.0, "latest possible first timestamp, in seconds", low=0, high=10_000
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
        """Decode without timestamps if the model's vocabulary has none.

        Args:
            values: The options of all groups that were given, by name.
            defaults: The model's own values for the others. They are changed in place.
            model: The model that they are for.
        """
        if not model.vocabulary.timestamps:
            defaults["without_timestamps"] = True

    def check(self, model: ModelFacts) -> None:
        """Check that a search with these options ends with a text, of tokens that there are.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When it does not.
        """
        valid = [isinstance(t, Real) and 0 <= t <= 10 for t in self.temperatures]
        if not valid or not all(valid):
            rule = "give one number, or several to try in turn, from 0 (greedy) to 10"
            raise OptionError(f"temperature {self.temperature!r}: {rule}")
        token_entries(model.vocabulary, self.suppress_tokens)
        texts = (self.beam_size or 1) * (1.0 if self.patience is None else self.patience)
        if not 0.5 < texts <= 10_000:  # their memory is allocated before
            raise OptionError(f"patience {self.patience!r}: give 1.0, or up to 10,000 texts in all")
        if not self.without_timestamps and not model.vocabulary.timestamps:
            reason = "its vocabulary has no timestamps; leave without_timestamps out"
            raise OptionError(f"{model.name}: {reason}")
        limit = model.dims.n_text_ctx // 2
        if self.sample_len is not None and not 1 <= self.sample_len <= limit:
            raise OptionError(f"sample_len {self.sample_len!r} is not between 1 and {limit}")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures, one or several, in the order in which they are tried."""
        temperature = self.temperature
        return tuple(temperature) if isinstance(temperature, Sequence) else (temperature,)


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions(OptionGroup):
    """When the text of a window fails, and what happens then.

    `on_failure` is an option of slimwhisper, all others are those of `whisper`. A text that fails
    is decoded again at the next temperature.

    Attributes:
        compression_ratio_threshold: A text fails if it compresses better than this, which means
            that it repeats itself. None means no such check. The default is 2.4.
        logprob_threshold: A text fails if its mean log-probability is lower than this. None means
            no such check. The default is -1.0.
        no_speech_threshold: A window is silent if its probability of no speech is higher than this
            and its text fails `logprob_threshold`. None means no such check. The default is 0.6.
        on_failure: Which text to keep if all temperatures fail a threshold: "last", as `whisper`
            does, or "best", the most likely one that does not repeat itself. The default is "last".
    """

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

    def check(self, model: ModelFacts) -> None:
        """Check that the model says how probable speech is.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When `no_speech_threshold` is set and the vocabulary has no token for it.
        """
        default = ThresholdOptions().no_speech_threshold
        if model.vocabulary.no_speech is None and self.no_speech_threshold not in (None, default):
            reason = "its vocabulary has no <|nospeech|>; drop no_speech_threshold"
            raise OptionError(f"{model.name}: {reason}")


# the fields of a later base come first
@dataclass(frozen=True, kw_only=True)
class RecordingOptions(
    ThresholdOptions,
    PromptOptions,
    SpeechOptions,
    SearchOptions,
    LanguageOptions,
):
    """All options that the core reads.

    `clip_timestamps` is an option of `whisper`, `audio_window` one of slimwhisper.

    Attributes:
        clip_timestamps: The clips to transcribe, in seconds, as numbers or as a string,
            "start,end,start,end,...". The last end may be left out. The default is "0".
        audio_window: The length of windows: "auto", as long as their audio; "near", with silence up
            to 20 s; or "full", up to 30 s. None means what the model's settings say, or else
            "full". See `load_model`.
    """

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
        """Check that the clips are times, and that the prefix leaves room for a text.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When one of them is wrong.
        """
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
        """The numbers of `clip_timestamps`, in seconds.

        Raises:
            ValueError: When it is a string with something else.
            TypeError: When it has something else than numbers.
        """
        clips = self.clip_timestamps
        parts = [t for t in clips.split(",") if t.strip()] if isinstance(clips, str) else clips
        return [float(t) for t in parts]
