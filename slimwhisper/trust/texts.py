"""What is wrong with a text: loops, credits, what silence is taken for, scripts, speed."""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from slimwhisper.subtitles.characters import HAN, HANGUL, KANA, THAI_TO_KHMER, letters_of
from slimwhisper.subtitles.languages import words

UNSPACED = letters_of(*THAI_TO_KHMER, *KANA, *HAN)
_TOKEN = re.compile(f"[{UNSPACED}]|[^\\W_{UNSPACED}]+")
_CHARACTER = re.compile(f"[{UNSPACED}]")
_APOSTROPHES = str.maketrans("", "", "'’ʼ`´")


@lru_cache(maxsize=256)  # each flag compares the same texts
def tokens_of(text: str) -> tuple[str, ...]:
    """The words of a text, and its characters in scripts without spaces; without case, punctuation
    and variants of characters.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    return tuple(_TOKEN.findall(plain))


def weight(token: str) -> float:
    """The words in a token: a Chinese word has about two characters."""
    return 0.5 if _CHARACTER.match(token) else 1.0


# A second of the fastest ordinary speech has about ten syllables: languages differ between 5 and 8
# on average (Coupé et al. 2019, Science Advances 5, eaaw2594), and fast speakers exceed the average
# by about a third. A syllable is a Chinese or Korean character, a kana, about three letters
# elsewhere; a digit has at least one.
LETTERS, SYLLABLES, DIGITS = 30.0, 12.0, 10.0  # most in a second
_SYLLABIC = re.compile(f"[{letters_of(*KANA, *HAN, *HANGUL)}]")


def least_seconds(text: str) -> float:
    """A lower bound of the seconds to speak a text; 0 for a text without letters or digits."""
    seconds = 0.0
    for character in text:
        if character.isascii():
            if character.isalpha():
                seconds += 1 / LETTERS
            elif character.isdigit():
                seconds += 1 / DIGITS
        elif _SYLLABIC.match(character):
            seconds += 1 / SYLLABLES
        elif unicodedata.category(character).startswith("L"):
            seconds += 1 / LETTERS
    return seconds


MIN_LETTERS = 8  # fewer may be a name


def is_foreign(text: str, language: str) -> bool:
    """Whether most letters of a text are in scripts that its language does not use.

    language: a code of Whisper's. False for texts under eight letters.
    """
    expected = words("scripts", language) or {"LATIN"}
    if text.isascii() and "LATIN" in expected:
        return False
    scripts = Counter(_script(character) for character in text if character.isalpha())
    letters = scripts.total()
    return letters >= MIN_LETTERS and 2 * sum(scripts[s] for s in expected) < letters


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").removeprefix("FULLWIDTH ").split()[0]


MAX_PERIOD = 40  # tokens; longer loops show in the compression ratio
# "no, no, no" and a chorus are not loops
MIN_REPEATS, MIN_WORDS = 4, 8  # words in all
MIN_LONG_REPEATS, MIN_LONG_WORDS = 3, 6  # words of each repeat


def loops(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """The stretches [start, stop) of tokens that repeat the same words: at least four times, with
    eight words in all, or at least three times, with six words each. They may overlap.
    """
    if len(tokens) < MIN_WORDS:
        return []
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(token, len(numbers)) for token in tokens])
    weights = list(accumulate(map(weight, tokens), initial=0.0))
    stretches = []
    for period in range(1, min(MAX_PERIOD, len(tokens) // MIN_LONG_REPEATS) + 1):
        same = ids[period:] == ids[:-period]
        if np.count_nonzero(same) < max((MIN_LONG_REPEATS - 1) * period, MIN_WORDS - period):
            continue
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
        for start, stop in edges.reshape(-1, 2).tolist():
            times = (stop - start) / period + 1
            words = weights[start + period] - weights[start]
            total = weights[stop + period] - weights[start]
            if (times >= MIN_REPEATS and total >= MIN_WORDS) or (
                times >= MIN_LONG_REPEATS and words >= MIN_LONG_WORDS
            ):
                stretches.append((start, stop + period))
    return stretches


def looping(texts: Sequence[str]) -> list[bool]:
    """For each of some consecutive texts, whether at least half of it is in a loop, within the text
    or with its neighbours.
    """
    parts = [tokens_of(text) for text in texts]
    tokens = [token for part in parts for token in part]
    inside = np.zeros(len(tokens), dtype=bool)
    for start, stop in loops(tokens):
        inside[start:stop] = True
    ends = np.array([0, *accumulate(map(len, parts))])
    counts = np.concatenate([[0], inside.cumsum()])[ends]
    return [
        bool(part) and 2 * int(counts[i + 1] - counts[i]) >= len(part)
        for i, part in enumerate(parts)
    ]


TABLE = Path(__file__).with_name("phrases.toml")
MAX_OTHER_TOKENS = 8  # of a credit, before or after its phrase: names, a year


def is_credit(text: str) -> bool:
    """Whether a text is one of the table's credits, with at most a few words around it."""
    tokens = tokens_of(text)
    return any(
        tokens[i : i + len(phrase)] == phrase and len(tokens) <= len(phrase) + MAX_OTHER_TOKENS
        for i, token in enumerate(tokens)
        for phrase in _by_first_token("credits").get(token, ())
    )


def is_common(text: str) -> bool:
    """Whether a text is nothing but one of the table's common phrases, once or repeated."""
    tokens = tokens_of(text)
    return any(
        tokens == phrase * (len(tokens) // len(phrase))
        for phrase in (_by_first_token("common").get(tokens[0], ()) if tokens else ())
    )


@cache
def _by_first_token(kind: str) -> dict[str, list[tuple[str, ...]]]:
    by_token: dict[str, list[tuple[str, ...]]] = {}
    for phrases in tomllib.loads(TABLE.read_text(encoding="utf-8"))[kind].values():
        for tokens in map(tokens_of, phrases):
            by_token.setdefault(tokens[0], []).append(tokens)
    return by_token
