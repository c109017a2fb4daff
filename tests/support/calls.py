"""A telephone call for tests: two people, each on a channel of their own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slimwhisper.types import SAMPLE_RATE
from tests.support.spoken import WORDS, spoken_words


@dataclass(frozen=True, slots=True)
class Call:
    audio: NDArray[np.float32]  # [2, n], 16 kHz
    words: list[tuple[int, str]]  # channel and word, in order of time

    def said(self, channel: int) -> list[str]:
        return [word for number, word in self.words if number == channel]


def call(turns: int = 6, digits: int = 3, pause: float = 0.6, seed: int = 3) -> Call:
    """People who take turns of some digits, with pauses in seconds between them."""
    rng, known = np.random.default_rng(seed), spoken_words()
    silence = np.zeros((2, round(pause * SAMPLE_RATE)), np.float32)
    pieces, words = [silence], []
    for turn in range(turns):
        channel = turn % 2
        for i in rng.choice(len(known), digits):
            digit, sound = known[i]
            piece = np.zeros((2, len(sound) + 3_200), np.float32)
            piece[channel, : len(sound)] = sound
            pieces.append(piece)
            words.append((channel, WORDS[digit]))
        pieces.append(silence)
    return Call(np.concatenate(pieces, axis=1), words)
