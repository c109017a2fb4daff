"""Recordings joined into conversations; and the word errors of a transcript."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.load import load_audio
from slimwhisper.audio_formats.names import AUDIO_SUFFIXES
from slimwhisper.types import SAMPLE_RATE

PAUSE = np.zeros(SAMPLE_RATE, np.float32)  # after each recording
SPACELESS = r"[\u3040-\u30ff\u3400-\u9fff]"  # characters that count as words


@dataclass(frozen=True, slots=True)
class Spoken:
    """A word of the truth."""

    word: str
    end: float  # seconds


def joined(folder: Path, count: int, seconds: float) -> list[NDArray[np.float32]]:
    """Conversations [n] at 16 kHz, of that length at most: the folder's recordings, each time from
    another one on.
    """
    paths = sorted(p for p in folder.iterdir() if p.suffix in AUDIO_SUFFIXES)
    sounds = [np.concatenate([load_audio(path), PAUSE]) for path in paths]
    return [
        np.concatenate([*sounds[first:], *sounds[:first]])[: round(seconds * SAMPLE_RATE)]
        for first in range(min(count, len(sounds)))
    ]


def words_of(text: str) -> list[str]:
    """A text's words without case and punctuation."""
    return re.findall(rf"{SPACELESS}|(?:(?!{SPACELESS})\w)+", text.lower())


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
