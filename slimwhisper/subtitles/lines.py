"""Where sentences end and lines break: at most two lines of 42 columns, broken where a reader would
pause.

The limits are those of Netflix's timed-text style guides: 42 characters a line, 16 where they are
wide (Chinese, Japanese, Korean), two lines. The ends of sentences follow Unicode's rules (UAX 29):
a question mark ends a sentence, a full stop does unless the next letter is lower case.
Abbreviations, initials and ordinals are added. languages.toml has each language's words.
"""

import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any


@cache
def _tables() -> Any:
    return tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))


@cache
def words(table: str, language: str | None = None) -> frozenset[str]:
    """The words of a table, or of a language's row in it; none for other languages."""
    rows = _tables()[table]
    return frozenset((rows if language is None else rows.get(language, "")).split())


# Unicode blocks, first and last code
THAI_TO_KHMER = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))  # Lao, Tibetan, Myanmar too
KANA, HANGUL = ((0x3040, 0x30FF), (0x31F0, 0x31FF)), ((0xAC00, 0xD7A3),)
HAN = ((0x3400, 0x9FFF), (0xF900, 0xFAFF))
# blocks of scripts without spaces between words, with symbols and punctuation; Hangul has spaces
_SPACELESS = (
    *(*THAI_TO_KHMER, (0x19E0, 0x19FF), (0xAA60, 0xAA7F)),
    *(*KANA, *HAN, (0x2E80, 0x312F), (0x3190, 0xA4CF), (0xFE30, 0xFE4F), (0xFF00, 0xFF9F)),
    (0x20000, 0x3FFFF),
)
# never first in a line, like closing and combining characters: punctuation, small kana and marks of
# length, Thai and Lao vowels that follow their consonant
_NOT_FIRST = set(
    ".,!?:;%…。．，、！？：；・｡､؟،؛।॥։።፧፨၊။។៕‼⁇⁈⁉۔"
    "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶーゝゞヽヾ々〻～〜ｰﾞﾟ"
    "ะาำๅๆฯะາຳໆຯ"
)
# never last in a line, like opening characters: Thai and Lao vowels that precede their consonant
_NOT_LAST = set("¿¡$€£#@เแโใไເແໂໃໄ")
_QUOTES = set("\"'“”‘’„‚«»‹›")


