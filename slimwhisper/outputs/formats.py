"""The table of output formats: Transcript -> txt, vtt, srt, tsv, json, lrc, ass, rttm.

A new format is a row of `FORMATS`, which the command, the page, its downloads and the journal read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from slimwhisper.errors import OptionError
from slimwhisper.outputs import writers
from slimwhisper.outputs.layout import SPEAKERS, Layout
from slimwhisper.outputs.writers import write_ass, write_lrc, write_srt, write_vtt
from slimwhisper.subtitles.cues import label
from slimwhisper.text import format_timestamp, not_one_of
from slimwhisper.types import Segment, Transcript

Write = Callable[[Transcript, TextIO, Layout], None]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """One row: a format's name, which is also its file suffix, and its writer."""

    name: str
    media_type: str  # over HTTP
    write: Write
    in_all: bool = True  # whether "all" includes it
    speakers: bool = False  # it has only the speakers; "all" includes it with speakers


FORMATS: dict[str, OutputFormat] = {
    row.name: row
    for row in (
        OutputFormat("txt", "text/plain", writers.write_txt),
        OutputFormat("vtt", "text/vtt", write_vtt),
        OutputFormat("srt", "application/x-subrip", write_srt),
        OutputFormat("tsv", "text/tab-separated-values", writers.write_tsv),
        OutputFormat("json", "application/json", writers.write_json),
        OutputFormat("lrc", "text/x-lrc", write_lrc, in_all=False),
        OutputFormat("ass", "text/x-ssa", write_ass, in_all=False),
        OutputFormat("rttm", "text/plain", writers.write_rttm, in_all=False, speakers=True),
    )
}


def formats_of(choice: str, layout: Layout | None = None) -> tuple[str, ...]:
    """The formats of `--output_format`: one, or for "all" those of `whisper`, and RTTM if the
    layout has one of `SPEAKERS`.
    """
    if choice != "all":
        return (choice,)
    speakers = any((layout or {}).get(name) for name in SPEAKERS)
    rows = FORMATS.values()
    return tuple(f.name for f in rows if f.in_all or (speakers and f.speakers))


def formats_for(transcript: Transcript) -> list[OutputFormat]:
    """The formats for this transcript: RTTM only if it has speakers."""
    speakers = writers.has_speakers(transcript)
    return [row for row in FORMATS.values() if speakers or not row.speakers]


def register(row: OutputFormat) -> None:
    """Add a format. Raises ValueError for a taken name."""
    if row.name in FORMATS:
        raise ValueError(f"there is already an output format {row.name!r}; choose another name")
    FORMATS[row.name] = row


def write_transcript(
    transcript: Transcript, format: str, file: TextIO, layout: Layout | None = None
) -> None:
    """Write one of `FORMATS` to an open text file; `layout` has keys of `layout`.

    Raises OptionError for an unknown format.
    """
    if format not in FORMATS:
        raise OptionError(f"output format {not_one_of(format, FORMATS)}")
    FORMATS[format].write(transcript, file, layout or {})


def segment_line(segment: Segment) -> str:
    """A segment as `whisper` prints it, with its speaker if that is known."""
    start, end = format_timestamp(segment.start), format_timestamp(segment.end)
    name = label(segment.speaker).rstrip()  # the text begins with a space
    return f"[{start} --> {end}] {name}{segment.text}"
