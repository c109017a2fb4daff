"""The commit policy: which text of an update is final while speech continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

# encoder positions of 20 ms at the end of the audio: a word that attends to them is not committed
KNOWN_MARGIN = 20  # if the update before had it too
NEW_MARGIN = 40
REWIND_FRAMES = 50  # one second; not in the paper. Words that overlap in time go back less


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A word, or a punctuation mark, as the tokenizer splits texts."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  # the tokens'


def committable(
    words: Sequence[TextPiece], previous: Sequence[TextPiece], attended: list[int], positions: int
) -> int:
    """How many words can be committed, by AlignAtt (Papi et al., arXiv 2305.11408): those before
    the first one that attends to the newest audio, as its sound may not be complete, or far back: a
    loop. A word that the update before has at the same place, but for case and punctuation, is
    trusted earlier, which is from LocalAgreement (Macháček et al., arXiv 2307.14743).

    Arguments:
        words: an update's text after the tokens committed before it.
        previous: the same of the update before.
        attended: the encoder position that each token of `words` attends to most.
        positions: the number of them that hold audio.
    """
    before = filter(None, (letters_of(word.text) for word in previous))
    rest, latest = iter(attended), 0
    for index, word in enumerate(words):
        letters = letters_of(word.text)
        known = not letters or next(before, None) == letters
        end = positions - (KNOWN_MARGIN if known else NEW_MARGIN)
        for position in islice(rest, len(word.tokens)):
            if position >= end or position < latest - REWIND_FRAMES:
                return index
            latest = max(latest, position)
    return len(words)


def letters_of(word: str) -> str:
    """A word without case and punctuation."""
    return "".join(filter(str.isalnum, word.casefold()))
