"""The tokens of texts for flags: words, or characters in scripts without spaces."""

import re
import unicodedata
from functools import lru_cache

from slimwhisper.subtitles.characters import HAN, KANA, THAI_TO_KHMER, letters_of

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
