"""Conversations with a known truth, joined from recordings of digits: when which word ends; and the
word errors of a transcript.

A turn is a phrase of a few digits by one person. The recordings are those of the Free Spoken Digit
Dataset: files DIGIT_SPEAKER_NUMBER.wav.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.load import load_audio
from slimwhisper.types import SAMPLE_RATE

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GAP = (0.05, 0.2)  # seconds between the digits of a turn
DIGITS = (3, 8)  # of a turn
PAUSE = (0.4, 1.2)  # seconds between turns
NOISE = 3e-4  # the floor, of full scale


@dataclass(frozen=True, slots=True)
class Spoken:
    """A word of the truth."""

    word: str
    end: float  # seconds


@dataclass(frozen=True, slots=True)
class Conversation:
    audio: NDArray[np.float32]  # [n], 16 kHz
    words: list[Spoken]


class Digits:
    """The recordings of a folder, by speaker and digit."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
        for path in sorted(folder.glob("[0-9]_*_*.wav")):
            digit, speaker, _ = path.stem.split("_")
            self._files[speaker][int(digit)].append(path)
        self.speakers = sorted(self._files)

    def read(self, speaker: str, digit: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """One of a speaker's recordings of a digit [n], at an even level."""
        files = self._files[speaker][digit]
        sound = load_audio(files[rng.integers(len(files))])
        return sound * np.float32(0.3 / max(np.abs(sound).max(), 1e-3))


def converse(digits: Digits, turns: int, seed: int) -> Conversation:
    """A conversation of two people, chosen at random, in turns."""
    rng = np.random.default_rng([2, seed])
    people = rng.permutation(digits.speakers)[:2].tolist()
    at, pieces, words = 0.5, list[tuple[float, NDArray[np.float32]]](), list[Spoken]()
    for turn in range(turns):
        for digit in rng.integers(0, 10, rng.integers(DIGITS[0], DIGITS[1] + 1)).tolist():
            sound = digits.read(people[turn % 2], digit, rng)
            end = at + len(sound) / SAMPLE_RATE
            pieces.append((at, sound))
            words.append(Spoken(WORDS[digit], end))
            at = end + rng.uniform(*GAP)
        at = words[-1].end + rng.uniform(*PAUSE)
    audio = NOISE * rng.standard_normal(round(at * SAMPLE_RATE), dtype=np.float32)
    for start, sound in pieces:
        where = round(start * SAMPLE_RATE)
        audio[where : where + len(sound)] += sound
    return Conversation(audio, words)


def words_of(text: str) -> list[str]:
    """A text's words without case and punctuation."""
    return re.findall(r"\w+", text.lower())


def aligned(truth: Sequence[str], text: Sequence[str]) -> tuple[list[tuple[int, int]], int]:
    """The pairs of positions of words that are right, and the number of errors: the least number of
    words to insert, delete or replace.
    """
    if not truth or not text:
        return [], len(truth) + len(text)
    result = jiwer.process_words(" ".join(truth), " ".join(text))
    pairs = [
        (chunk.ref_start_idx + i, chunk.hyp_start_idx + i)
        for chunk in result.alignments[0]
        if chunk.type == "equal"
        for i in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]
    return pairs, result.substitutions + result.deletions + result.insertions
