"""The commit policy: which text of an update is final while speech continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

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


@dataclass(frozen=True, slots=True)
class PartialText:
    """The input of a policy: an update's text after the tokens committed before it."""

    words: Sequence[TextPiece]
    previous: Sequence[TextPiece]  # the same of the update before
    attended: Sequence[int]  # the position that each token of `words` attends to most
    positions: int  # number of encoder positions that hold audio


def committable(update: PartialText) -> int:
    """How many words can be committed, by AlignAtt (Papi et al., arXiv 2305.11408): those before
    the first one that attends to the newest audio, as its sound may not be complete, or far back: a
    loop. A word that the update before has at the same place, but for case and punctuation, is
    trusted earlier, which is from LocalAgreement (Macháček et al., arXiv 2307.14743).
    """
    before = filter(None, map(_letters, update.previous))
    attended, latest = iter(update.attended), 0
    for index, word in enumerate(update.words):
        letters = _letters(word)
        known = not letters or next(before, None) == letters
        end = update.positions - (KNOWN_MARGIN if known else NEW_MARGIN)
        for position in islice(attended, len(word.tokens)):
            if position >= end or position < latest - REWIND_FRAMES:
                return index
            latest = max(latest, position)
    return len(update.words)


def _letters(word: TextPiece) -> str:
    return "".join(filter(str.isalnum, word.text.casefold()))


def most_attended(attention: Tensor) -> list[int]:
    """[n, p] floating, of n tokens -> the position that each attends to most, n."""
    positions: list[int] = attention.argmax(dim=-1).tolist()
    return positions
