"""The one table of output formats: Transcript -> txt, vtt, srt, tsv, json, lrc, ass, rttm.

openai-whisper's own writers do the work of its formats, on a file that we open. This package's
write the others, srt and vtt of sentences, and whisper's formats where there are speakers. A new
format is a row of `FORMATS`: the command, the page, its downloads and the journal all read the
table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from slimwhisper.errors import OptionError
from slimwhisper.outputs import speakers
from slimwhisper.outputs.ass import write_ass
from slimwhisper.outputs.layout import DIARIZE, SENTENCES, Layout
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


def _by_whisper(
    name: str, with_speakers: Write | None = None, of_sentences: Write | None = None
) -> Write:
    """whisper's writer, and ours for transcripts that have speakers, or are sentences."""

    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        if of_sentences is not None and layout.get(SENTENCES):
            of_sentences(transcript, file, layout)
        elif with_speakers is not None and speakers.has_speakers(transcript):
            with_speakers(transcript, file, layout)
        else:
            from slimwhisper.tokens.whisper_package import utils

            writer = getattr(utils, name)(output_dir="")
            writer.write_result(transcript.as_dict(), file=file, options=dict(layout))

    return write


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("txt", "text/plain", _by_whisper("WriteTXT", speakers.write_txt)),
        Format("vtt", "text/vtt", _by_whisper("WriteVTT", speakers.write_vtt, write_vtt)),
        Format(
            "srt", "application/x-subrip", _by_whisper("WriteSRT", speakers.write_srt, write_srt)
        ),
        Format("tsv", "text/tab-separated-values", _by_whisper("WriteTSV", speakers.write_tsv)),
        Format("json", "application/json", _by_whisper("WriteJSON")),
        Format("lrc", "text/x-lrc", write_lrc, in_all=False),
        Format("ass", "text/x-ssa", write_ass, in_all=False),
        Format("rttm", "text/plain", speakers.write_rttm, in_all=False, speakers=True),
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
    known = speakers.has_speakers(transcript)
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
