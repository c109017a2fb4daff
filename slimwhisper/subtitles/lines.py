"""Line breaks: at most two lines of 42 columns, broken where a reader would pause.

The limits are those of Netflix's timed-text style guides: 42 characters a line, 16 where they are
wide (Chinese, Japanese, Korean), two lines.
"""

from collections.abc import Sequence
from itertools import accumulate

from slimwhisper.subtitles.characters import columns, is_spaceless, is_wide, may_break
from slimwhisper.subtitles.endings import ends_sentence
from slimwhisper.subtitles.languages import words

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


def break_cost(before: str, after: str, language: str) -> float:
    """The cost of a line break between two words: 0 after a sentence, 6 after an article."""
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
    if language == "ja":  # a phrase usually ends with hiragana, and the next one begins without
        last, first = map(_is_hiragana, (before.rstrip()[-1:], after.lstrip()[:1]))
        return 2.0 if last and not first else 4.0 if first == last else 5.0
    leading = words("leading", language)
    if before.strip().lower() in leading:
        return 6.0
    return 2.0 if after.strip().lower() in leading else 3.0


def _is_hiragana(character: str) -> bool:
    return "ぁ" <= character <= "ゟ"


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
    best, second_start = float("inf"), 0
    for i in range(1, len(units)):
        first = columns("".join(units[:i]).strip())
        second = columns("".join(units[i:]).strip())
        if first <= limit and second <= limit:
            # a wider second line is easier to read than a wider first one
            uneven = abs(second - first) / limit + (0.1 if first > second else 0.0)
            cost = 5 * uneven + break_cost(units[i - 1], units[i], language)
            if cost < best:
                best, second_start = cost, i
    if second_start:
        return [0, second_start]
    starts = [0]
    for i in range(1, len(units)):
        if ends[i] - (ends[starts[-1] - 1] if starts[-1] else 0) > limit:
            starts.append(i)
    return starts