def letters_of(*blocks: tuple[int, int]) -> str:
    """The characters of Unicode blocks, for a set in a regular expression."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in blocks)


@lru_cache(maxsize=4096)
def _column(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if is_wide(character) else 1


def columns(text: str) -> int:
    """The width of a text: 1 for a character, 2 for a wide one, such as Han, 0 for a combining mark
    or a control character (Unicode, UAX 11).
    """
    return len(text) if text.isascii() and text.isprintable() else sum(map(_column, text))


def is_wide(character: str) -> bool:
    """Whether a character is wide or full-width (Unicode, UAX 11)."""
    return unicodedata.east_asian_width(character) in ("W", "F")


def is_closing(character: str) -> bool:
    """Whether a character closes a quotation or a bracket; in other languages it may open one."""
    return character in _QUOTES or unicodedata.category(character) in ("Pe", "Pf")


@lru_cache(maxsize=4096)
def is_spaceless(character: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    code = ord(character)
    return any(first <= code <= last for first, last in _SPACELESS)


def may_break(before: str, after: str) -> bool:
    """Whether a line may end with the text `before`, and the next one begin with `after`."""
    stripped = after.lstrip()
    if not stripped or not before.strip():
        return False
    last, first = before.rstrip()[-1], stripped[0]
    if first in _NOT_FIRST or unicodedata.category(first) in ("Mn", "Mc", "Me", "Pe"):
        return False
    if last in _NOT_LAST or unicodedata.category(last) in ("Ps", "Pi"):
        return False
    if after[0].isspace() or before[-1].isspace():
        return True
    if unicodedata.category(first) == "Pf" or first in "'\"" or last in "'\"":
        return False
    return is_spaceless(last) or is_spaceless(first)


def units(text: str) -> Iterable[str]:
    """The smallest pieces of a text between which lines may break; joined, they are the text."""
    start = 0
    for i in range(1, len(text)):
        # a space belongs to the piece after it, as in Whisper's words
        if not text[i - 1].isspace() and may_break(text[start:i], text[i : i + 2]):
            yield text[start:i]
            start = i
    if start < len(text):
        yield text[start:]


# Sentence_Terminal of Unicode, in the scripts of Whisper's languages, and the ellipsis
_ENDS = "!?…。！？｡．‼⁇⁈⁉؟۔।॥։።፧፨။។៕།༎"
_STOPS = "."
_LANGUAGE_ENDS = {"el": ";"}  # the Greek question mark is written as a semicolon

_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*\Z")  # the last word, with full stops inside
_AFTER_QUOTE = ("と", "って", "という")  # Japanese: a quotation is part of the sentence


def ends_sentence(before: str, after: str, language: str) -> bool:
    """Whether a sentence ends between two texts.

    Arguments:
        before: the words before; the last 40 characters are enough.
        after: the words after, of which the first characters matter; empty at the end.
        language: a code such as "en", for abbreviations.
    """
    text = before.rstrip()
    unquoted = text
    while _is_closed(unquoted, language):
        unquoted = unquoted[:-1].rstrip()
    if not unquoted:
        return False
    mark, closed = unquoted[-1], len(unquoted) < len(text)
    if mark not in _ENDS and mark not in _STOPS and mark not in _LANGUAGE_ENDS.get(language, ""):
        return False
    following = after.lstrip()
    first = next((c for c in following if c.isalnum()), "")
    if not following:
        return True
    if _closes_next(mark, after, language) or (closed and following.startswith(_AFTER_QUOTE)):
        return False
    if first.islower() and (closed or mark in ".…" or unquoted.endswith("..")):
        return False
    if mark not in _STOPS or unquoted.endswith(".."):
        return True
    return not _abbreviated(unquoted, language, before_number=first.isdigit())


def _is_closed(text: str, language: str) -> bool:
    """Whether a text ends with a character that closes a quotation or a bracket."""
    if not text or not is_closing(text[-1]):
        return False
    before = text[-2:-1]
    if before.isspace():
        return language == "fr" and text[-1] == "»"
    return not (unicodedata.category(text[-1]) == "Pi" and before and is_spaceless(before))


def _closes_next(mark: str, after: str, language: str) -> bool:
    """Whether the character after a mark closes a quotation or a bracket."""
    first = after.lstrip()[0]
    if after[0].isspace():  # as before all marks of two parts in French
        return language == "fr" and first == "»"
    opens = unicodedata.category(first) == "Pi" and is_spaceless(mark)
    return is_closing(first) and not opens


def _abbreviated(text: str, language: str, *, before_number: bool) -> bool:
    """Whether the full stop that ends a text does not end a sentence."""
    match = _WORD.search(text[:-1])
    if match is None:
        return False
    word = match.group().lower()
    if before_number and word.isalpha() and len(word) <= 4:  # "Jan. 5", "No. 3"
        return True
    if len(word) == 1 and word.isalpha():  # an initial; but "and I."
        return not (language == "en" and word == "i")
    if word.isdigit():
        return language in words("ordinals") and len(word) <= 2
    return word in words("abbreviations", language) or (
        "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))
    )


LINE_COLUMNS, WIDE_COLUMNS = 42, 32  # a wide character takes two
MAX_LINES = 2

_CLAUSE_ENDS = ",;:，、；：،؛၊—–"
_TRAILING = "\"'”’»)]}）」』"


def line_columns(text: str) -> int:
    """The most columns of a line of this text: `WIDE_COLUMNS` if most characters are wide."""
    wide = sum(map(is_wide, text))
    return WIDE_COLUMNS if 2 * wide > len(text) - text.count(" ") else LINE_COLUMNS


def stay_on_line(before: str, after: str) -> bool:
    """Whether no line may end between two texts; it may if they are wider than a line."""
    if may_break(before, after):
        return False
    text = (before + after).strip()
    return columns(text) <= line_columns(text)


def break_costs(texts: Sequence[str], language: str) -> list[float]:
    """The cost of a line break after each of some consecutive words: 0 after a sentence, 6 after an
    article, 10 within katakana. language: a code such as "en".
    """
    phrases = _phrase_starts("".join(texts), language)
    costs = []
    ends = accumulate(map(len, texts))
    for end, (before, after) in zip(ends, pairwise([*texts, ""]), strict=True):
        cost = _break_cost(before, after, language)
        if phrases and cost == _ANYWHERE:
            katakana = _is_katakana(before[-1:]) and _is_katakana(after[:1])
            cost = 4.0 if end in phrases else 10.0 if katakana else 7.0
        costs.append(cost)
    return costs


_ANYWHERE = 3.0  # the cost of a break of which nothing is known
_PHRASES = {"ja": "ja", "th": "th", "yue": "zh-hant", "zh": "zh-hans"}  # models of budoux


def _phrase_starts(text: str, language: str) -> frozenset[int]:
    """Where the phrases of a text begin, in languages without spaces; none in others."""
    if language not in _PHRASES:
        return frozenset()
    return frozenset(accumulate(map(len, _parser(_PHRASES[language]).parse(text))))


@cache
def _parser(name: str) -> Any:
    import budoux

    model = Path(budoux.__file__).with_name("models") / f"{name}.json"
    return budoux.Parser(json.loads(model.read_text(encoding="utf-8")))


def _is_katakana(character: str) -> bool:
    return "ァ" <= character <= "ヿ"


def _break_cost(before: str, after: str, language: str) -> float:
    mark = before.rstrip().rstrip(_TRAILING)[-1:]
    if mark and mark in _CLAUSE_ENDS:
        return 1.0
    if mark and not mark.isalnum():
        if ends_sentence(before, after, language):
            return 0.0
        if mark == ".":  # "Dr. Who"
            return 5.0
    if after[:1].isspace() and is_spaceless(mark or " "):  # as between phrases in Thai
        return 1.0
    leading = words("leading", language)
    if before.strip().lower() in leading:
        return 6.0
    return 2.0 if after.strip().lower() in leading else _ANYWHERE


def break_lines(units: Sequence[str], language: str) -> list[int]:
    """The first units of lines.

    Arguments:
        units: the text in pieces between which lines may end (`characters.units`), each with the
            space before it.
        language: a code such as "en".
    Returns: the indices of the units that begin a line, 0 first. Two lines at most if that is
        enough, else as many as needed; a unit wider than a line has a line to itself.
    """
    text = "".join(units)
    limit = line_columns(text)
    if columns(text.strip()) <= limit:
        return [0]
    ends = list(accumulate(map(columns, units)))
    best, second_start, costs = float("inf"), 0, break_costs(units, language)
    for i in range(1, len(units)):
        first = columns("".join(units[:i]).strip())
        second = columns("".join(units[i:]).strip())
        if first <= limit and second <= limit:
            # a wider second line is easier to read than a wider first one
            uneven = abs(second - first) / limit + (0.1 if first > second else 0.0)
            cost = 5 * uneven + costs[i - 1]
            if cost < best:
                best, second_start = cost, i
    if second_start:
        return [0, second_start]
    starts = [0]
    for i in range(1, len(units)):
        if ends[i] - (ends[starts[-1] - 1] if starts[-1] else 0) > limit:
            starts.append(i)
    return starts
