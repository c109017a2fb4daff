"""The options of writers, by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from slimwhisper.errors import OptionError
from slimwhisper.option_group import OptionGroup, option

Layout = Mapping[str, Any]
words = partial(option, section="words")


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(OptionGroup):
    """Highlighted words and the line breaks of subtitles, as the whisper command has them."""

    highlight_words: bool = words(
        False, "underline each word as it is spoken, in srt and vtt; colour it, in ass"
    )
    max_line_width: int | None = words(None, "maximum number of characters per line")
    max_line_count: int | None = words(None, "maximum number of lines per subtitle")
    max_words_per_line: int | None = words(
        None, "maximum number of words per line; ignored with --max_line_width"
    )


LAYOUT = [row.name for row in fields(LayoutOptions)]
HIGHLIGHT = "highlight_words"
DIARIZE = "diarize"
SPEAKERS = (DIARIZE, "channels")  # with either, speakers are requested
SENTENCES = "sentences"  # segments are sentences: at most two lines each
RECORDING = "recording"  # the recording's name, without suffix


def check_layout(layout: Layout, word_timestamps: bool) -> list[str]:
    """Warnings about options without effect. Raises OptionError for one that needs word timestamps,
    or that contradicts another.
    """
    for name in LAYOUT:
        if layout.get(name) and not word_timestamps:
            raise OptionError(f"--{name} requires --word_timestamps True")
        value = layout.get(name)
        if value is None or name == HIGHLIGHT:
            continue
        if layout.get(SENTENCES):
            raise OptionError(
                f"--{name}: --sentences breaks lines at 42 characters; leave out one of the two"
            )
        if value < 1:
            raise OptionError(f"--{name} {value} is not a positive number")
    warnings = []
    if layout.get("max_line_count") and not layout.get("max_line_width"):
        warnings.append("--max_line_count has no effect without --max_line_width")
    if layout.get("max_words_per_line") and layout.get("max_line_width"):
        warnings.append("--max_words_per_line has no effect with --max_line_width")
    return warnings
