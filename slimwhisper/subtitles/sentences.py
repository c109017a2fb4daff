"""Segments as they were decoded -> segments that are sentences, each readable as a subtitle.

Sentences run across windows and segments; a change of speaker or a long pause always cuts. A
sentence that is too long for two lines, or for `MAX_SECONDS`, is divided at the best places, which
the cheapest path through its words finds. One that is too short to be read alone stays with a
neighbour, where both fit.

The limits are those of Netflix's timed-text style guides: 17 characters a second, and from 5/6 s to
7 s for a cue.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil, inf

from slimwhisper.subtitles.cues import label, spread, words_of
from slimwhisper.subtitles.endings import ends_sentence
from slimwhisper.subtitles.lines import (
    LINE_COLUMNS,
    MAX_LINES,
    WIDE_COLUMNS,
    break_cost,
    line_columns,
    stay_together,
)
from slimwhisper.subtitles.scripts import columns
from slimwhisper.types import Segment, Word

MAX_SPEED = 17.0  # columns a second
MIN_SECONDS, MAX_SECONDS = 5 / 6, 7.0  # that a cue is shown
PAUSE = 1.5  # seconds of silence that end a cue
MIN_GAP = 0.08  # seconds between cues, two frames at 25 a second; nearer ones are closed up
_CONTEXT = 40  # characters that decide whether a sentence ends

# What makes a division bad, in the unit of `break_cost`
_EACH_CUE = 2.0  # so that fewer are better
_UNEVEN = 3.0  # times the square of the share of the room that is filled
_BROKEN_SENTENCE = 3.0
_JOINED_SENTENCES = 8.0
_SHORT = 12.0  # times the share of `MIN_SECONDS` that is missing
_FAST = 6.0  # times the share of the time to read that is missing
_SILENCE = 4.0  # a second of silence makes a place that much better


@dataclass(frozen=True, slots=True)
class _Unit:
    """Words that stay on one line, of one segment or, rarely, of two."""

    words: tuple[Word, ...]
    source: int  # which segment

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
    """Cut segments into sentences, and sentences into what can be shown at once.

    A new segment has the speaker of the segments that it is made of, all their flags, and the
    values of the least certain one. Each segment's tokens go to the new one in which it begins.

    Arguments:
        segments: with words; where one has none, its text is spread evenly over its time, and what
            is made of it has no words either. Those without text are left out.
        language: a code such as "en", for abbreviations and articles.
        seconds: length of the recording, after which nothing is shown.
    Returns: segments in order, numbered from 0, that do not overlap.
    """
    sources = [s for s in segments if s.text.strip()]
    found: list[list[_Unit]] = []
    for run in _runs(sources):
        before = columns(label(sources[run[0].source].speaker))
        found += _divide(run, language, before)
    cues = [_merge(sources, cue, owned) for cue, owned in _with_owned(found)]
    return _timed(cues, inf if seconds is None else seconds)


def _runs(sources: Sequence[Segment]) -> Iterator[list[_Unit]]:
    """Stretches of speech of one speaker, without long pauses."""
    run: list[_Unit] = []
    for index, segment in enumerate(sources):
        for word in _narrow(words_of(segment)):
            unit = _Unit((word,), index)
            if not run:
                run.append(unit)
            elif (
                sources[run[-1].source].speaker != segment.speaker
                or word.start - run[-1].end >= PAUSE
                or word.start < run[-1].start
            ):
                yield run
                run = [unit]
            elif stay_together(run[-1].text, word.word):
                run[-1] = replace(run[-1], words=(*run[-1].words, word))
            else:
                run.append(unit)
    if run:
        yield run


def _narrow(words: Iterable[Word]) -> Iterator[Word]:
    """The words; those that are wider than a line, in parts."""
    for word in words:
        limit = line_columns(word.word)
        if not word.word.strip():
            continue
        if columns(word.word.strip()) <= limit:
            yield word
            continue
        parts = [""]
        for character in word.word:
            if columns((parts[-1] + character).strip()) > limit:
                parts.append("")
            parts[-1] += character
        yield from spread(parts, word)


def _divide(run: list[_Unit], language: str, before: int) -> list[list[_Unit]]:
    """A run -> cues, by the cheapest path from its first unit to its last.

    before: columns of a label in each cue's first line.
    """
    room = _Room(run, language, before)
    best, previous = [0.0] + [inf] * len(run), [0] * (len(run) + 1)
    for i in range(len(run)):
        for j in range(i + 1, len(run) + 1):
            if j > i + 1 and not room.fits(i, j):
                break
            cost = best[i] + room.cost(i, j)
            if cost < best[j]:
                best[j], previous[j] = cost, i
    cuts = [len(run)]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return [run[a:b] for a, b in pairwise(reversed(cuts))]


class _Room:
    """How much room the units [i, j) of a run take as one cue, and how good a cue they are."""

    def __init__(self, run: list[_Unit], language: str, before: int) -> None:
        self._before = before
        texts = [unit.text for unit in run]
        self._starts = [unit.start for unit in run] + [inf]
        self._ends = [unit.end for unit in run]
        self._columns = [0, *accumulate(map(columns, texts))]
        self._leading = [columns(text) - columns(text.lstrip()) for text in texts]
        self._wide = [0, *accumulate(_wide_excess(text) for text in texts)]
        whole = "".join(texts)
        places = list(accumulate(map(len, texts)))
        self._is_end = [
            ends_sentence(whole[max(0, p - _CONTEXT) : p], whole[p : p + _CONTEXT], language)
            for p in places
        ]
        self._is_end[-1] = True
        self._sentences = [0, *accumulate(map(int, self._is_end))]
        self._break = [
            0.0 if end else _BROKEN_SENTENCE + break_cost(a, b, language)
            for end, a, b in zip(self._is_end, texts, [*texts[1:], ""], strict=True)
        ]

    def _width(self, i: int, j: int) -> int:
        return self._columns[j] - self._columns[i] - self._leading[i]

    def _limit(self, i: int, j: int) -> int:
        return WIDE_COLUMNS if self._wide[j] > self._wide[i] else LINE_COLUMNS

    def fits(self, i: int, j: int) -> bool:
        """Whether the units have room in two lines and may be shown for that long."""
        if self._ends[j - 1] - self._starts[i] > MAX_SECONDS:
            return False
        limit, width = self._limit(i, j), self._before + self._width(i, j)
        if width <= limit:
            return True
        if width > MAX_LINES * (limit + 1):
            return False
        k = j - 1
        while k > i + 1 and self._width(k - 1, j) <= limit:
            k -= 1
        return self._width(k, j) <= limit and self._before + self._width(i, k) <= limit

    def cost(self, i: int, j: int) -> float:
        """How bad it is to show these units, and to end there."""
        width, start, end = self._width(i, j), self._starts[i], self._ends[j - 1]
        pause = self._starts[j] - end
        shown = max(end + min(pause, PAUSE) - start, MIN_GAP)
        cost = _EACH_CUE + _UNEVEN * (width / (MAX_LINES * self._limit(i, j))) ** 2
        cost += _JOINED_SENTENCES * (self._sentences[j - 1] - self._sentences[i])
        if not self._is_end[j - 1]:
            cost += max(0.0, self._break[j - 1] - _SILENCE * min(max(pause, 0.0), 0.5))
        if shown < MIN_SECONDS:
            cost += _SHORT * (1 - shown / MIN_SECONDS)
        if width > MAX_SPEED * shown:
            cost += _FAST * min(2.0, width / MAX_SPEED / shown - 1)
        return cost


def _wide_excess(text: str) -> int:
    """Above 0, in sum, for a text whose lines hold `WIDE_COLUMNS`: see `line_columns`."""
    length = len(text) - text.count(" ")
    wide = columns("".join(text.split())) - length
    return 2 * wide - length


def _with_owned(
    found: list[list[_Unit]],
) -> Iterator[tuple[list[_Unit], list[int]]]:
    """Each cue, and the segments that begin in it."""
    seen = -1
    for cue in found:
        last = cue[-1].source
        yield cue, list(range(seen + 1, last + 1))
        seen = max(seen, last)


def _merge(sources: Sequence[Segment], cue: list[_Unit], owned: list[int]) -> Segment:
    """One segment of these units."""
    parts = [sources[i] for i in sorted({unit.source for unit in cue})]
    words = [word for unit in cue for word in unit.words]
    return replace(
        parts[0],
        start=words[0].start,
        end=max(w.end for w in words),
        text="".join(w.word for w in words),
        tokens=[token for i in owned for token in sources[i].tokens],
        temperature=max(p.temperature for p in parts),
        avg_logprob=min(p.avg_logprob for p in parts),
        compression_ratio=max(p.compression_ratio for p in parts),
        no_speech_prob=max(p.no_speech_prob for p in parts),
        words=words if all(p.words for p in parts) else [],
        flags=tuple(dict.fromkeys(flag for p in parts for flag in p.flags)),
    )


def _timed(cues: list[Segment], seconds: float) -> list[Segment]:
    """The cues with the time to read them, where the next one and the recording's end leave it."""
    starts = [cue.start for cue in cues]
    for k in range(1, len(cues)):
        if 0 <= starts[k] - starts[k - 1] < MIN_GAP:  # of different speakers, at the same time
            starts[k] = round(starts[k - 1] + MIN_GAP, 3)
    result = []
    for k, (cue, start) in enumerate(zip(cues, starts, strict=True)):
        following = starts[k + 1] if k + 1 < len(cues) else inf
        latest = following if following >= start else inf  # a later clip may lie before this one
        reading = max(columns(cue.text.strip()) / MAX_SPEED, MIN_SECONDS)
        wanted = ceil(round((start + reading) * 100, 6)) / 100
        end = min(max(cue.end, min(wanted, seconds), start), latest)
        if latest - end < MIN_GAP:
            end = latest
        result.append(replace(cue, id=k, start=start, end=end))
    return result
