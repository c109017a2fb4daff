"""Word errors of a checkpoint: python -m recipes.digits.evaluate CHECKPOINT FSDD

On sequences of each speaker's test recordings.
"""

import argparse
from pathlib import Path

import jiwer
import numpy as np
from numpy.random import Generator

import slimwhisper
from recipes.digits.sequences import SpokenDigit, arrange, spelled
from recipes.digits.voices import RATE, Samples, Word, fsdd_recordings, fsdd_words
from slimwhisper import SlimWhisper

WINDOW = 30  # seconds


def joined(
    rng: Generator, words: list[Word], count: int, seconds: float | None = WINDOW
) -> tuple[Samples, list[SpokenDigit]]:
    """`count` random words with random gaps and pauses, starting within the first second: the
    audio, and the truth.

    They are placed in `seconds` of audio with faint noise, as from a microphone; None: as long as
    needed.
    """
    chosen = [words[i] for i in rng.integers(len(words), size=count)]
    pieces = [piece / max(float(np.abs(piece).max()), 1e-6) * 0.5 for _, piece in chosen]
    begin, pauses = rng.uniform(0, 1), rng.uniform(0.05, 0.9)
    times = arrange(rng, [len(piece) / RATE for piece in pieces], begin, pauses)
    seconds = times[-1][1] + 0.5 if seconds is None else seconds
    audio = rng.standard_normal(round(seconds * RATE), dtype=np.float32) * 3e-4
    for piece, (start, _) in zip(pieces, times, strict=True):
        audio[round(start * RATE) :][: len(piece)] += piece  # raises if it does not fit
    return audio, [SpokenDigit(digit, *at) for (digit, _), at in zip(chosen, times, strict=True)]


def word_errors(
    model: SlimWhisper, words: list[Word], count: int, seconds: float | None = WINDOW
) -> float:
    """Percent of the words that are wrong in sequences of 1 to 12 digits in `seconds` of audio;
    None: as long as they are.
    """
    rng = np.random.default_rng(7)
    made = [joined(rng, words, int(rng.integers(1, 13)), seconds) for _ in range(count)]
    found = [model.transcribe(audio).text for audio, _ in made]
    return round(100 * jiwer.wer([spelled(said) for _, said in made], found), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("--count", type=int, default=100, help="sequences, of a speaker")
    parser.add_argument("--short", action="store_true", help="recordings end with the last word")
    args = parser.parse_args()
    model, rates = slimwhisper.load_model(args.checkpoint), list[float]()
    for speaker in sorted({who for _, _, who, _ in fsdd_recordings(args.fsdd)}):
        words = fsdd_words(args.fsdd, test=True, speaker=speaker)
        rates.append(word_errors(model, words, args.count, None if args.short else WINDOW))
        print(f"{speaker}: {rates[-1]} % of the words wrong", flush=True)
    print(f"mean: {np.mean(rates):.2f} %")


if __name__ == "__main__":
    main()
