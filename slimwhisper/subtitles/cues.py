"""A transcript's segments as cues: what is shown from when to when, in which lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from slimwhisper.subtitles.lines import break_lines, stay_together
from slimwhisper.subtitles.scripts import columns, units
from slimwhisper.types import Segment, Transcript, Word


@dataclass(frozen=True, slots=True)
class Cue:
    """A segment, ready to be written."""

    start: float  # seconds
    end: float
    speaker: str | None
    label: str  # of the speaker, if another spoke before; empty where none is wanted
    lines: tuple[tuple[Word, ...], ...]  # at least one; in each, only the first has no space before
    timed: bool  # the words' times are known

    @property
    def text(self) -> str:
        """Without the speaker; lines end with "\\n"."""
        return "\n".join("".join(w.word for w in line) for line in self.lines)

    @property
    def words(self) -> list[Word]:
        """The words of all lines, with times that are in order, and within the cue's."""
        found: list[Word] = []
        last = self.start
        for line in self.lines:
            for word in line:
                start = min(max(word.start, last), self.end)
                last = min(max(word.end, start), self.end)
                found.append(replace(word, start=start, end=last))
        return found


def label(speaker: str | None) -> str:
    """What stands before the words of a speaker."""
    return "" if speaker is None else f"{' '.join(speaker.split())}: "


def to_cues(transcript: Transcript, *, broken: bool, labelled: bool = False) -> Iterator[Cue]:
    """The segments that have text.

    Arguments:
        broken: in lines of 42 columns; else in one line.
        labelled: where the speaker changes, `label` stands in the first line, before the words.
    """
    speaker = None
    for segment in transcript.segments:
        words = _words(segment)
        if not words:
            continue
        changed = labelled and segment.speaker != speaker
        before, speaker = label(segment.speaker) if changed else "", segment.speaker
        lines = _lines(words, before, transcript.language) if broken else [words]
        shown, timed = tuple(map(_stripped, lines)), bool(segment.words)
        yield Cue(segment.start, segment.end, speaker, before, shown, timed)


def spread(texts: Sequence[str], whole: Word) -> list[Word]:
    """Parts of a word, or of what is spoken in its time, each with its share of that time."""
    widths = list(accumulate(max(1, columns(text)) for text in texts))
    times = [whole.start + (whole.end - whole.start) * w / widths[-1] for w in (0, *widths)]
    return [
        replace(whole, word=text, start=round(a, 2), end=round(b, 2))
        for text, (a, b) in zip(texts, pairwise(times), strict=True)
    ]


def words_of(segment: Segment) -> list[Word]:
    """A segment's words; if it has none, its text's units, with times by their widths."""
    if segment.words:
        return segment.words
    return spread(list(units(segment.text)), Word("", segment.start, segment.end, 0.0))


def _words(segment: Segment) -> list[Word]:
    """The words that are something to see, on one line."""
    found: list[Word] = []
    for word in words_of(segment) if segment.text.strip() else ():
        if bare := " ".join(word.word.split()):
            gap = " " if found and word.word[0].isspace() else ""
            found.append(replace(word, word=gap + bare))
    return found


def _lines(words: list[Word], before: str, language: str) -> list[list[Word]]:
    joined = [[words[0]]]  # words that stay on one line
    for word in words[1:]:
        if stay_together("".join(w.word for w in joined[-1]), word.word):
            joined[-1].append(word)
        else:
            joined.append([word])
    texts = ["".join(w.word for w in unit) for unit in joined]
    texts[0] = before + texts[0]
    starts = [*break_lines(texts, language), len(joined)]
    return [[w for unit in joined[a:b] for w in unit] for a, b in pairwise(starts)]


def _stripped(line: list[Word]) -> tuple[Word, ...]:
    return (replace(line[0], word=line[0].word.lstrip()), *line[1:])
