"""A transcript's segments as cues: their times, speakers and lines, at most two of 42 columns that
are broken where a reader would pause; and where sentences end.

The limits are those of Netflix's timed-text style guides: 42 characters a line, 16 where they are
wide (Chinese, Japanese, Korean), two lines. The ends of sentences follow Unicode's rules (UAX 29):
a question mark ends a sentence, a full stop does unless the next letter is lower case.
Abbreviations, initials and ordinals are added. languages.toml has each language's words.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import Any

from slimwhisper.types import NOT_IN_AUDIO, Segment, Transcript, Word


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
            katakana = all("ァ" <= c <= "ヿ" for c in (before[-1:], after[:1]))
            cost = 4.0 if end in phrases else 10.0 if katakana else 7.0
        costs.append(cost)
    return costs


_ANYWHERE = 3.0  # the cost of a break of which nothing is known
# its parser for each language
_BUDOUX = {"ja": "japanese", "th": "thai", "yue": "traditional_chinese", "zh": "simplified_chinese"}


def _phrase_starts(text: str, language: str) -> frozenset[int]:
    """Where the phrases of a text begin, in languages without spaces; none in others."""
    if language not in _BUDOUX:
        return frozenset()
    return frozenset(accumulate(map(len, _parser(_BUDOUX[language]).parse(text))))


@cache
def _parser(name: str) -> Any:
    import budoux

    return getattr(budoux, f"load_default_{name}_parser")()


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


MIN_CUE = 0.05  # seconds, more than a frame of a film: players do not show what has no length
SHORTEST = 0.019  # seconds that are a length: all formats have two hundredths


@dataclass(frozen=True, slots=True)
class Cue:
    """A segment, ready to write."""

    start: float  # seconds
    end: float
    speaker: str | None
    label: str  # of the speaker, if it changes and labels are requested; else empty
    plain: list[Word]  # each line but the first begins with "\n", in place of a space
    timed: bool  # the words' times are known

    @property
    def text(self) -> str:
        """Without the speaker."""
        return "".join(word.word for word in self.plain)

    @property
    def words(self) -> list[Word]:
        """The words with times in order, and within the cue's."""
        words: list[Word] = []
        last = self.start
        for word in self.plain:
            start = min(max(word.start, last), self.end)
            last = min(max(word.end, start), self.end)
            words.append(replace(word, start=start, end=last))
        return words


def label(speaker: str | None) -> str:
    """The text before the words of a speaker, "NAME: "."""
    return "" if speaker is None else f"{' '.join(speaker.split())}: "


def shown(transcript: Transcript) -> Transcript:
    """The transcript as players can show it: each word and segment has a length. What had none
    takes `MIN_CUE`, of the pause after it or of the words around it, and is not later than the last
    of them; or it is left out, if it has no text, or is not in the audio.
    """
    spoken = (s for s in transcript.segments if NOT_IN_AUDIO not in s.flags)
    segments = [s for s in spoken if s.text.strip() or s.end - s.start >= SHORTEST]
    parts: list[Sequence[Any]] = [s.words or [s] for s in segments]
    times = iter(_lengthened([(part.start, part.end) for group in parts for part in group]))
    apart = [before.end <= after.start for before, after in pairwise(segments)]
    for i, (segment, group) in enumerate(zip(segments, parts, strict=True)):
        new = [replace(part, start=a, end=b) for part, (a, b) in zip(group, times, strict=False)]
        if not segment.words:
            segments[i] = new[0]
        elif new != segment.words:
            start = new[0].start if segment.start == group[0].start else segment.start
            end = new[-1].end if segment.end == group[-1].end else segment.end
            segments[i] = replace(segment, start=start, end=max(end, start + MIN_CUE), words=new)
    for i in compress(range(len(apart)), apart):
        segments[i] = replace(segments[i], end=min(segments[i].end, segments[i + 1].start))
    return replace(transcript, segments=segments)


def _lengthened(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Starts and ends of which each has a length; those that did not overlap do not."""
    new: list[tuple[float, float]] = []
    for i, (earliest, end) in enumerate(times):
        start = max(earliest, new[-1][1]) if i and times[i - 1][1] <= earliest else earliest
        new.append((start, end if end - start >= SHORTEST else round(start + MIN_CUE, 3)))
    least = MIN_CUE * sum(end - start < SHORTEST for start, end in times)
    longest = max(max((end for _, end in times), default=0.0), least)
    for i in reversed(range(len(new))):  # back from the end
        start, end = new[i]
        apart = i + 1 < len(new) and times[i][1] <= times[i + 1][0]
        latest = new[i + 1][0] if apart else longest
        if end > latest:
            new[i] = max(round(min(start, latest - MIN_CUE), 3), 0.0), latest
    return new


def to_cues(transcript: Transcript, *, broken: bool, labelled: bool = False) -> Iterator[Cue]:
    """The segments with text, as cues.

    Arguments:
        broken: in lines of 42 columns; else in one line.
        labelled: with a label in the first line, before the words, where the speaker changes.
    """
    speaker = None
    for segment in shown(transcript).segments:
        if not (words := _words(segment)):
            continue
        changed = labelled and segment.speaker != speaker
        prefix, speaker = label(segment.speaker) if changed else "", segment.speaker
        if broken:
            words = _broken(words, prefix, transcript.text_language)
        yield Cue(segment.start, segment.end, speaker, prefix, words, timed=bool(segment.words))


def spread(texts: Sequence[str], word: Word) -> list[Word]:
    """Texts as words, which share the time of `word` by their widths."""
    widths = list(accumulate(max(1, columns(text)) for text in texts))
    times = [word.start + (word.end - word.start) * w / widths[-1] for w in (0, *widths)]
    pairs = zip(texts, pairwise(times), strict=True)
    return [replace(word, word=text, start=round(a, 2), end=round(b, 2)) for text, (a, b) in pairs]


def words_of(segment: Segment) -> list[Word]:
    """A segment's words; if it has none, the units of its text, with times by their widths."""
    if segment.words:
        return segment.words
    return spread(list(units(segment.text)), Word("", segment.start, segment.end, 0.0))


def _words(segment: Segment) -> list[Word]:
    """The words that are not blank, without line breaks."""
    words: list[Word] = []
    for word in words_of(segment) if segment.text.strip() else ():
        if text := " ".join(word.word.split()):
            space = " " if words and word.word[0].isspace() else ""
            words.append(replace(word, word=space + text))
    return words


def _broken(words: list[Word], prefix: str, language: str) -> list[Word]:
    """The words in lines. prefix: what comes before them in the first one."""
    units = [[words[0]]]  # words that stay on one line
    for word in words[1:]:
        if stay_on_line("".join(w.word for w in units[-1]), word.word):
            units[-1].append(word)
        else:
            units.append([word])
    texts = ["".join(w.word for w in unit) for unit in units]
    texts[0] = prefix + texts[0]
    for i in break_lines(texts, language)[1:]:
        units[i][0] = replace(units[i][0], word=f"\n{units[i][0].word.lstrip()}")
    return [word for unit in units for word in unit]
