"""Commit policies: which text of an update is final while speech continues.

A policy is a pure function of words and attention, and returns how many words of an update's new
text to commit; `COMMITS` lists them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

# encoder positions of 20 ms: the default `frame_threshold` of SimulStreaming, Simul-Whisper's
# successor (github.com/ufal/SimulStreaming)
ALIGNATT_FRAMES = 25
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


def agreement(update: PartialText) -> int:
    """LocalAgreement-2 (Macháček et al., arXiv 2307.14743): the prefix that two updates share."""
    pairs = enumerate(zip(update.words, update.previous, strict=False))
    shorter = min(len(update.words), len(update.previous))
    return next((i for i, (a, b) in pairs if a.text != b.text), shorter)


def alignatt(update: PartialText) -> int:
    """AlignAtt (Papi et al., arXiv 2305.11408): the words before the first token that attends to
    the last `ALIGNATT_FRAMES` positions, whose sound may not be complete, or far back: a loop.
    """
    token_index, latest = 0, 0
    for index, word in enumerate(update.words):
        for position in update.attended[token_index : token_index + len(word.tokens)]:
            if position >= update.positions - ALIGNATT_FRAMES or position < latest - REWIND_FRAMES:
                return index
            latest = max(latest, position)
        token_index += len(word.tokens)
    return len(update.words)


def most_attended(attention: Tensor) -> list[int]:
    """[n, p] floating, of n tokens -> the position that each attends to most, n."""
    positions: list[int] = attention.argmax(dim=-1).tolist()
    return positions


COMMITS: dict[str, Callable[[PartialText], int]] = {"agreement": agreement, "alignatt": alignatt}
NEED_ATTENTION = ("alignatt",)
