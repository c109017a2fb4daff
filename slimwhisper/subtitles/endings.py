"""Sentence ends, by punctuation.

The rules follow Unicode's for sentence boundaries (UAX 29): a question mark ends a sentence, a full
stop does unless the next letter is lower case. Abbreviations, initials and ordinals are added.
"""

import re
import unicodedata

from slimwhisper.subtitles.characters import is_closing, is_spaceless
from slimwhisper.subtitles.languages import words

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
    if _closes_next(mark, after, language):
        return False
    if closed and following.startswith(_AFTER_QUOTE):
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
