"""A transcript's segments as cues: their times, lines and speakers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from slimwhisper.subtitles.lines import break_lines, columns, stay_on_line, units
from slimwhisper.types import Segment, Transcript, Word

MIN_CUE = 0.05  # seconds, more than a frame of a film: players do not show what has no length
SHORTEST = 0.019  # seconds that are a length: all formats have two hundredths


@dataclass(frozen=True, slots=True)
class Cue:
    """A segment, ready to write."""

    start: float  # seconds
    end: float
    speaker: str | None
    label: str  # of the speaker, if it changes and labels are requested; else empty
    plain: list[Word]  # each line but the first begins with "\n", in place of a space
    timed: bool  # the words' times are known

    @property
    def text(self) -> str:
        """Without the speaker."""
        return "".join(word.word for word in self.plain)

    @property
    def words(self) -> list[Word]:
        """The words with times in order, and within the cue's."""
        words: list[Word] = []
        last = self.start
        for word in self.plain:
            start = min(max(word.start, last), self.end)
            last = min(max(word.end, start), self.end)
            words.append(replace(word, start=start, end=last))
        return words


def label(speaker: str | None) -> str:
    """The text before the words of a speaker, "NAME: "."""
    return "" if speaker is None else f"{' '.join(speaker.split())}: "


def shown(transcript: Transcript) -> Transcript:
    """The transcript as players can show it: each word and segment has a length. What had none
    takes `MIN_CUE`, of the pause after it or of the words around it, and is not later than the last
    of them; or it is left out, if it has no text.
    """
    segments = [s for s in transcript.segments if s.text.strip() or s.end - s.start >= SHORTEST]
    parts: list[Sequence[Any]] = [s.words or [s] for s in segments]
    times = iter(_lengthened([(part.start, part.end) for group in parts for part in group]))
    for i, (segment, group) in enumerate(zip(segments, parts, strict=True)):
        new = [replace(part, start=a, end=b) for part, (a, b) in zip(group, times, strict=False)]
        if not segment.words:
            segments[i] = new[0]
        elif new != segment.words:
            start = segment.start + new[0].start - group[0].start
            end = max(segment.end + new[-1].end - group[-1].end, start + MIN_CUE)
            segments[i] = replace(segment, start=round(start, 3), end=round(end, 3), words=new)
    return replace(transcript, segments=segments)


def _lengthened(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Starts and ends of which each has a length; those that did not overlap do not."""
    new: list[tuple[float, float]] = []
    for i, (earliest, end) in enumerate(times):
        start = max(earliest, new[-1][1]) if i and times[i - 1][1] <= earliest else earliest
        new.append((start, end if end - start >= SHORTEST else round(start + MIN_CUE, 3)))
    least = MIN_CUE * sum(end - start < SHORTEST for start, end in times)
    longest = max(max((end for _, end in times), default=0.0), least)
    for i in reversed(range(len(new))):  # back from the end
        start, end = new[i]
        if i + 1 == len(new) or times[i][1] <= times[i + 1][0]:
            latest = new[i + 1][0] if i + 1 < len(new) else longest
            if end > latest:
                new[i] = max(round(min(start, latest - MIN_CUE), 3), 0.0), latest
    return new


def to_cues(transcript: Transcript, *, broken: bool, labelled: bool = False) -> Iterator[Cue]:
    """The segments with text, as cues.

    Arguments:
        broken: in lines of 42 columns; else in one line.
        labelled: with a label in the first line, before the words, where the speaker changes.
    """
    speaker = None
    for segment in shown(transcript).segments:
        words = _words(segment)
        if not words:
            continue
        changed = labelled and segment.speaker != speaker
        prefix, speaker = label(segment.speaker) if changed else "", segment.speaker
        if broken:
            words = _broken(words, prefix, transcript.language)
        yield Cue(segment.start, segment.end, speaker, prefix, words, timed=bool(segment.words))


def spread(texts: Sequence[str], word: Word) -> list[Word]:
    """Texts as words, which share the time of `word` by their widths."""
    widths = list(accumulate(max(1, columns(text)) for text in texts))
    times = [word.start + (word.end - word.start) * w / widths[-1] for w in (0, *widths)]
    pairs = zip(texts, pairwise(times), strict=True)
    return [replace(word, word=text, start=round(a, 2), end=round(b, 2)) for text, (a, b) in pairs]


def words_of(segment: Segment) -> list[Word]:
    """A segment's words; if it has none, the units of its text, with times by their widths."""
    if segment.words:
        return segment.words
    return spread(list(units(segment.text)), Word("", segment.start, segment.end, 0.0))


def _words(segment: Segment) -> list[Word]:
    """The words that are not blank, without line breaks."""
    words: list[Word] = []
    for word in words_of(segment) if segment.text.strip() else ():
        if text := " ".join(word.word.split()):
            space = " " if words and word.word[0].isspace() else ""
            words.append(replace(word, word=space + text))
    return words


def _broken(words: list[Word], prefix: str, language: str) -> list[Word]:
    """The words in lines. prefix: what comes before them in the first one."""
    units = [[words[0]]]  # words that stay on one line
    for word in words[1:]:
        if stay_on_line("".join(w.word for w in units[-1]), word.word):
            units[-1].append(word)
        else:
            units.append([word])
    texts = ["".join(w.word for w in unit) for unit in units]
    texts[0] = prefix + texts[0]
    for i in break_lines(texts, language)[1:]:
        units[i][0] = replace(units[i][0], word=f"\n{units[i][0].word.lstrip()}")
    return [word for unit in units for word in unit]
