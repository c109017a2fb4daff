"""A segment whose text a person has changed: which words keep their times, and what the others get.

Words that are the same before and after keep everything. A changed stretch gets the time of the
words it replaces: as many words as before take their times one by one; more or fewer share the time
by their length. New words where none were lie between their neighbours.
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
    first, last = _same_ends(old, text)
    start = sum(len(word.word) for word in old[:first])
    stop = len(text) - sum(len(word.word) for word in old[len(old) - last :])
    middle = old[first : len(old) - last]
    # scripts without spaces: each letter is a word
    pattern = r"\s*\S+" if _spaced(old) else r"\s*\S"
    new = re.findall(pattern, text[start:stop])
    found = list(old[:first])
    matcher = SequenceMatcher(None, [word.word for word in middle], new, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            found += middle[i:j]
        else:
            found += _placed(new[k:m], old, first + i, first + j, segment)
    return found + old[len(old) - last :]


def _placed(
    texts: Sequence[str], old: Sequence[Word], start: int, stop: int, segment: Segment
) -> list[Word]:
    """Words of these texts in the place of `old[start:stop]`."""
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
    return [
        Word(text, since, until, TYPED, speaker)
        for text, (since, until) in zip(texts, spans, strict=True)
    ]


def _shares(texts: Sequence[str], since: float, until: float) -> list[tuple[float, float]]:
    """A share of the time for each text, by its length."""
    lengths = [len(text.strip()) for text in texts]
    total = sum(lengths)
    ends = [round(since + (until - since) * n / total, 2) for n in accumulate(lengths[:-1])]
    return list(zip([since, *ends], [*ends, until], strict=True)) if texts else []


def _same_ends(old: Sequence[Word], text: str) -> tuple[int, int]:
    """How many words at the beginning, and how many at the end, are in the text as they were."""
    spaced = _spaced(old)

    def ends_word(rest: str) -> bool:
        return not spaced or not rest or rest[0].isspace()

    first = taken = at = 0
    for number, word in enumerate(old, start=1):
        if not text.startswith(word.word, at):
            break
        at += len(word.word)
        if ends_word(text[at:]):
            first, taken = number, at
    last, stop = 0, len(text)
    for number, word in enumerate(reversed(old[first:]), start=1):
        begin = stop - len(word.word)
        if begin < taken or text[begin:stop] != word.word:
            break
        stop = begin
        if ends_word(text[stop:]):
            last = number
    return first, last


def _spaced(words: Sequence[Word]) -> bool:
    """Whether spaces stand between most of the words; True if there is one word at most."""
    after = words[1:]
    return 2 * sum(word.word[:1].isspace() for word in after) >= len(after)
