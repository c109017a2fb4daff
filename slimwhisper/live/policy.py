"""When text is final while the speech goes on: pure functions over words and attention.

A policy says how many words of an update's new text are committed; `COMMITS` lists them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

# encoder positions of 20 ms: the default `frame_threshold` of SimulStreaming, Simul-Whisper's
# successor (github.com/ufal/SimulStreaming)
ALIGNATT_FRAMES = 25
REWIND_FRAMES = 50  # ours: a second back; words that overlap in time go back less


@dataclass(frozen=True, slots=True)
class Piece:
    """A word, or a punctuation mark, as the tokenizer splits texts."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  # the tokens'


@dataclass(frozen=True, slots=True)
class Update:
    """What a policy judges: the text of an update after what was committed before."""

    words: Sequence[Piece]
    before: Sequence[Piece]  # the same of the last update
    attended: Sequence[int]  # the position that each token of `words` attends to most
    positions: int  # of the encoder, with audio


def agreement(update: Update) -> int:
    """LocalAgreement-2 (Macháček et al., arXiv 2307.14743): what two updates both begin with."""
    pairs = enumerate(zip(update.words, update.before, strict=False))
    shorter = min(len(update.words), len(update.before))
    return next((i for i, (a, b) in pairs if a.text != b.text), shorter)


def alignatt(update: Update) -> int:
    """AlignAtt (Papi et al., arXiv 2305.11408): the words before the first token that attends to
    the last `ALIGNATT_FRAMES` positions, whose sound may not be complete, or far back: a loop.
    """
    first, latest = 0, 0
    for number, word in enumerate(update.words):
        for position in update.attended[first : first + len(word.tokens)]:
            if position >= update.positions - ALIGNATT_FRAMES or position < latest - REWIND_FRAMES:
                return number
            latest = max(latest, position)
        first += len(word.tokens)
    return len(update.words)


def most_attended(attention: Tensor) -> list[int]:
    """[n, p] floating, of n tokens -> the position that each attends to most, n."""
    found: list[int] = attention.argmax(dim=-1).tolist()
    return found


COMMITS: dict[str, Callable[[Update], int]] = {"agreement": agreement, "alignatt": alignatt}
NEED_ATTENTION = ("alignatt",)
