"""The output formats of transcripts: txt, vtt, srt, tsv, json, lrc, ass and rttm.

A new format is a row of `FORMATS`, which the command, the page, its downloads and the journal read.
openai-whisper lays out the cues of each run of one speaker; those of sentences are laid out by
`slimwhisper.subtitles`. WebVTT is described at https://www.w3.org/TR/webvtt1/, and SubStation
Alpha, with karaoke by word, at http://www.tcax.org/docs/ass-specs.htm. LRC is the format of lyrics,
with the times of words if they are known ("enhanced LRC").
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from io import StringIO
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

from slimwhisper.disk import atomic_write
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.option_group import OptionGroup, option
from slimwhisper.subtitles.cues import Cue, label, shown, to_cues
from slimwhisper.text import error_line, format_timestamp, not_one_of
from slimwhisper.types import Segment, Transcript, Word

logger = logging.getLogger("slimwhisper")

Layout = Mapping[str, Any]
words = partial(option, section="words")


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(OptionGroup):
    """The layout of subtitles, as the `whisper` command has it.

    All of them need `word_timestamps`.

    Attributes:
        highlight_words: Whether to underline each word as it is spoken, in srt and vtt, or to
            colour it, in ass. The default is False.
        max_line_width: The most characters of a line. None means no limit.
        max_line_count: The most lines of a subtitle. It has an effect only with `max_line_width`.
            None means no limit.
        max_words_per_line: The most words of a line. It has no effect with `max_line_width`. None
            means no limit.
    """

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


def check_layout(layout: Layout, word_timestamps: bool, sign: str = "") -> list[str]:
    """Warnings about options without effect. Raises OptionError for one that needs word timestamps,
    or that contradicts another. sign: before the options' names, such as "--".
    """
    for name in LAYOUT:
        if layout.get(name) and not word_timestamps:
            raise OptionError(f"{sign}{name} requires {sign}word_timestamps True")
        value = layout.get(name)
        if value is None or name == HIGHLIGHT:
            continue
        if layout.get(SENTENCES):
            rule = f"{sign}sentences breaks lines at 42 characters; leave out one of the two"
            raise OptionError(f"{sign}{name}: {rule}")
        if value < 1:
            raise OptionError(f"{sign}{name} {value} is not a positive number")
    wide = bool(layout.get("max_line_width"))
    name, how = ("max_words_per_line", "with") if wide else ("max_line_count", "without")
    return [f"{sign}{name} has no effect {how} {sign}max_line_width"] if layout.get(name) else []


TURN_GAP = 0.5  # seconds between two turns of a speaker; nearer segments are one turn


def has_speakers(transcript: Transcript) -> bool:
    return any(segment.speaker is not None for segment in transcript.segments)


def runs(transcript: Transcript) -> Iterator[tuple[str | None, list[Segment]]]:
    """Runs of segments of one speaker; if there are speakers, without segments without text."""
    speakers = has_speakers(transcript)
    segments = (s for s in transcript.segments if s.text.strip() or not speakers)
    for speaker, run in groupby(segments, key=lambda segment: segment.speaker):
        yield speaker, list(run)


def write_txt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """A line for each segment; "NAME: " where the speaker changes."""
    for speaker, run in runs(transcript):
        for i, segment in enumerate(run):
            print("" if i else label(speaker), segment.text.strip(), sep="", file=file)


def write_tsv(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Milliseconds and text; if there are speakers, their names, empty for unknown ones."""
    speakers = has_speakers(transcript)
    print("start", "end", "text", *["speaker"] * speakers, sep="\t", file=file)
    for s in shown(transcript).segments:
        times = (round(1000 * s.start), round(1000 * s.end))
        names = [" ".join((s.speaker or "").split())] * speakers
        print(*times, re.sub(r"[\t\r\n]", " ", s.text.strip()), *names, sep="\t", file=file)


