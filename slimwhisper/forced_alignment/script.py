"""A script: the lines of a text, a subtitle file or lyrics, and the words in them."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from slimwhisper.disk import read_text
from slimwhisper.errors import OptionError
from slimwhisper.subtitles.cues import units

MOST_MIB = 4  # of a text: some 80 hours of speech
MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}|&#?\w+;")  # of subtitles; not spoken
CUE_TIMES = re.compile(r"^\s*(?:\d+:)?\d+:\d+[.,]\d+\s+-->\s")
LYRICS_TAG = re.compile(r"^\s*((?:\[\d+:\d+(?:[.:]\d+)?\])+)(.*)$")
WORD_TAG = re.compile(r"<\d+:\d+(?:[.:]\d+)?>")


@dataclass(frozen=True, slots=True)
class ScriptWord:
    """A word of a line; the texts of a line's words, joined, are the line."""

    line: int
    text: str  # with the space before it, its punctuation and its markup
    spoken: str  # without the markup
    key: str  # `word_key` of it


CUES = (".srt", ".vtt")  # files of cues; others have lines


def read_script(path: Path) -> dict[int, str]:
    """The lines of a text (a .txt or any other) or of an .lrc, the cues of an .srt or .vtt, by
    their numbers in the file, from 1.

    Raises OptionError for a file that cannot be read, is not UTF-8, too long or without text.
    """
    if path.suffix.lower() in (".ass", ".json", ".rttm", ".ssa", ".tsv"):  # not all is spoken
        raise OptionError(f"{path}: is neither text nor .srt, .vtt or .lrc; save it as one of them")
    lines = parse_script(read_text(path, MOST_MIB), path.suffix)
    if not lines:
        raise OptionError(f"{path}: no text in it; give the text of the recording")
    return lines


def as_lines(text: str | Path | Sequence[str]) -> list[str]:
    """A text, the path of one, or lines -> lines. Raises OptionError, also if it is empty."""
    if isinstance(text, Path):
        return list(read_script(text).values())
    given = text if isinstance(text, Iterable) else [text]
    lines = list(parse_script(text).values()) if isinstance(text, str) else list(given)
    if not all(isinstance(line, str) for line in lines):
        raise OptionError(f"text of {type(text)} has lines that are no strings; give strings")
    if not any(line.strip() for line in lines):
        raise OptionError("text is empty; give the text of the recording")
    if text == lines[0] and Path(text).suffix in (".txt", ".lrc", *CUES):
        raise OptionError(f"text {text!r} is the name of a file; give Path({text!r}), or its text")
    return lines


def parse_script(text: str, suffix: str = "") -> dict[int, str]:
    """The lines or cues of a text that is in a file of this suffix, by their numbers, without their
    times and WebVTT's tags. "": not in a file; it has cues if a line has a cue's times.
    """
    suffix, lines = suffix.lower(), text.splitlines()
    if suffix in CUES or (not suffix and any(map(CUE_TIMES.match, lines))):
        lines = _cues(lines)
        if text.startswith("WEBVTT"):
            lines = [unescape(re.sub(r"<[^<>]*>", "", cue)) for cue in lines]
    elif suffix == ".lrc":
        tagged = map(LYRICS_TAG.match, lines)
        lines = [WORD_TAG.sub("", match[2]).strip() if match else "" for match in tagged]
    return {number: line for number, line in enumerate(lines, 1) if line.strip()}


def _cues(lines: Sequence[str]) -> list[str]:
    """The texts of cues, which may be empty; one of several lines keeps its line breaks."""
    cues, cue = list[list[str]](), list[str]()
    for line in lines:
        if CUE_TIMES.match(line):
            cues.append(cue := [])
        elif line.strip():
            cue.append(line)
        else:  # what follows is in no cue
            cue = []
    return ["\n".join(cue) for cue in cues]


def words_of(lines: Sequence[str]) -> list[ScriptWord]:
    """All words, in order. In scripts without spaces, a character is a word."""
    return [word for number, line in enumerate(lines) for word in _words(number, line)]


def _words(number: int, line: str) -> list[ScriptWord]:
    spoken, origin, end = "", list[int](), 0  # without markup; where each character was
    for match in MARKUP.finditer(line):
        spoken += line[end : match.start()]
        origin += range(end, match.start())
        end = match.end()
    spoken += line[end:]
    origin += range(end, len(line))
    words: list[ScriptWord] = []
    begin, start, before = 0, 0, ("", "")  # in the line; in `spoken`; text without letters yet
    for piece in units(spoken):
        start += len(piece)
        stop = origin[start] if start < len(spoken) else len(line)
        text, key = line[begin:stop], word_key(piece)
        begin = stop
        if key:
            words.append(ScriptWord(number, before[0] + text, before[1] + piece, key))
            before = ("", "")
        elif words:  # punctuation alone
            last = words[-1]
            words[-1] = ScriptWord(number, last.text + text, last.spoken + piece, last.key)
        else:
            before = (before[0] + text, before[1] + piece)
    return words


def word_key(text: str) -> str:
    """What words are compared by: letters and digits, in lower case; "": it is not a word."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LMN")
