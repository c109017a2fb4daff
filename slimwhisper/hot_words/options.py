"""The options of hot words, and how a list of them becomes tokens.

A list has one phrase a line, with its own bonus after a tab if it has one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from slimwhisper.disk import content_digest, read_text
from slimwhisper.errors import OptionError
from slimwhisper.option_group import ModelFacts, OptionGroup
from slimwhisper.tokens.options import encode_text, prompting
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary

BONUS_HELP = "added to the log-probability of each token that continues a hot word"


def _checked(path: str) -> str:
    """The path of a file that has been read and checked, before a model is loaded for it. Raises
    OptionError.
    """
    parse_hot_words(read_hot_words(path), bonus=0.0)
    return path


@dataclass(frozen=True, kw_only=True)
class HotWordOptions(OptionGroup):
    """Words whose tokens become more probable. They are options of slimwhisper.

    Attributes:
        hot_words: The path of a file, which is read when the options are made, or its lines. It has
            up to 10,000 words or phrases, one in a line. Their tokens get `hot_word_bonus`, or the
            number after a tab in the same line. Unlike `hotwords`, they are not a prompt. () means
            no words.
        hot_word_bonus: The number from 0 to 20 that is added to the log-probability of each token
            that continues a hot word. It needs `hot_words`, at least one. The default is 2.0.
    """

    # the path of a file, or its lines; the file is read when options are made
    hot_words: str | tuple[str, ...] = prompting(
        (),
        "file of up to 10,000 words or phrases, one a line, whose tokens get --hot_word_bonus, or "
        "the number after a tab; unlike --hotwords, which is a prompt [none]",
        parse=_checked,
    )
    hot_word_bonus: float = prompting(2.0, BONUS_HELP, low=0, high=20, needs=("hot_words",))

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Read the file of hot words, if there is one.

        Args:
            values: The options of all groups that were given, by name. They are changed in place.
            defaults: The model's own values for the others.
            model: The model that they are for.

        Raises:
            OptionError: When the file cannot be read.
        """
        words = values.pop("hot_words", None)
        if words is not None:
            values["hot_words"] = read_hot_words(words) if isinstance(words, str | Path) else words

    def check(self, model: ModelFacts) -> None:
        """Check that the model can write the words.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When it cannot, or there are too many words.
        """
        # kept for the rules of the windows
        spellings(model.vocabulary, tuple(self.hot_words), self.hot_word_bonus)

    def change_rules(self, rules: Any, vocabulary: Vocabulary) -> Any:
        """Add the words to the rules, for their filter.

        Args:
            rules: The `Rules` of a window.
            vocabulary: The model's vocabulary.

        Returns:
            The rules.

        Raises:
            OptionError: When the phrases have too much in common.
        """
        if not self.hot_words:
            return rules
        from slimwhisper.hot_words.filter import hot_words  # with the first list

        words = hot_words(vocabulary, tuple(self.hot_words), self.hot_word_bonus)
        return replace(rules, bonuses=words)

    @classmethod
    def identify(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the digest of the file, for the journal of a job.

        Args:
            options: The options that differ from their defaults, by name.

        Returns:
            The digest, under "hot_words", if there are any.
        """
        words = options.get("hot_words")
        return {"hot_words": content_digest(words)} if words else {}


MOST_PHRASES = 10_000
LONGEST = 200  # characters of a phrase
HIGHEST = 20.0  # bonus of a token, a difference of log-probabilities
MOST_MIB = 8  # of a file
# first and last code: Thai, Lao, Tibetan, Myanmar and Khmer, which have no spaces between words
UNSPACED = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))


class Spelling(NamedTuple):
    """One way to write a phrase."""

    tokens: tuple[int, ...]
    bonus: float  # of each token
    # whether it may follow a letter: it begins with a space, or its script has none between words
    anywhere: bool


def read_hot_words(path: str | Path) -> tuple[str, ...]:
    """The lines of a file in UTF-8. Raises OptionError."""
    if not (text := read_text(Path(path), MOST_MIB, "hot_words")):
        raise OptionError(f"hot_words: {path} is empty; write words into it, one a line")
    return tuple(text.splitlines())


def hot_word_lines(text: str) -> tuple[str, ...]:
    """The lines of a text that someone has typed or sent, without those that are empty."""
    return tuple(line for line in text.splitlines() if line.strip())


def parse_hot_words(lines: Sequence[str], bonus: float) -> dict[str, float]:
    """The phrases of a list, and the bonus of each token of them: of a phrase that is there twice,
    the larger one. bonus: of phrases without their own.

    Raises OptionError for an empty line, a bonus that is none, and a list or phrase too long.
    """
    if len(lines) > MOST_PHRASES:
        raise OptionError(f"hot_words: {len(lines):,} phrases; give at most {MOST_PHRASES:,}")
    phrases: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise OptionError(f"hot_words: line {number} is {line!r}; give a text")
        text, tab, own = line.partition("\t")
        phrase = " ".join(text.split())
        if not phrase:
            raise OptionError(f"hot_words: line {number} is empty; leave it out")
        if len(phrase) > LONGEST:
            length = f"{len(phrase):,} characters"
            raise OptionError(f"hot_words: line {number} has {length}; give at most {LONGEST}")
        points = _bonus(own, number) if tab else bonus
        phrases[phrase] = max(points, phrases.get(phrase, 0.0))
    return phrases


def _bonus(text: str, line: int) -> float:
    try:
        bonus = float(text)
    except ValueError:
        bonus = float("nan")
    if not 0 <= bonus <= HIGHEST:
        rule = f"give a number from 0 to {HIGHEST:g} after the tab"
        raise OptionError(f"hot_words: line {line}: the bonus {text.strip()!r} is none; {rule}")
    return bonus


@lru_cache(maxsize=8)
def spellings(vocabulary: Vocabulary, lines: tuple[str, ...], bonus: float) -> tuple[Spelling, ...]:
    """All spellings of the phrases of a list: as given, in lower case, and with the first letter,
    or that of every word, in upper case; each with a space before it, and without.

    Raises OptionError as `parse_hot_words`, and for a phrase that is not text in this vocabulary.
    """
    tokenizer, found = vocabulary.tokenizer(), []
    for phrase, points in parse_hot_words(lines, bonus).items():
        for text in _cases(phrase):
            spaced = _has_spaces(text)
            for before in (" ", ""):
                tokens = _encoded(vocabulary, tokenizer, before + text)
                found.append(Spelling(tokens, points, bool(before) or not spaced))
    return tuple(found)


def _cases(phrase: str) -> Iterator[str]:
    words = phrase.split(" ")
    lower = phrase.lower()
    capitals = " ".join(word[:1].upper() + word[1:] for word in words)
    yield from dict.fromkeys((phrase, lower, phrase[:1].upper() + phrase[1:], capitals))


def _has_spaces(text: str) -> bool:
    """Whether words of the script of its first letter have spaces between them."""
    code = ord(text[0])
    wide = unicodedata.east_asian_width(text[0]) in "WF"
    hangul = 0xAC00 <= code <= 0xD7A3
    return hangul or not (wide or any(first <= code <= last for first, last in UNSPACED))


def _encoded(vocabulary: Vocabulary, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    tokens = tuple(encode_text(tokenizer, text))
    same = tokenizer.decode(list(tokens)) == text
    if not (same and tokens and all(map(vocabulary.is_text, tokens))):
        what = "is not text that this model can write; leave it out"
        raise OptionError(f"hot_words: {text.strip()[:40]!r} {what}")
    return tokens
