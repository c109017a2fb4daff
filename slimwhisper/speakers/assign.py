"""The speaker of each word, and segments cut where the speaker changes."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from slimwhisper.speakers.turns import Turn
from slimwhisper.types import Segment, Word

NEAR = 0.5  # seconds: a word outside all turns is of a speaker this near

Spell = Callable[[Sequence[int]], list[tuple[str, list[int]]]]  # tokens -> texts, their tokens


def assign_speakers(
    segments: Sequence[Segment], turns: Sequence[Turn], spell: Spell
) -> list[Segment]:
    """Segments with speakers, cut where the speaker changes, and numbered anew.

    A word is of the speaker who has most of its time, else of the nearest one within `NEAR`, else
    of its neighbours'. A segment without words is as before.

    spell: a segment's tokens -> pieces of text with their tokens; no text for timestamps.
    """
    speaker_at = Timeline(turns)
    pieces = [piece for s in segments for piece in _cut(s, speaker_at, spell)]
    return [replace(piece, id=i) for i, piece in enumerate(pieces)]


class Timeline:
    """Looks up who speaks, in turns that may overlap."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.start)
        self._starts = [turn.start for turn in self._turns]
        self._ends = list(accumulate((turn.end for turn in self._turns), max))

    def __call__(self, start: float, end: float) -> str | None:
        """The speaker of most of this time, or of the nearest turn within `NEAR`; else None."""
        shares: dict[str, float] = defaultdict(float)
        nearest: tuple[float, str | None] = (NEAR, None)
        first = bisect_left(self._ends, start - NEAR)
        for turn in self._turns[first : bisect_right(self._starts, end + NEAR)]:
            shared = min(end, turn.end) - max(start, turn.start)
            if shared > 0:
                shares[turn.speaker] += shared
            elif -shared < nearest[0]:
                nearest = (-shared, turn.speaker)
        return max(shares, key=shares.__getitem__) if shares else nearest[1]


def _cut(segment: Segment, speaker_at: Timeline, spell: Spell) -> list[Segment]:
    """A segment -> its stretches of one speaker each."""
    if not segment.words:
        return [segment]
    speakers = _filled([speaker_at(word.start, word.end) for word in segment.words])
    words = [replace(w, speaker=s) for w, s in zip(segment.words, speakers, strict=True)]
    runs = [list(run) for _, run in groupby(words, key=lambda word: word.speaker)]
    if len(runs) == 1:
        return [replace(segment, words=words, speaker=speakers[0])]
    tokens = _share(segment, runs, spell)
    times = [segment.start, *(run[0].start for run in runs[1:])]
    ends = [*(run[-1].end for run in runs[:-1]), segment.end]
    return [
        replace(
            segment,
            start=start,
            end=max(start, end),
            text="".join(word.word for word in run),
            tokens=mine,
            words=run,
            speaker=run[0].speaker,
        )
        for run, mine, start, end in zip(runs, tokens, times, ends, strict=True)
    ]


def _filled(speakers: Sequence[str | None]) -> list[str | None]:
    """Unknown ones are the one before them, else the one after."""
    last = next((name for name in speakers if name is not None), None)
    filled = []
    for name in speakers:
        last = last if name is None else name
        filled.append(last)
    return filled


def _share(segment: Segment, runs: Sequence[Sequence[Word]], spell: Spell) -> list[list[int]]:
    """A segment's tokens, each in the run of words in whose text it begins.

    Words are what the tokens spell, so their lengths say where. What is not spelled, such as a
    timestamp, goes with what is before it.
    """
    ends = list(accumulate(sum(len(word.word) for word in run) for run in runs))
    shares: list[list[int]] = [[] for _ in runs]
    run = position = 0
    for text, tokens in spell(segment.tokens):
        if text:
            run = min(bisect_right(ends, position), len(runs) - 1)
        shares[run] += tokens
        position += len(text)
    return shares
