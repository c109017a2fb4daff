"""The options of words' times, and the passes that find them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from slimwhisper.option_group import OptionGroup, option

if TYPE_CHECKING:  # the command line starts without torch
    from slimwhisper.audio.samples import Samples
    from slimwhisper.longform.passes import Passes

WORD_TIMES = ("whisper", "fine")
words = partial(option, section="words")


@dataclass(frozen=True, kw_only=True)
class WordOptions(OptionGroup):
    """The times of words.

    `word_times` is an option of slimwhisper, all others are those of `whisper`.

    Attributes:
        hallucination_silence_threshold: Silence that is longer than this many seconds is skipped
            around text that may be invented. It needs `word_timestamps`. None skips nothing.
        word_timestamps: Whether to find the start and the end of each word. The default is False.
        prepend_punctuations: The punctuation that belongs to the next word.
        append_punctuations: The punctuation that belongs to the word before it.
        word_times: Which times words have: "whisper", those of `whisper`, or "fine", closer to the
            sound, found by attention and loudness. It needs `word_timestamps`. The default is
            "whisper".
    """

    hallucination_silence_threshold: float | None = option(
        None,
        "skip silence longer than this many seconds around text that may be hallucinated; "
        "requires --word_timestamps",
        section="thresholds",
        needs=("word_timestamps",),
    )
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


def add_words(passes: Passes, samples: Samples, options: WordOptions, name: str) -> None:
    """Segments have words, which begin and end where the sound does, if their times are fine."""
    if options.word_timestamps:
        from slimwhisper.word_times.words import time_segments

        passes.words = partial(time_segments, options)
    if options.word_times == "fine":
        from slimwhisper.word_times.fine import with_fine_times

        passes.times.append(with_fine_times)
