"""The words of `samples/`, single and joined: speech for tests, with its true text and times."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slimwhisper
from recipes.digits.voices import RATE, WORDS
from tests.support.paths import SAMPLES as SAMPLES

EXPECTED: dict[str, dict[str, Any]] = json.loads((SAMPLES / "expected.json").read_text())
LONG = "three-minutes.ogg"


@cache
def spoken_words() -> list[tuple[int, np.ndarray]]:
    """(digit, float32 samples) of each word, cut out of its recording."""
    found = []
    for name, truth in EXPECTED.items():
        audio = slimwhisper.load_audio(SAMPLES / name)
        for segment in truth["segments"]:
            for word in segment["words"]:
                piece = audio[round(word["start"] * RATE) : round(word["end"] * RATE)]
                found.append((WORDS.index(word["text"]), piece))
    return found


def single_words(step: int = 3) -> list[tuple[int, np.ndarray]]:
    """Every `step`th word, with a little silence around it."""
    edge = np.zeros(RATE // 10, np.float32)
    return [(d, np.concatenate([edge, piece, edge])) for d, piece in spoken_words()[::step]]


def joined(parts: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Words one after the other with pauses of 0.1 to 0.8 s."""
    pieces = []
    for part in parts:
        pieces += [np.zeros(int(rng.uniform(0.1, 0.8) * RATE), np.float32), part]
    return np.concatenate(pieces)


def sequence(count: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """`count` random words, joined; what they say, and the audio."""
    words = spoken_words()
    chosen = rng.integers(len(words), size=count)
    return [WORDS[words[i][0]] for i in chosen], joined([words[i][1] for i in chosen], rng)


@dataclass(frozen=True, slots=True)
class Call:
    """A telephone call of two people, each on a channel of their own."""

    audio: NDArray[np.float32]  # [2, n], 16 kHz
    words: list[tuple[int, str]]  # channel and word, in order of time

    def said(self, channel: int) -> list[str]:
        return [word for number, word in self.words if number == channel]


def call(turns: int = 6, digits: int = 3, pause: float = 0.6, seed: int = 3) -> Call:
    """People who take turns of some digits, with pauses in seconds between them."""
    rng, known = np.random.default_rng(seed), spoken_words()
    silence = np.zeros((2, round(pause * RATE)), np.float32)
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
