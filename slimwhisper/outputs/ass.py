"""Advanced SubStation Alpha, with karaoke by word: http://www.tcax.org/docs/ass-specs.htm."""

from typing import TextIO

from slimwhisper.outputs.layout import HIGHLIGHT, SENTENCES, Layout
from slimwhisper.subtitles.cues import Cue, to_cues
from slimwhisper.types import Transcript

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
_WORD_JOINER = "\u2060"  # invisible; a backslash before it begins no tag


def write_ass(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write a transcript: sentences in lines of 42 columns, else the player breaks lines; with
    `HIGHLIGHT`, words with known times change colour as they are spoken.
    """
    file.write(_HEADER.format(encoding=_ENCODINGS.get(transcript.language, _DEFAULT)))
    for cue in to_cues(transcript, broken=bool(layout.get(SENTENCES))):
        name = " ".join((cue.speaker or "").replace(",", " ").split())
        text = _karaoke(cue) if layout.get(HIGHLIGHT) and cue.timed else _escape(cue.text)
        start, end = _hundredths(cue.start), _hundredths(cue.end)
        print(f"Dialogue: 0,{_clock(start)},{_clock(end)},Default,{name},0,0,0,,{text}", file=file)


def _escape(text: str) -> str:
    text = text.replace("\\", "\\" + _WORD_JOINER)
    return text.replace("{", "\\{").replace("}", "\\}").replace("\n", "\\N")


def _karaoke(cue: Cue) -> str:
    """Each word, and each silence between words, with its duration in 1/100 s."""
    parts: list[str] = []
    now = _hundredths(cue.start)
    words = iter(cue.words)
    for number, line in enumerate(cue.lines):
        parts.append("\\N" if number else "")
        for _ in line:
            word = next(words)
            start, end = _hundredths(word.start), _hundredths(word.end)
            silence = f"{{\\k{start - now}}}" if start > now else ""
            parts.append(f"{silence}{{\\k{end - start}}}{_escape(word.word)}")
            now = end
    return "".join(parts)


def _hundredths(seconds: float) -> int:
    return round(seconds * 100)


def _clock(hundredths: int) -> str:
    """150 -> 0:00:01.50."""
    seconds, rest = divmod(hundredths, 100)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:02}"
