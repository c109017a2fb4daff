"""Transcripts with words at seeded times, as a model would time them."""

import random
import tomllib
import unicodedata
from dataclasses import replace
from pathlib import Path

from slimwhisper.types import Segment, Word
from tests.support.scripted import segment

TEXTS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SPACELESS = ("ja", "zh", "th")


def width(text: str) -> int:
    """Columns, counted without the code that is tested."""
    marks = ("Mn", "Me", "Cf")
    return sum(
        0 if unicodedata.category(c) in marks else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def spoken(language: str, seconds: float, speed: float, seed: int) -> list[Word]:
    """Words of a text, repeated: `speed` columns a second on average, with pauses between some."""
    rng, words, now = random.Random(seed), [], 0.0
    while now < seconds:
        for text in _pieces(language, rng):
            length = max(1, width(text.strip())) / speed * rng.uniform(0.6, 1.4)
            words.append(Word(text, round(now, 2), round(now + length, 2), 0.9))
            now += length
            if text[-1] in "!?。！？؟।" or (text[-1] == "." and len(text) > 6):
                now += rng.choice((0.0, 0.05, 0.3, 0.9, 2.5))
            elif text[-1] in ",、，،":
                now += rng.choice((0.0, 0.0, 0.2, 0.5))
    return words


def _pieces(language: str, rng: random.Random) -> list[str]:
    if language not in SPACELESS:
        return [f" {word}" for word in TEXTS[language].split()]
    pieces: list[str] = []
    for character in TEXTS[language]:  # like Whisper's tokens
        joins = unicodedata.category(character)[0] in "MP" or rng.random() < 0.5
        if pieces and joins and len(pieces[-1]) < 4:
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


def in_segments(words: list[Word], each: int, speakers: int = 0) -> list[Segment]:
    """Segments of so many words, whatever the sentences; speakers take turns of five."""
    segments = []
    for first in range(0, len(words), each):
        part = words[first : first + each]
        number = len(segments)
        speaker = f"Speaker {number // 5 % speakers}" if speakers else None
        text = "".join(word.word for word in part)
        made = segment(number, 100 * number, part[0].start, part[-1].end, text, [number])
        made = replace(made, temperature=0.2 * (number % 3), avg_logprob=-0.1 * (number % 5))
        flags = ("improbable",) if number % 7 == 0 else ()
        segments.append(replace(made, words=part, speaker=speaker, flags=flags))
    return segments
