"""Texts as the tokens that flags compare: words, or characters where words have no spaces."""

import re
import unicodedata
from functools import lru_cache

from slimwhisper.subtitles.scripts import HAN, KANA, THAI_TO_KHMER, letters_of

UNSPACED = letters_of(*THAI_TO_KHMER, *KANA, *HAN)
_TOKEN = re.compile(f"[{UNSPACED}]|[^\\W_{UNSPACED}]+")
_CHARACTER = re.compile(f"[{UNSPACED}]")
_APOSTROPHES = str.maketrans("", "", "'’ʼ`´")


@lru_cache(maxsize=256)  # each flag looks at the same texts
def tokens_of(text: str) -> tuple[str, ...]:
    """The words of a text, and its characters in scripts without spaces; without case, punctuation
    and variants of characters.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    return tuple(_TOKEN.findall(plain))


def weight(token: str) -> float:
    """How much of a word a token is: a Chinese word has about two characters."""
    return 0.5 if _CHARACTER.match(token) else 1.0
