"""Where sentences end, by their punctuation.

The rules follow Unicode's for sentence boundaries (UAX 29): a question mark ends a sentence, a full
stop does unless what follows it is in lower case. Abbreviations, initials and ordinals are added.
"""

import re
import unicodedata

from slimwhisper.subtitles.languages import words
from slimwhisper.subtitles.scripts import is_closing, is_spaceless

# Sentence_Terminal of Unicode, in the scripts of Whisper's languages, and the ellipsis
_ENDS = "!?…。！？｡．‼⁇⁈⁉؟۔।॥։።፧፨။។៕།༎"
_STOPS = "."
_LATE = {"el": ";"}  # the Greek question mark is written as a semicolon

_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*\Z")  # the last word, with full stops inside
_QUOTED_ON = ("と", "って", "という")  # Japanese: a quotation is part of the sentence


def ends_sentence(before: str, after: str, language: str) -> bool:
    """Whether a sentence ends between two texts.

    Arguments:
        before: some words up to here; the last 40 characters are enough.
        after: the words that follow, of which the first characters count; empty at the end.
        language: a code such as "en"; other abbreviations are known in each.
    """
    text = before.rstrip()
    bare = text
    while _is_closed(bare, language):
        bare = bare[:-1].rstrip()
    if not bare:
        return False
    mark, closed = bare[-1], len(bare) < len(text)
    if mark not in _ENDS and mark not in _STOPS and mark not in _LATE.get(language, ""):
        return False
    following = after.lstrip()
    first = next((c for c in following if c.isalnum()), "")
    if not following:
        return True
    if _closes_next(mark, after, language):
        return False
    if closed and following.startswith(_QUOTED_ON):
        return False
    continues = first.islower() and (closed or mark in ".…" or bare.endswith(".."))
    if continues:
        return False
    if mark not in _STOPS or bare.endswith(".."):
        return True
    return not _abbreviated(bare, language, before_number=first.isdigit())


def _is_closed(text: str, language: str) -> bool:
    """Whether a text ends with what closes a quotation or a bracket, and does not open one."""
    if not text or not is_closing(text[-1]):
        return False
    before = text[-2:-1]
    if before.isspace():
        return language == "fr" and text[-1] == "»"
    return not (unicodedata.category(text[-1]) == "Pi" and before and is_spaceless(before))


def _closes_next(mark: str, after: str, language: str) -> bool:
    """Whether what follows a mark closes a quotation or a bracket."""
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
