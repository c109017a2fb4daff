"""Conversations with a known truth, joined from recordings of digits: who speaks when, and what;
and the word errors of a transcript.

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
from slimwhisper.speakers.turns import Turn
from slimwhisper.types import SAMPLE_RATE

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GAP = (0.05, 0.2)  # seconds between the digits of a turn
NOISE = 3e-4  # the floor, of full scale


@dataclass(frozen=True, slots=True)
class Manner:
    """How people talk: ranges that are drawn from."""

    name: str
    digits: tuple[int, int]  # of a turn
    pause: tuple[float, float]  # seconds between turns
    share: float | None = None  # of the turns that one person has, about; None: an equal one


CALM = Manner("phrases", (3, 8), (0.4, 1.2))
HASTY = Manner("short turns, short pauses", (1, 3), (0.1, 0.4))
UNEVEN = Manner("one speaks most", (3, 8), (0.4, 1.2), share=0.8)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A word of the truth."""

    word: str
    start: float  # seconds
    end: float
    speaker: str


@dataclass(frozen=True, slots=True)
class Conversation:
    audio: NDArray[np.float32]  # [n], 16 kHz
    turns: list[Turn]
    words: list[Spoken]


class Digits:
    """The recordings of a folder, by speaker and digit."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
        for path in sorted(folder.glob("[0-9]_*_*.wav")):
            digit, speaker, _ = path.stem.split("_")
            self._files[speaker][int(digit)].append(path)
        self.speakers = sorted(self._files)

    def read(
        self, speaker: str, digit: int, rng: np.random.Generator, reference: bool = False
    ) -> NDArray[np.float32]:
        """One of a speaker's recordings of a digit [n], at an even level. `reference`: of those
        that conversations leave out, the first five.
        """
        files = self._files[speaker][digit]
        chosen = files[:5] if reference else files[5:]
        sound = load_audio(chosen[rng.integers(len(chosen))])
        return sound * np.float32(0.3 / max(np.abs(sound).max(), 1e-3))


def converse(
    digits: Digits, speakers: int, turns: int, seed: int, manner: Manner = CALM
) -> Conversation:
    """A conversation of `speakers` people, chosen at random, who all speak."""
    rng = np.random.default_rng([speakers, seed])
    people = [str(name) for name in rng.permutation(digits.speakers)[:speakers]]
    order = [str(name) for name in rng.permutation(people)]
    while len(order) < turns:
        order.append(_next(people, order[-1], manner, rng))
    at, pieces, truth, words = 0.5, list[tuple[float, NDArray[np.float32]]](), [], []
    for name in order:
        first = at
        for digit in map(
            int, rng.integers(0, 10, rng.integers(manner.digits[0], manner.digits[1] + 1))
        ):
            sound = digits.read(name, digit, rng)
            end = at + len(sound) / SAMPLE_RATE
            pieces.append((at, sound))
            words.append(Spoken(WORDS[digit], at, end, name))
            at = end + rng.uniform(*GAP)
        truth.append(Turn(first, words[-1].end, name))
        at = words[-1].end + rng.uniform(*manner.pause)
    audio = NOISE * rng.standard_normal(round(at * SAMPLE_RATE), dtype=np.float32)
    for start, sound in pieces:
        where = round(start * SAMPLE_RATE)
        audio[where : where + len(sound)] += sound
    return Conversation(audio, _joined(truth), words)


def _next(people: list[str], last: str, manner: Manner, rng: np.random.Generator) -> str:
    """Who speaks after `last`: the first of them with the chance `share`, else another."""
    if manner.share is not None and rng.uniform() < manner.share:
        return people[0]
    return str(rng.choice([name for name in people if name != last] or people))


def _joined(turns: list[Turn]) -> list[Turn]:
    """Turns of one person with less than half a second between them are one."""
    joined = turns[:1]
    for turn in turns[1:]:
        before = joined[-1]
        if before.speaker == turn.speaker and turn.start - before.end < 0.5:
            joined[-1] = Turn(before.start, turn.end, turn.speaker)
        else:
            joined.append(turn)
    return joined


def reference(digits: Digits, speaker: str, seed: int, count: int = 20) -> NDArray[np.float32]:
    """A reference recording [n] of a speaker: `count` digits that no conversation has."""
    rng = np.random.default_rng([count, seed])
    gap = np.zeros(round(0.1 * SAMPLE_RATE), np.float32)
    sounds = [digits.read(speaker, i % 10, rng, reference=True) for i in range(count)]
    audio = np.concatenate([part for sound in sounds for part in (sound, gap)])
    return audio + NOISE * rng.standard_normal(len(audio), dtype=np.float32)


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
