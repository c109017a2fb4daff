"""Whether a text is written in a script of its language."""

import unicodedata
from collections import Counter
from functools import cache

LEAST_LETTERS = 8  # fewer may be a name

# Languages of Whisper that are not, or not only, written in Latin letters; scripts by the first
# word of the names that Unicode gives to characters. Those not listed: Latin.
_SCRIPTS: dict[str, str] = {
    **dict.fromkeys(("be", "bg", "mk", "ru", "uk", "mn", "tg", "ba", "kk", "tt"), "CYRILLIC"),
    **dict.fromkeys(("sr", "bs", "az", "uz", "tk", "ro"), "LATIN CYRILLIC"),
    **dict.fromkeys(("ar", "fa", "ur", "ps", "sd"), "ARABIC"),
    **dict.fromkeys(("he", "yi"), "HEBREW"),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), "DEVANAGARI"),
    **dict.fromkeys(("bn", "as"), "BENGALI"),
    **dict.fromkeys(("zh", "yue"), "CJK"),
    "ja": "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA",
    "ko": "HANGUL CJK",
    "pa": "GURMUKHI ARABIC",
    "gu": "GUJARATI",
    "ta": "TAMIL",
    "te": "TELUGU",
    "kn": "KANNADA",
    "ml": "MALAYALAM",
    "si": "SINHALA",
    "th": "THAI",
    "lo": "LAO",
    "my": "MYANMAR",
    "km": "KHMER",
    "bo": "TIBETAN",
    "ka": "GEORGIAN",
    "hy": "ARMENIAN",
    "am": "ETHIOPIC",
    "el": "GREEK",
    "ms": "LATIN ARABIC",
    "jw": "LATIN JAVANESE",
    "su": "LATIN SUNDANESE",
    "ha": "LATIN ARABIC",
}


def is_foreign(text: str, language: str) -> bool:
    """Whether most letters of a text are of no script in which its language is written.

    language: a code of Whisper's. False for texts under eight letters.
    """
    own = _SCRIPTS.get(language, "LATIN").split()
    if text.isascii() and "LATIN" in own:
        return False
    scripts = Counter(_script(character) for character in text if character.isalpha())
    letters = scripts.total()
    return letters >= LEAST_LETTERS and 2 * sum(scripts[s] for s in own) < letters


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").removeprefix("FULLWIDTH ").split()[0]