def write_json(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """The result of `transcribe`."""
    json.dump(transcript, file)


def write_rttm(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """NIST's RTTM: a line for each turn; empty without speakers. Spaces in names become "_"."""
    recording = rttm_field(str(layout.get(RECORDING) or "")) or "recording"
    turns: list[tuple[float, float, str]] = []
    for segment in transcript.segments:
        parts: Sequence[Any] = segment.words or [segment]  # a sentence has time to be read, too
        start, end, speaker = parts[0].start, parts[-1].end, segment.speaker
        if speaker is None or end <= start:
            continue
        if turns and turns[-1][2] == speaker and start - turns[-1][1] < TURN_GAP:
            start, last, _ = turns.pop()
            end = max(last, end)
        turns.append((start, end, speaker))
    for start, end, speaker in turns:
        times = f"{start:.3f} {end - start:.3f}"
        print(f"SPEAKER {recording} 1 {times} <NA> <NA> {rttm_field(speaker)} <NA> <NA>", file=file)


def rttm_field(name: str) -> str:
    """A name as a line of RTTM has it, where spaces divide the fields."""
    return "_".join(name.split())


def write_srt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write SubRip: "NAME: " where the speaker changes, or always if words are highlighted."""
    for number, (speaker, named, times, text) in enumerate(cues(transcript, layout, vtt=False), 1):
        print(f"{number}\n{times}\n{label(speaker) if named else ''}{text}\n", file=file)


def write_vtt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write WebVTT: speakers are voices."""
    print("WEBVTT\n", file=file)
    for speaker, _, times, text in cues(transcript, layout, vtt=True):
        name = " ".join((speaker or "").split())
        voice = f"<v {_escaped(name)}>" if name else ""
        print(f"{times}\n{voice}{text}\n", file=file)


def cues(
    transcript: Transcript, layout: Layout, *, vtt: bool
) -> Iterator[tuple[str | None, bool, str, str]]:
    """Each cue's speaker, whether to print the name, its times and its text. With `HIGHLIGHT`,
    there is one for each word, which is underlined.
    """
    mark, write = (".", _escaped) if vtt else (",", str)
    if layout.get(SENTENCES):
        for cue in to_cues(transcript, broken=True, labelled=not vtt):
            texts = [write(word.word) for word in cue.plain]
            timed = cue.words if layout.get(HIGHLIGHT) and cue.timed else []
            for start, end, text in _in_turn(cue.start, cue.end, texts, timed):
                yield cue.speaker, bool(cue.label), cue_times(start, end, mark), _plain(text)
        return
    for speaker, run in runs(shown(transcript)):
        for i, (start, end, text) in enumerate(_whisper_cues(run, layout)):
            times = cue_times(start, end, mark, hours=not vtt)
            yield speaker, i == 0 or bool(layout.get(HIGHLIGHT)), times, text


def cue_times(start: float, end: float, mark: str, hours: bool = True) -> str:
    """1.5, 2 -> 00:00:01.500 --> 00:00:02.000; without `hours`, only from an hour on."""
    return " --> ".join(format_timestamp(seconds, hours, mark) for seconds in (start, end))


def _whisper_cues(
    segments: Sequence[Segment], layout: Layout
) -> Iterator[tuple[float, float, str]]:
    """Start, end and text of each cue, laid out as openai-whisper does."""
    if not segments or segments[0].words is None:
        yield from ((s.start, s.end, _plain(s.text.strip())) for s in segments)
        return
    for cue in _subtitles(segments, layout):
        words, texts = zip(*cue, strict=True)
        timed = words if layout.get(HIGHLIGHT) else ()
        yield from _in_turn(words[0].start, words[-1].end, texts, timed)


def _subtitles(segments: Sequence[Segment], layout: Layout) -> Iterator[list[tuple[Word, str]]]:
    """The words of each cue, as they are written: a line break comes before the first of a line.

    With both a width and a count of lines, cues go on over the ends of segments, but not over a
    pause of 3 s.
    """
    width, count = layout.get("max_line_width"), layout.get("max_line_count")
    by_segment, most = width is None or count is None, layout.get("max_words_per_line") or 1000
    cue: list[tuple[Word, str]] = []
    length, lines, last = 0, 1, None
    for segment in segments:
        for number, word in enumerate(segment.words or ()):
            last = word.start if last is None else last
            pause = not by_segment and word.start - last > 3
            ends = by_segment and bool(cue) and number % most == 0
            fits = length > 0 and length + len(word.word) <= (width or 1000)
            last = word.start
            if fits and not pause and not ends:
                cue.append((word, word.word))
                length += len(word.word)
                continue
            written = word.word.strip()
            if ends or (cue and count is not None and (pause or lines >= count)):
                yield cue
                cue, lines = [], 1
            elif length > 0:
                lines, written = lines + 1, f"\n{written}"
            cue.append((word, written))
            length = len(written.strip())
    if cue:
        yield cue


def _plain(text: str) -> str:
    return text.replace("-->", "->")


_escaped = partial(escape, quote=False)


def _in_turn(
    start: float, end: float, texts: Sequence[str], words: Sequence[Word]
) -> Iterator[tuple[float, float, str]]:
    """A cue's text, once for each of the words with times, which is underlined without the space or
    line break before it; and once where there is none.
    """
    text, last = "".join(texts), start
    for number, word in enumerate(words):
        if round(1000 * last) != round(1000 * word.start):
            yield last, word.start, text
        if word.end > word.start:
            tagged = re.sub(r"^(\s*)(.*)$", r"\1<u>\2</u>", texts[number])
            yield word.start, word.end, "".join([*texts[:number], tagged, *texts[number + 1 :]])
        last = word.end
    if end > last or not words:
        yield last, end, text


# White text with a dark outline at the bottom of a picture of 1920 x 1080, of which 42 characters
# take two thirds. In karaoke, words are grey until they are spoken. Colours are &HAABBGGRR.
_HEADER = """\
[Script Info]
; Written by slimwhisper
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080
WrapStyle: 0
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, \
Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,64,&H00FFFFFF,&H00A0A0A0,&H00101010,&H80000000,0,0,0,0,100,100,0,0,1,3,1,2,\
80,80,60,{encoding}

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
# Windows' charsets, which tell renderers that lines run from right to left
_HEBREW, _ARABIC, _DEFAULT = 177, 178, 1
_ENCODINGS = {"he": _HEBREW, "yi": _HEBREW} | dict.fromkeys(("ar", "fa", "ps", "sd", "ur"), _ARABIC)
# a word joiner is invisible; a backslash before it begins no tag
_ASS = str.maketrans({"\\": "\\\u2060", "{": "\\{", "}": "\\}", "\n": "\\N"})


def write_ass(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write a transcript: sentences in lines of 42 columns, else the player breaks lines; with
    `HIGHLIGHT`, words with known times change colour as they are spoken.
    """
    file.write(_HEADER.format(encoding=_ENCODINGS.get(transcript.text_language, _DEFAULT)))
    for cue in to_cues(transcript, broken=bool(layout.get(SENTENCES))):
        name = " ".join((cue.speaker or "").replace(",", " ").split())
        text = _karaoke(cue) if layout.get(HIGHLIGHT) and cue.timed else cue.text.translate(_ASS)
        start, end = _hundredths(cue.start), _hundredths(cue.end)
        print(f"Dialogue: 0,{_clock(start)},{_clock(end)},Default,{name},0,0,0,,{text}", file=file)


def _karaoke(cue: Cue) -> str:
    """Each word, and each silence between words, with its duration in 1/100 s."""
    parts: list[str] = []
    now = _hundredths(cue.start)
    for word in cue.words:
        text = word.word.removeprefix("\n")
        start, end = _hundredths(word.start), _hundredths(word.end)
        line = "" if text == word.word else "\\N"
        silence = f"{{\\k{start - now}}}" if start > now else ""
        parts.append(f"{line}{silence}{{\\k{end - start}}}{text.translate(_ASS)}")
        now = end
    return "".join(parts)


def _hundredths(seconds: float) -> int:
    return round(seconds * 100)


def _clock(hundredths: int) -> str:
    """150 -> 0:00:01.50."""
    return f"{hundredths // 360_000}:{_minutes(hundredths % 360_000 / 100)}"


_SILENCE = 1.5  # seconds after which a line is cleared
_TAG = re.compile(r"[\[<](?=\d+:\d)")  # text that would be read as a time


def write_lrc(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write a line for each segment, `[mm:ss.xx]text`; minutes do not end at 60 or 99."""
    end = None
    print(f"[la:{transcript.text_language}]\n[re:slimwhisper]", file=file)
    for cue in to_cues(transcript, broken=False, labelled=True):
        if end is not None and cue.start - end >= _SILENCE:
            print(f"[{_minutes(end)}]", file=file)
        words = [_TAG.sub("(", word.word) for word in cue.words]
        text = "".join(words)
        if cue.timed:
            times = [f"<{_minutes(word.start)}>" for word in cue.words]
            text = "".join(map("".join, zip(times, words, strict=True))) + f"<{_minutes(cue.end)}>"
        print(f"[{_minutes(cue.start)}]{_TAG.sub('(', cue.label)}{text}", file=file)
        end = max(end or 0.0, cue.end)  # people may speak at the same time
    if end is not None:
        print(f"[{_minutes(end)}]", file=file)


def _minutes(seconds: float) -> str:
    whole, hundredths = divmod(round(seconds * 100), 100)
    return f"{whole // 60:02}:{whole % 60:02}.{hundredths:02}"


Write = Callable[[Transcript, TextIO, Layout], None]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """An output format of transcripts, which is one row of `FORMATS`.

    Attributes:
        name: The name of the format, which is also the suffix of its files.
        media_type: The media type over HTTP.
        write: The function that writes a transcript to an open text file, in a layout.
        in_all: Whether the format "all" includes it. The default is True.
        speakers: Whether it has only the speakers. "all" includes it if speakers are requested. The
            default is False.
    """

    name: str
    media_type: str
    write: Write
    in_all: bool = True
    speakers: bool = False

    def render(self, transcript: Transcript, layout: Layout) -> bytes:
        """Write a transcript in this format.

        Args:
            transcript: The transcript.
            layout: The fields of `LayoutOptions`, by name.

        Returns:
            The bytes of the file.
        """
        file = StringIO()
        self.write(transcript, file, layout)
        return file.getvalue().encode()


FORMATS: dict[str, OutputFormat] = {
    row.name: row
    for row in (
        OutputFormat("txt", "text/plain", write_txt),
        OutputFormat("vtt", "text/vtt", write_vtt),
        OutputFormat("srt", "application/x-subrip", write_srt),
        OutputFormat("tsv", "text/tab-separated-values", write_tsv),
        OutputFormat("json", "application/json", write_json),
        OutputFormat("lrc", "text/x-lrc", write_lrc, in_all=False),
        OutputFormat("ass", "text/x-ssa", write_ass, in_all=False),
        OutputFormat("rttm", "text/plain", write_rttm, in_all=False, speakers=True),
    )
}


def formats_of(choice: str, layout: Layout | None = None) -> tuple[str, ...]:
    """The formats of `--output_format`: one, or for "all" those of `whisper`, and RTTM if the
    layout has one of `SPEAKERS`. Raises OptionError for RTTM without them.
    """
    speakers = any((layout or {}).get(name) for name in SPEAKERS)
    if choice == "all":
        return tuple(f.name for f in FORMATS.values() if f.in_all or (speakers and f.speakers))
    if FORMATS[choice].speakers and not speakers:
        what = "lists speakers; it is for transcribe --diarize or --channels"
        raise OptionError(f"-f {choice} {what}")
    return (choice,)


def formats_for(speakers: bool) -> dict[str, OutputFormat]:
    """The formats for transcripts, by name: RTTM only for those with speakers."""
    return {name: row for name, row in FORMATS.items() if speakers or not row.speakers}


def save_transcript(transcript: Transcript, path: str | PathLike[str], **layout: Any) -> None:
    """Write a transcript to a file, in the format that the file's suffix names.

    An existing file is replaced, as a whole or not at all.

    Args:
        transcript: The transcript, as it was heard.
        path: The file, such as "talk.srt". Its folder has to exist.
        **layout: The fields of `LayoutOptions`, which need word timestamps, and `sentences=True`
            for a transcript of sentences.

    Raises:
        OptionError: When it is no `Transcript`, no format has the path's suffix, or the layout does
            not fit.
        OutputError: When the file cannot be written.
    """
    if not isinstance(transcript, Transcript):
        raise OptionError(f"transcript is {type(transcript)}; give what transcribe returns")
    file = Path(path)
    row = FORMATS.get(file.suffix.lower().removeprefix("."))
    if row is None:
        raise OptionError(f"{file}: its name has to end in one of .{', .'.join(FORMATS)}")
    unknown = [name for name in layout if name not in (*LAYOUT, SENTENCES)]
    if unknown:
        raise OptionError(not_one_of(unknown[0], (*LAYOUT, SENTENCES)))
    for line in check_layout(layout, any(segment.words for segment in transcript.segments)):
        logger.warning("%s", line)
    try:
        with atomic_write(file) as target:
            target.write(row.render(transcript, layout))
    except OSError as error:
        raise OutputError(f"{file}: cannot be written ({error_line(error)})") from error


def register(row: OutputFormat) -> None:
    """Add an output format, which users can then choose by its name.

    Args:
        row: The format.

    Raises:
        ValueError: When there is a format with this name already.
    """
    if row.name in FORMATS:
        raise ValueError(f"there is already an output format {row.name!r}; choose another name")
    FORMATS[row.name] = row


def segment_line(segment: Segment) -> str:
    """A segment as `whisper` prints it, with its speaker if that is known."""
    times = cue_times(segment.start, segment.end, ".", hours=False)
    name = label(segment.speaker).rstrip()  # the text begins with a space
    return f"[{times}] {name}{segment.text}"
