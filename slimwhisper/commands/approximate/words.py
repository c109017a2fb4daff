"""Word and token errors: texts made alike, and the least number of edits between sequences."""

from collections.abc import Hashable, Sequence

import numpy as np

# written without spaces: their letters are compared, as in the Whisper paper (appendix C)
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")


def words_of(text: str, language: str) -> list[str]:
    """A text's words without case and punctuation, by `whisper.normalizers`' basic normalizer.

    Not the English one: it would write "one two three" as "123", so that one wrong digit would
    count as much as three.
    """
    from whisper.normalizers import BasicTextNormalizer

    return BasicTextNormalizer(split_letters=language in UNSPACED)(text).split()


def edits(truth: Sequence[Hashable], found: Sequence[Hashable]) -> int:
    """How many items to insert, delete or replace (Levenshtein), in O(len(truth)) numpy calls."""
    numbers = {item: i for i, item in enumerate({*truth, *found})}
    row = np.arange(len(found) + 1)
    columns = np.arange(len(found) + 1)
    theirs = np.array([numbers[item] for item in found], np.int64)
    for i, item in enumerate(truth):
        # deleting or replacing; then inserting: least of row[j'] + j - j' over j' <= j
        best = np.minimum(row[1:] + 1, row[:-1] + (theirs != numbers[item]))
        best = np.concatenate(([i + 1], best))
        row = np.minimum.accumulate(best - columns) + columns
    return int(row[-1])
