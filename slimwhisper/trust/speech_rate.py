"""The shortest time in which a text can be spoken."""

import re
import unicodedata

from slimwhisper.subtitles.characters import HAN, HANGUL, KANA, letters_of

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
