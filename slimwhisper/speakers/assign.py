"""The speaker of each word, and segments cut where the speaker changes."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from slimwhisper.speakers.turns import Turn
from slimwhisper.types import Segment, Word

MAX_DISTANCE = 0.5  # seconds from a word outside all turns to the turn of its speaker

Spell = Callable[[Sequence[int]], list[tuple[str, list[int]]]]  # tokens -> texts, their tokens


def assign_speakers(
    segments: Sequence[Segment], turns: Sequence[Turn], spell: Spell
) -> list[Segment]:
    """Segments with speakers, cut where the speaker changes, and numbered again.

    A word has the speaker of most of its time, else the nearest one within `MAX_DISTANCE`, else
    that of its neighbours. A segment without words is unchanged.

    spell: a segment's tokens -> pieces of text with their tokens; no text for timestamps.
    """
    speaker_at = Timeline(turns)
    pieces = [piece for s in segments for piece in _cut(s, speaker_at, spell)]
    return [replace(piece, id=i) for i, piece in enumerate(pieces)]


class Timeline:
    """Looks up the speaker at a time, in turns that may overlap."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.start)
        self._starts = [turn.start for turn in self._turns]
        self._ends = list(accumulate((turn.end for turn in self._turns), max))

    def __call__(self, start: float, end: float) -> str | None:
        """The speaker of most of this time, or of the nearest turn, or None."""
        shares: dict[str, float] = defaultdict(float)
        nearest: tuple[float, str | None] = (MAX_DISTANCE, None)
        first = bisect_left(self._ends, start - MAX_DISTANCE)
        for turn in self._turns[first : bisect_right(self._starts, end + MAX_DISTANCE)]:
            shared = min(end, turn.end) - max(start, turn.start)
            if shared > 0:
                shares[turn.speaker] += shared
            elif -shared < nearest[0]:
                nearest = (-shared, turn.speaker)
        return max(shares, key=shares.__getitem__) if shares else nearest[1]


def _cut(segment: Segment, speaker_at: Timeline, spell: Spell) -> list[Segment]:
    """A segment -> segments of one speaker each."""
    if not segment.words:
        return [segment]
    speakers = _fill_unknown([speaker_at(word.start, word.end) for word in segment.words])
    words = [replace(w, speaker=s) for w, s in zip(segment.words, speakers, strict=True)]
    runs = [list(run) for _, run in groupby(words, key=lambda word: word.speaker)]
    return cut_segment(segment, runs, spell)


def cut_segment(segment: Segment, runs: Sequence[Sequence[Word]], spell: Spell) -> list[Segment]:
    """A segment -> a segment for each run of its words, with the speaker of the run."""
    if len(runs) == 1:
        return [replace(segment, words=list(runs[0]), speaker=runs[0][0].speaker)]
    tokens_of_runs = _share_tokens(segment, runs, spell)
    starts = [segment.start, *(run[0].start for run in runs[1:])]
    ends = [*(run[-1].end for run in runs[:-1]), segment.end]
    return [
        replace(
            segment,
            start=start,
            end=max(start, end),
            text="".join(word.word for word in run),
            tokens=tokens,
            words=list(run),
            speaker=run[0].speaker,
        )
        for run, tokens, start, end in zip(runs, tokens_of_runs, starts, ends, strict=True)
    ]


def _fill_unknown(speakers: Sequence[str | None]) -> Iterator[str | None]:
    """The speakers, with unknown ones replaced by the one before, else the one after."""
    last = next((name for name in speakers if name is not None), None)
    for name in speakers:
        last = last if name is None else name
        yield last


def _share_tokens(
    segment: Segment, runs: Sequence[Sequence[Word]], spell: Spell
) -> list[list[int]]:
    """A segment's tokens, each in the run of words in whose text it begins. Tokens without text,
    such as timestamps, follow the token before them.
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
