"""Times the words of a segment again after a person has changed its text.

Unchanged words keep their times. A changed stretch gets the time of the words that it replaces: the
same number of words take their times one by one; more or fewer words share the time by length.
Inserted words get the gap between their neighbours.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import accumulate

from slimwhisper.types import Segment, Word

TYPED = 1.0  # the probability of a word that a person wrote


def with_text(segment: Segment, text: str) -> Segment:
    """The segment with another text, checked by a person: no flags, and no tokens of the model."""
    words = None if segment.words is None else retime(segment, text)
    return replace(segment, text=text, tokens=[], words=words, flags=())


def retime(segment: Segment, text: str) -> list[Word]:
    """The words of a text in place of the segment's. Joined, they are the text."""
    old = segment.words or []
    units: list[list[Word]] = []  # words between two spaces
    if _spaced(old):
        pattern = r"\s*\S+"
        for word in old:
            if units and not word.word[:1].isspace():
                units[-1].append(word)
            else:
                units.append([word])
    else:  # without spaces, split into the old words, else into letters
        pieces = sorted({word.word for word in old} - {""}, key=len, reverse=True)
        pattern = "|".join([*map(re.escape, pieces), r"\s*\S"])
        units = [[word] for word in old]
    before, new = ["".join(w.word for w in unit) for unit in units], re.findall(pattern, text)
    starts = [0, *accumulate(map(len, units))]
    words: list[Word] = []
    for kind, i, j, k, m in SequenceMatcher(None, before, new, autojunk=False).get_opcodes():
        start, stop = starts[i], starts[j]
        words += old[start:stop] if kind == "equal" else _timed(new[k:m], start, stop, segment)
    return words


def _timed(texts: Sequence[str], start: int, stop: int, segment: Segment) -> list[Word]:
    """Words of these texts, in place of `segment.words[start:stop]`."""
    old = segment.words or []
    replaced = old[start:stop]
    near = next(iter([*replaced, *old[:start][-1:], *old[stop:]]), None)
    speaker = near.speaker if near is not None else segment.speaker
    if len(replaced) == len(texts):
        spans = [(word.start, word.end) for word in replaced]
    else:
        if replaced:
            since, until = replaced[0].start, replaced[-1].end
        else:
            since = old[start - 1].end if start else segment.start
            until = old[stop].start if stop < len(old) else segment.end
        spans = _shares(texts, since, max(since, until))
    pairs = zip(texts, spans, strict=True)
    return [Word(text, since, until, TYPED, speaker) for text, (since, until) in pairs]


def _shares(texts: Sequence[str], since: float, until: float) -> list[tuple[float, float]]:
    """(start, end) of each text: a share of the time, by its length."""
    lengths = [len(text.strip()) for text in texts]
    total = sum(lengths)
    ends = [round(since + (until - since) * n / total, 2) for n in accumulate(lengths[:-1])]
    return list(zip([since, *ends], [*ends, until], strict=True)) if texts else []


def _spaced(words: Sequence[Word]) -> bool:
    """Whether spaces stand between most of the words; True if there is one word at most."""
    after = words[1:]
    return 2 * sum(word.word[:1].isspace() for word in after) >= len(after)
