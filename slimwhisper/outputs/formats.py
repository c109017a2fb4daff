"""The one table of output formats: Transcript -> txt, vtt, srt, tsv, json, lrc, ass, rttm.

A new format is a row of `FORMATS`: the command, the page, its downloads and the journal all read
the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from slimwhisper.errors import OptionError
from slimwhisper.outputs import plain
from slimwhisper.outputs.ass import write_ass
from slimwhisper.outputs.layout import DIARIZE, Layout
from slimwhisper.outputs.lrc import write_lrc
from slimwhisper.outputs.srt_vtt import write_srt, write_vtt
from slimwhisper.types import Segment, Transcript

Write = Callable[[Transcript, TextIO, Layout], None]


@dataclass(frozen=True, slots=True)
class Format:
    """One row: a format's name, which is also the file suffix, and its writer."""

    name: str
    media_type: str  # over HTTP
    write: Write
    in_all: bool = True  # whether "all" includes it
    speakers: bool = False  # it says who speaks, and nothing else; "all" includes it if asked for


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("txt", "text/plain", plain.write_txt),
        Format("vtt", "text/vtt", write_vtt),
        Format("srt", "application/x-subrip", write_srt),
        Format("tsv", "text/tab-separated-values", plain.write_tsv),
        Format("json", "application/json", plain.write_json),
        Format("lrc", "text/x-lrc", write_lrc, in_all=False),
        Format("ass", "text/x-ssa", write_ass, in_all=False),
        Format("rttm", "text/plain", plain.write_rttm, in_all=False, speakers=True),
    )
}


def formats_of(choice: str, layout: Layout | None = None) -> tuple[str, ...]:
    """The formats that `--output_format` asks for: one, or "all", which are those of `whisper`, and
    RTTM if the layout has `DIARIZE`.
    """
    if choice != "all":
        return (choice,)
    diarized = bool((layout or {}).get(DIARIZE))
    rows = FORMATS.values()
    return tuple(f.name for f in rows if f.in_all or (diarized and f.speakers))


def formats_for(transcript: Transcript) -> list[Format]:
    """The formats that say something about this transcript: RTTM only where it has speakers."""
    known = plain.has_speakers(transcript)
    return [row for row in FORMATS.values() if known or not row.speakers]


def register(row: Format) -> None:
    """Add your own format. Raises ValueError for a name that is taken."""
    if row.name in FORMATS:
        raise ValueError(f"there is an output format {row.name!r}; give yours another name")
    FORMATS[row.name] = row


def write_transcript(
    transcript: Transcript, format: str, file: TextIO, layout: Layout | None = None
) -> None:
    """Write one of `FORMATS` to an open text file; `layout` has keys of `layout`.

    Raises OptionError for an unknown format.
    """
    if format not in FORMATS:
        raise OptionError(f"output format {format!r} is not one of {', '.join(FORMATS)}")
    FORMATS[format].write(transcript, file, layout or {})


def segment_line(segment: Segment) -> str:
    """A segment as `whisper` prints it."""
    from slimwhisper.tokens.whisper_package.utils import format_timestamp

    start, end = format_timestamp(segment.start), format_timestamp(segment.end)
    return f"[{start} --> {end}] {segment.text}"
