"""Transcript -> txt, srt, vtt, tsv, json: openai-whisper's own writers, on a file of ours."""

from collections.abc import Mapping
from typing import Any, TextIO

from slimwhisper.errors import OptionError
from slimwhisper.types import Segment, Transcript

FORMATS = ("txt", "vtt", "srt", "tsv", "json")
# of subtitles: highlight_words, and how words are broken into lines
LAYOUT = ("highlight_words", "max_line_width", "max_line_count", "max_words_per_line")


def write_transcript(
    transcript: Transcript, form: str, file: TextIO, layout: Mapping[str, Any] | None = None
) -> None:
    """Write one of `FORMATS` to an open text file; `layout` holds some of `LAYOUT`."""
    from whisper import utils

    writers = {
        "txt": utils.WriteTXT,
        "vtt": utils.WriteVTT,
        "srt": utils.WriteSRT,
        "tsv": utils.WriteTSV,
        "json": utils.WriteJSON,
    }
    writer = writers[form](output_dir="")
    writer.write_result(transcript.as_dict(), file=file, options=dict(layout or {}))


def segment_line(segment: Segment) -> str:
    """A segment as `whisper` prints it."""
    from whisper.utils import format_timestamp

    start, end = format_timestamp(segment.start), format_timestamp(segment.end)
    return f"[{start} --> {end}] {segment.text}"


def check_layout(layout: Mapping[str, Any], word_timestamps: bool) -> list[str]:
    """Warnings about options without effect; OptionError for one that needs word timestamps."""
    if not word_timestamps:
        for name in LAYOUT:
            if layout.get(name):
                raise OptionError(f"--{name} requires --word_timestamps True")
    for name in LAYOUT[1:]:
        value = layout.get(name)
        if value is not None and value < 1:
            raise OptionError(f"--{name} {value} is not a positive number")
    warnings = []
    if layout.get("max_line_count") and not layout.get("max_line_width"):
        warnings.append("--max_line_count has no effect without --max_line_width")
    if layout.get("max_words_per_line") and layout.get("max_line_width"):
        warnings.append("--max_words_per_line has no effect with --max_line_width")
    return warnings
