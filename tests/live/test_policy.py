"""When text is committed, and where a full buffer is cut: hypotheses and attention made by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from slimwhisper.engine.requests import Alignment
from slimwhisper.live import policy
from slimwhisper.live.mel import LiveMel
from slimwhisper.live.policy import BufferCut, TextPiece, choose_cut, committable
from tests.support.tones import vocabulary


def attend(attended: list[int], positions: int = 500, before: str = "a bcd e") -> int:
    words = [TextPiece(" a", (1,)), TextPiece(" bcd", (2, 3)), TextPiece(" e", (4,))]
    previous = [TextPiece(f" {word}", (1,)) for word in before.split()]
    return committable(words, previous, attended, positions)


def test_words_that_attend_to_the_end_or_go_back_wait() -> None:
    last, rewind = 500 - policy.KNOWN_MARGIN, policy.REWIND_FRAMES
    for attended, count in (
        *(([10, 20, 30, 40], 3), ([10, 20, 30, last], 2), ([10, 20, 30, last - 1], 3)),
        *(([10, 20, last, 40], 1), ([499, 20, 30, 40], 0)),  # a part of the word does
        *(([100, 200, 210, 200 - rewind], 2), ([100, 200, 210, 211 - rewind], 3)),
    ):
        assert attend(attended) == count, attended


def test_new_words_wait_longer() -> None:
    """Those that the update before did not have at their places, but for case and punctuation."""
    new = 500 - policy.NEW_MARGIN
    for before, count in (("a bcd e", 3), ("A, Bcd. ... e!", 3), ("a bce e", 1), ("bcd e", 1)):
        assert attend([10, new, new, new], before=before) == count, before
        assert attend([10, new - 2, new - 1, new - 1], before=before) == 3, "a name, at last"


TOKENIZER = vocabulary().tokenizer("en")
BEFORE = 2


def buffer(quiet: Sequence[float]) -> LiveMel:
    """Ten seconds of noise, quieter for 0.1 s around these times."""
    rng = np.random.default_rng(0)
    sound = (0.1 * rng.standard_normal(160_000)).astype(np.float32)
    for rank, at in enumerate(quiet):
        sound[round((at - 0.05) * 16_000) : round((at + 0.05) * 16_000)] *= 0.3 / (rank + 1)
    mel = LiveMel(80, 1500)
    mel.append(sound)
    return mel


def aligned(words: str, starts: Sequence[float]) -> Alignment:
    """Words of one token, each of which attends from its start to the next one's."""
    tokens = TOKENIZER.encode(f" {words}")
    assert len(tokens) == len(starts)
    scores = torch.zeros(1, BEFORE + len(tokens) + 1, 500)
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], 10.0], strict=True)):
        scores[0, BEFORE - 1 + number, round(start * 50) : round(stop * 50)] = 9
    scores[0, BEFORE - 1 + len(tokens), 490:] = 9
    return Alignment(tuple(tokens), BEFORE, scores, (0.9,) * len(tokens))


def cut(words: str, starts: Sequence[float], committed: int, quiet: Sequence[float]) -> BufferCut:
    return choose_cut(aligned(words, starts), committed, buffer(quiet), 1000, TOKENIZER)


WORDS, STARTS = "one two three four five six", (0.0, 2.0, 4.0, 5.5, 7.0, 8.5)


@pytest.mark.parametrize(
    ("words", "committed", "quiet", "tokens", "at"),
    [
        (WORDS, 4, (4.0, 5.5), 3, 5.5),  # the quieter of two places
        (WORDS, 4, (5.5, 4.0), 2, 4.0),
        (WORDS, 4, (2.0, 4.0, 8.5), 2, 4.0),  # not in the first quarter, not where it is open
        ("one two three. Five six", 4, (7.0, 4.0), 4, 7.0),  # behind a sentence all the same
        (WORDS, 0, (4.0, 7.0), 4, 7.0),  # nothing is committed: so now something is
    ],
)
def test_where(words: str, committed: int, quiet: Sequence[float], tokens: int, at: float) -> None:
    chosen = cut(words, STARTS, committed, quiet)
    assert chosen.tokens == tokens and abs(chosen.frames / 100 - at) < 0.15


def test_neither_a_loop_nor_nothing_is_committed() -> None:
    """A loop is words that have no length."""
    assert cut(WORDS, (0.0, 3.0, 6.0, 6.0, 6.0, 8.0), 0, (3.0,)).tokens <= 3
    mel = buffer(())
    assert choose_cut(None, 0, mel, 1000, TOKENIZER) == BufferCut(0, mel.complete)
