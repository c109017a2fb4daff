"""Scores of live transcripts: word errors, the delay of each word, and how often text is rewritten.

The delay of a word is the time from its end in the audio to its commitment. Rewritten text is
measured as normalized erasure (Arivazhagan et al., arXiv 1912.03393): words that were shown and
taken back, for each word of the last text.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import jiwer
from conversations import Spoken

from slimwhisper.commands.approximate.words import words_of

LANGUAGE = "en"


@dataclass(frozen=True, slots=True)
class Heard:
    """A word of a live transcript."""

    word: str
    at: float  # seconds since the stream's first sample was sent


@dataclass(slots=True)
class Shown:
    """The text of an utterance as a client shows it."""

    committed: str = ""
    parts: list[tuple[int, float]] = field(default_factory=list)  # its length, and since when
    shown: list[str] = field(default_factory=list)  # words, the tentative ones too
    erased: int = 0  # words

    def commit(self, text: str, at: float) -> None:
        """More text is committed, at this time."""
        self.committed += text
        self.parts.append((len(self.committed), at))

    def show(self, tentative: str) -> None:
        """What follows the committed text now."""
        words = words_of(self.committed + tentative, LANGUAGE)
        self.erased += len(self.shown) - common(self.shown, words)
        self.shown = words

    def words(self) -> list[Heard]:
        """The committed words; one counts when its last letter is there."""
        found, end = [], 0
        for token in self.committed.split():
            end = self.committed.index(token, end) + len(token)
            at = next(at for length, at in self.parts if length >= end)
            found += [Heard(word, at) for word in words_of(token, LANGUAGE)]
        return found


@dataclass(frozen=True, slots=True)
class Score:
    """Of one stream, or of several together."""

    delays: tuple[float, ...]  # seconds, of the words that are right
    truth_words: int
    truth_errors: int
    offline_words: int
    offline_errors: int
    live_words: int
    erased: int

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.delays + other.delays,
            self.truth_words + other.truth_words,
            self.truth_errors + other.truth_errors,
            self.offline_words + other.offline_words,
            self.offline_errors + other.offline_errors,
            self.live_words + other.live_words,
            self.erased + other.erased,
        )

    def summary(self) -> dict[str, float | None]:
        """Percentiles of the delay in seconds, and rates in percent or for each word."""
        return {
            **{f"p{p}": percentile(self.delays, p) for p in (50, 95, 99)},
            "erasure": self.erased / max(self.live_words, 1),
            "word_errors": 100 * self.truth_errors / max(self.truth_words, 1),
            "from_offline": 100 * self.offline_errors / max(self.offline_words, 1),
        }


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many words both begin with."""
    different = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(different, min(len(a), len(b)))


def percentile(values: Sequence[float], p: int) -> float | None:
    """By linear interpolation; None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[p - 1]


def aligned(truth: Sequence[str], found: Sequence[str]) -> tuple[list[tuple[int, int]], int]:
    """The pairs of positions of words that are right, and the number of errors: the least number of
    words to insert, delete or replace.
    """
    if not truth or not found:
        return [], len(truth) + len(found)
    result = jiwer.process_words(" ".join(truth), " ".join(found))
    pairs = [
        (chunk.ref_start_idx + i, chunk.hyp_start_idx + i)
        for chunk in result.alignments[0]
        if chunk.type == "equal"
        for i in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]
    return pairs, result.substitutions + result.deletions + result.insertions


def score(truth: Sequence[Spoken], offline: str, utterances: Sequence[Shown]) -> Score:
    """One stream against what was said, and against the offline transcript of the same audio."""
    heard = [word for shown in utterances for word in shown.words()]
    words = [word.word for word in heard]
    pairs, errors = aligned([word.word for word in truth], words)
    reference = words_of(offline, LANGUAGE)
    return Score(
        tuple(heard[j].at - truth[i].end for i, j in pairs),
        len(truth),
        errors,
        len(reference),
        aligned(reference, words)[1],
        len(words),
        sum(shown.erased for shown in utterances),
    )
