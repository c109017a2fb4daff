"""Word errors of a checkpoint: python -m recipes.digits.evaluate CHECKPOINT FSDD

On sequences of each speaker's test recordings; ends in one line of JSON.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
from numpy.random import Generator

import slimwhisper
from recipes.digits.catalogue import PEOPLE
from recipes.digits.sequences import SpokenDigit, arrange, spelled
from recipes.digits.voices import (
    RATE,
    TEST_INDICES,
    Samples,
    fsdd_recordings,
    read,
    recorded,
    trimmed,
)
from slimwhisper import SlimWhisper

WINDOW = 30  # seconds


@dataclass(frozen=True)
class Recording:
    """Joined test recordings with the ground truth."""

    audio: Samples
    words: list[SpokenDigit]

    @property
    def text(self) -> str:
        return spelled(self.words)


def test_words(fsdd: Path, speaker: str | None = None) -> list[tuple[int, Samples]]:
    """(digit, samples [n]) of FSDD's test recordings, of one speaker or all."""
    return [
        (digit, trimmed(read(path)))
        for path, digit, who, index in fsdd_recordings(fsdd)
        if index in TEST_INDICES and speaker in (None, who)
    ]


def joined(
    rng: Generator,
    words: list[tuple[int, Samples]],
    count: int,
    seconds: float | None = WINDOW,
    lead: float = 1.0,
    pauses: float | None = None,
) -> Recording:
    """`count` random words with random gaps and pauses, starting within the first `lead` seconds.

    The gap between words is at most 0.35 s or, at the rate `pauses`, at least 0.6 s; None: a random
    rate. They are placed in `seconds` of audio with faint noise, as from a microphone; None: as
    long as needed.
    """
    chosen = [words[i] for i in rng.integers(len(words), size=count)]
    pieces = [piece / max(float(np.abs(piece).max()), 1e-6) * 0.5 for _, piece in chosen]
    lengths = [len(piece) / RATE for piece in pieces]
    begin, rate = rng.uniform(0, lead), rng.uniform(0.05, 0.9)
    times = arrange(rng, lengths, begin, rate if pauses is None else pauses)
    seconds = times[-1][1] + 0.5 if seconds is None else seconds
    audio = rng.standard_normal(round(seconds * RATE), dtype=np.float32) * 3e-4
    spoken = []
    for (digit, _), piece, (start, end) in zip(chosen, pieces, times, strict=True):
        at = round(start * RATE)
        assert at + len(piece) <= len(audio), "the words do not fit"
        audio[at : at + len(piece)] += piece
        spoken.append(SpokenDigit(digit, start, end))
    return Recording(audio, spoken)


def measure_words(
    model: SlimWhisper,
    count: int,
    speakers: Mapping[str, list[tuple[int, Samples]]],
    seconds: float | None = WINDOW,
) -> dict[str, object]:
    """Word error rate of each speaker on sequences of 1 to 12 digits in `seconds` of audio; None:
    as long as they are.
    """
    rates = {}
    for speaker, words in speakers.items():
        rng = np.random.default_rng(7)
        made = [joined(rng, words, int(rng.integers(1, 13)), seconds) for _ in range(count)]
        order = {id(r.audio): i for i, r in enumerate(made)}
        texts = [""] * count
        for audio, result in model.transcribe_many(r.audio for r in made):
            if isinstance(result, Exception):
                raise result
            texts[order[id(audio)]] = result.text
        wrong = jiwer.wer([r.text for r in made], texts)
        rates[speaker] = round(100 * wrong, 2)
        print(f"{speaker}: {rates[speaker]} % of the words wrong", flush=True)
    return {"word_error_percent": rates, "mean": round(float(np.mean(list(rates.values()))), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("--count", type=int, default=100, help="sequences, of a speaker")
    parser.add_argument("--speaker", help="this speaker's words alone")
    parser.add_argument("--people", action="store_true", help="catalogue.PEOPLE, unknown to digits")
    parser.add_argument("--short", action="store_true", help="recordings end with the last word")
    args = parser.parse_args()
    speakers = sorted({who for _, _, who, _ in fsdd_recordings(args.fsdd)})
    chosen = [args.speaker] if args.speaker else speakers
    words = {speaker: test_words(args.fsdd, speaker) for speaker in chosen}
    if args.people:
        words = {
            person: [(digit, trimmed(read(path))) for digit, path in recorded(person)]
            for person in PEOPLE
        }
    model, seconds = slimwhisper.load_model(args.checkpoint), None if args.short else WINDOW
    print(json.dumps(measure_words(model, args.count, words, seconds)))


if __name__ == "__main__":
    main()
