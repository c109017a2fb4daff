"""Which words of a script were heard: the longest common subsequence with a transcript."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from rapidfuzz.distance import Indel

from slimwhisper.forced_alignment.script import ScriptWord, words_of
from slimwhisper.types import Segment, Span

WORD_SECONDS = 0.5  # at most, of a word that was not heard
LEAST_SHARE = 0.5  # of a line's words that were heard, one heard as another word counting half


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A word of the transcript."""

    key: str  # as `ScriptWord.key`
    text: str
    start: float  # seconds
    end: float


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """A word of the script that is in the audio, and about where."""

    word: ScriptWord
    start: float  # seconds
    end: float
    free_from: float  # seconds: the end of what was heard before it
    free_until: float  # seconds: the start of what was heard after it
    strangers: int  # words that were heard since the last placed word, and are not in the script


@dataclass(frozen=True, slots=True)
class Match:
    """A script and what was heard."""

    placed: list[PlacedWord]  # of the lines that are in the audio
    certain: set[int]  # lines of whose words most were heard as they are
    heard: Sequence[HeardWord]
    lines: list[int]  # the line that each heard word belongs to; -1: none

    def unscripted(self, missing: Container[int]) -> tuple[Span, ...]:
        """What was heard and is not in the script; missing: lines that are not in the audio."""
        spans = []
        strange = [line < 0 or line in missing for line in self.lines]
        pairs = zip(strange, self.heard, strict=True)
        for is_strange, group in groupby(pairs, lambda pair: pair[0]):
            if is_strange:
                run = [word for _, word in group]
                text = "".join(word.text for word in run).strip()
                spans.append(Span(run[0].start, run[-1].end, text))
        return tuple(spans)


def heard_words(segments: Iterable[Segment]) -> Iterator[HeardWord]:
    """The words of a transcript with word times, divided as those of a script."""
    for segment in segments:
        words, at = segment.words or (), 0
        # of each character
        times = [t for w in words for t in pairwise(np.linspace(w.start, w.end, len(w.word) + 1))]
        for part in words_of(["".join(w.word for w in words)]):
            first, at = at, at + len(part.text)
            yield HeardWord(part.key, part.text, float(times[first][0]), float(times[at - 1][1]))


def match(words: Sequence[ScriptWord], heard: Sequence[HeardWord]) -> Match:
    """Find the lines that are in the audio, and the audio that is not in them."""
    partner = np.full(len(words), -1)
    same = np.zeros(len(words), bool)
    # as many equal words as possible; what is between them was heard as other words
    script_at = heard_at = 0
    equal = Indel.opcodes([w.key for w in words], [h.key for h in heard])
    for op in (*(op for op in equal if op.tag == "equal"), None):
        script_end = len(words) if op is None else op.src_start
        heard_end = len(heard) if op is None else op.dest_start
        count = min(script_end - script_at, heard_end - heard_at)
        partner[script_at : script_at + count] = np.arange(heard_at, heard_at + count)
        if op is not None:
            partner[op.src_start : op.src_end] = np.arange(op.dest_start, op.dest_end)
            same[op.src_start : op.src_end] = True
            script_at, heard_at = op.src_end, op.dest_end
    for i in reversed(range(len(words) - 1)):  # of equal words, that by the next one of the line
        nearer, one_line = partner[i + 1] - 1, words[i].line == words[i + 1].line
        if one_line and same[i] and same[i + 1] and heard[nearer].key == words[i].key:
            partner[i] = nearer
    lines = np.full(len(heard), -1)
    kept: list[int] = []
    certain = set[int]()
    for line, group in groupby(range(len(words)), lambda i: words[i].line):
        of_line = list(group)
        known, replaced = same[of_line].sum(), (~same & (partner >= 0))[of_line].sum()
        if known + replaced / 2 < LEAST_SHARE * len(of_line):
            continue
        kept += of_line
        lines[[j for j in partner[of_line] if j >= 0]] = line
        if known > len(of_line) / 2:
            certain.add(line)
    strange = (lines < 0).tolist()
    placed = _placed([words[i] for i in kept], partner[kept].tolist(), heard, strange)
    return Match(placed, certain, heard, lines.tolist())


def _placed(
    words: Sequence[ScriptWord],
    partner: Sequence[int],
    heard: Sequence[HeardWord],
    strange: Sequence[bool],
) -> list[PlacedWord]:
    """Words that were not heard share the time between their neighbours."""
    placed: list[PlacedWord] = []
    last, count = -1, 0  # of `heard`; words without a partner
    for i, j in enumerate([*partner, len(heard)]):
        if j < 0:
            count += 1
            continue
        after = heard[j].start if j < len(heard) else float("inf")
        before = heard[last].end if last >= 0 else 0.0
        if last >= 0:  # after the word before them, or else before the first one
            first, stop = before, min(after, before + WORD_SECONDS * count)
        else:
            first, stop = max(0.0, after - WORD_SECONDS * count), after
        edges = np.linspace(first, stop, count + 1).tolist() if count else []
        for word, times in zip(words[i - count : i], pairwise(edges), strict=True):
            placed.append(PlacedWord(word, *times, before, after, 0))
        count = 0
        if j == len(heard):
            break
        strangers = sum(strange[last + 1 : j])
        previous = heard[j - 1].end if j else 0.0
        following = heard[j + 1].start if j + 1 < len(heard) else float("inf")
        own = heard[j].start, heard[j].end
        placed.append(PlacedWord(words[i], *own, previous, following, strangers))
        last = j
    return placed
