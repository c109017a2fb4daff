"""The options of writers, by key."""

from collections.abc import Mapping
from typing import Any

from slimwhisper.errors import OptionError

Layout = Mapping[str, Any]
HIGHLIGHT = "highlight_words"
# of subtitles: highlighted words, and line breaks
LAYOUT = (HIGHLIGHT, "max_line_width", "max_line_count", "max_words_per_line")
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
