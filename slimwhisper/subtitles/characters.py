"""Properties of characters: their width, and where lines may break between them."""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

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
