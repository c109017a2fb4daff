"""Decoded segments -> segments that are sentences, each readable as a subtitle.

Sentences continue across windows and segments, but not across a change of speaker or a long pause.
A sentence that is too long for two lines, or for `MAX_SECONDS`, is divided at the best positions,
by the cheapest path through its words. One that is too short to be read alone is joined with a
neighbour, if both fit.

The limits are those of Netflix's timed-text style guides: 17 characters a second, and from 5/6 s to
7 s for a cue.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil, inf

from slimwhisper.subtitles.cues import (
    LINE_COLUMNS,
    MAX_LINES,
    WIDE_COLUMNS,
    break_costs,
    columns,
    ends_sentence,
    label,
    line_columns,
    spread,
    stay_on_line,
    words_of,
)
from slimwhisper.types import Segment, Word

MAX_SPEED = 17.0  # columns a second
MIN_SECONDS, MAX_SECONDS = 5 / 6, 7.0  # of a cue
PAUSE = 1.5  # seconds of silence that end a cue
MIN_GAP = 0.08  # seconds between cues, two frames at 25 a second; smaller gaps are closed
_CONTEXT = 40  # characters that decide whether a sentence ends

# the costs of a division, in the unit of `break_costs`
_EACH_CUE = 2.0
_UNEVEN = 3.0  # times the square of the share of two lines that is filled
_BROKEN_SENTENCE = 3.0
_JOINED_SENTENCES = 8.0
_SHORT = 12.0  # times the missing share of `MIN_SECONDS`
_FAST = 6.0  # times the missing share of the reading time
_SILENCE = 4.0  # less, for each second of silence


@dataclass(frozen=True, slots=True)
class _Unit:
    """Words that stay on one line."""

    words: tuple[Word, ...]
    first: int  # the segment of the first word
    last: int  # and of the last

    @property
    def text(self) -> str:
        return "".join(w.word for w in self.words)

    @property
    def start(self) -> float:
        return self.words[0].start

    @property
    def end(self) -> float:
        return self.words[-1].end


def to_sentences(
    segments: Sequence[Segment], language: str, seconds: float | None = None
) -> list[Segment]:
    """Cut segments into sentences, and sentences into readable cues.

    A new segment has the speaker and all flags of the segments that it is made of, and the values
    of the least certain one. Each segment's tokens go to the new segment in which it begins.

    Arguments:
        segments: with words; the text of one without words is spread evenly over its time, and the
            new segments have no words either. Those without text are left out.
        language: a code such as "en", for abbreviations and articles.
        seconds: length of the recording, at which all cues end.
    Returns: segments in order, numbered from 0, that do not overlap.
    """
    sources = [s for s in segments if s.text.strip()]
    divided: list[list[_Unit]] = []
    for run in _runs(sources):
        divided += _divide(run, language, columns(label(sources[run[0].first].speaker)))
    cues, first = [], 0  # the first source that begins in the cue
    for number, cue in enumerate(divided, start=1):
        stop = len(sources) if number == len(divided) else max(first, cue[-1].last + 1)
        cues.append(_merge(sources, cue, range(first, stop)))
        first = stop
    return list(_with_reading_time(cues, inf if seconds is None else seconds))


def _runs(sources: Sequence[Segment]) -> Iterator[list[_Unit]]:
    """Stretches of speech of one speaker, without long pauses."""
    run: list[_Unit] = []
    for index, word in _words_within_lines(sources):
        unit = _Unit((word,), index, index)
        if not run:
            run.append(unit)
        elif (
            sources[run[-1].last].speaker != sources[index].speaker
            or word.start - run[-1].end >= PAUSE
            or word.start < run[-1].start
        ):
            yield run
            run = [unit]
        elif stay_on_line(run[-1].text, word.word):
            run[-1] = _Unit((*run[-1].words, word), run[-1].first, index)
        else:
            run.append(unit)
    if run:
        yield run


def _words_within_lines(sources: Sequence[Segment]) -> Iterator[tuple[int, Word]]:
    """The words of each segment, with its index; words that are wider than a line in parts. Words
    that are spaces, as in Thai, are joined with the next word.
    """
    space = ""
    for index, segment in enumerate(sources):
        for w in words_of(segment):
            space += w.word
            if not space.strip():
                continue
            word, space = replace(w, word=space, end=min(w.end, w.start + MAX_SECONDS)), ""
            limit = line_columns(word.word)
            if columns(word.word) <= limit:
                yield index, word
                continue
            parts = [""]
            for character in word.word:
                if columns((parts[-1] + character).strip()) > limit:
                    parts.append("")
                parts[-1] += character
            for part in spread(parts, word):
                yield index, part


def _divide(run: list[_Unit], language: str, label_columns: int) -> list[list[_Unit]]:
    """A run -> cues, by the cheapest path from its first unit to its last.

    label_columns: of a label in each cue's first line.
    """
    best, previous = [0.0] + [inf] * len(run), [0] * (len(run) + 1)
    for i, j, cost in _cue_costs(run, language, label_columns):
        if best[i] + cost < best[j]:
            best[j], previous[j] = best[i] + cost, i
    cuts = [len(run)]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return [run[a:b] for a, b in pairwise(reversed(cuts))]


def _cue_costs(
    run: list[_Unit], language: str, label_columns: int
) -> Iterator[tuple[int, int, float]]:
    """Each i and j for which the units [i, j) of a run fit in one cue, in their order, and the cost
    of this cue and of ending it there.

    The first j of an i always fits: a unit is at most as wide as a line.
    """
    texts, ends = [unit.text for unit in run], [unit.end for unit in run]
    starts = [unit.start for unit in run] + [inf]
    widths = [0, *accumulate(map(columns, texts))]
    leading = [columns(text) - columns(text.lstrip()) for text in texts]
    wide = [0, *accumulate(_wide_excess(text) for text in texts)]
    text = "".join(texts)
    is_end = [
        ends_sentence(text[max(0, i - _CONTEXT) : i], text[i : i + _CONTEXT], language)
        for i in accumulate(map(len, texts))
    ]
    is_end[-1] = True
    sentences = [0, *accumulate(map(int, is_end))]
    breaks = break_costs(texts, language)
    for i, start in enumerate(starts[:-1]):
        from_here = widths[i] + leading[i]
        second = i + 1  # the first unit of a second line, at the earliest
        for j in range(i + 1, len(starts)):
            end = ends[j - 1]
            width = widths[j] - from_here
            limit = WIDE_COLUMNS if wide[j] > wide[i] else LINE_COLUMNS
            if label_columns + width > limit:
                while widths[j] - widths[second] - leading[second] > limit:
                    second += 1
                first_line = label_columns + widths[second] - from_here
                if j > i + 1 and (first_line > limit or end - start > MAX_SECONDS):
                    break
            elif j > i + 1 and end - start > MAX_SECONDS:
                break
            pause = starts[j] - end
            duration = max(end + min(pause, PAUSE) - start, MIN_GAP)
            cost = _EACH_CUE + _UNEVEN * (width / (MAX_LINES * limit)) ** 2
            cost += _JOINED_SENTENCES * (sentences[j - 1] - sentences[i])
            if not is_end[j - 1]:
                broken = _BROKEN_SENTENCE + breaks[j - 1]
                cost += max(0.0, broken - _SILENCE * min(max(pause, 0.0), 0.5))
            if duration < MIN_SECONDS:
                cost += _SHORT * (1 - duration / MIN_SECONDS)
            if width > MAX_SPEED * duration:
                cost += _FAST * min(2.0, width / MAX_SPEED / duration - 1)
            yield i, j, cost


def _wide_excess(text: str) -> int:
    """A number whose sum is above 0 for texts with lines of `WIDE_COLUMNS`: see `line_columns`."""
    length = len(text) - text.count(" ")
    wide = columns("".join(text.split())) - length
    return 2 * wide - length


def _merge(sources: Sequence[Segment], cue: list[_Unit], starting: range) -> Segment:
    """One segment of these units. starting: the sources that begin in it."""
    parts = [sources[i] for i in range(cue[0].first, cue[-1].last + 1)]
    words = [word for unit in cue for word in unit.words]
    return replace(
        parts[0],
        start=words[0].start,
        end=max(w.end for w in words),
        text="".join(w.word for w in words),
        tokens=[token for i in starting for token in sources[i].tokens],
        temperature=max(p.temperature for p in parts),
        avg_logprob=min(p.avg_logprob for p in parts),
        compression_ratio=max(p.compression_ratio for p in parts),
        no_speech_prob=max(p.no_speech_prob for p in parts),
        words=words if all(p.words for p in parts) else [],
        flags=tuple(dict.fromkeys(flag for p in parts for flag in p.flags)),
    )


def _with_reading_time(cues: list[Segment], seconds: float) -> Iterator[Segment]:
    """The cues, prolonged to the time to read them, up to the next cue and the recording's end."""
    starts = [cue.start for cue in cues]
    for k in range(1, len(cues)):
        if (
            0 <= starts[k] - starts[k - 1] < MIN_GAP
        ):  # at the same time, as those of two speakers may be
            starts[k] = min(round(starts[k - 1] + MIN_GAP, 3), max(starts[k], seconds - MIN_GAP))
    for k, (cue, start) in enumerate(zip(cues, starts, strict=True)):
        following = starts[k + 1] if k + 1 < len(cues) else inf
        latest = following if following >= start else inf  # a later clip may lie before this one
        reading = max(columns(cue.text.strip()) / MAX_SPEED, MIN_SECONDS)
        read = ceil(round((start + reading) * 100, 6)) / 100
        end = min(max(cue.end, min(read, seconds), start), latest)
        if latest - end < MIN_GAP:
            end = latest
        yield replace(cue, id=k, start=start, end=end)
