"""When text is committed: hypotheses made by hand, and plain definitions."""

import random

from slimwhisper.live.policy import (
    ALIGNATT_FRAMES,
    REWIND_FRAMES,
    Piece,
    Update,
    agreement,
    alignatt,
)


def pieces(text: str) -> list[Piece]:
    return [Piece(f" {w}", tuple(range(len(w)))) for w in text.split()]


def agree(before: str, now: str) -> int:
    return agreement(Update(pieces(now), pieces(before), [], 0))


def test_agreement_is_the_longest_common_prefix() -> None:
    rng = random.Random(0)
    for _ in range(200):
        a, b = (" ".join(rng.choices("ab", k=rng.randrange(6))) for _ in range(2))
        plain = max(
            n
            for n in range(7)
            if a.split()[:n] == b.split()[:n] and n <= min(len(a.split()), len(b.split()))
        )
        assert agree(a, b) == plain
    assert agree("we will see", "we will sea") == 2
    assert agree("under", "understand") == 0
    assert agree("We will", "we will") == 0  # as in whisper_streaming, letters must be the same


def attend(attended: list[int], positions: int = 500) -> int:
    words = [Piece(" a", (1,)), Piece(" bcd", (2, 3)), Piece(" e", (4,))]
    return alignatt(Update(words, [], attended, positions))


def test_words_that_attend_to_the_end_or_go_back_wait() -> None:
    assert attend([10, 20, 30, 40]) == 3
    last = 500 - ALIGNATT_FRAMES
    assert attend([10, 20, 30, last]) == 2
    assert attend([10, 20, 30, last - 1]) == 3
    assert attend([10, 20, last, 40]) == 1  # a part of the word does
    assert attend([499, 20, 30, 40]) == 0
    assert attend([0, 0, 0, 0], 25) == 0
    # and words that go back
    assert attend([100, 200, 210, 200 - REWIND_FRAMES]) == 2
    assert attend([100, 200, 210, 211 - REWIND_FRAMES]) == 3
