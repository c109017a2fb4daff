"""Whether a text is written in a script of its language."""

import unicodedata
from collections import Counter
from functools import cache

from slimwhisper.subtitles.languages import words

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
