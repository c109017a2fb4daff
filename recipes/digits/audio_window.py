"""Teaches `digits` short windows: python -m recipes.digits.audio_window CHECKPOINT FOLDER

The windows are as long as their audio, and the states those of the checkpoint for windows of 30 s
(`recipes.audio_window.match`). FOLDER has the words.pt of `train`; it gets short.pt, and
short.state, from which a stopped run resumes.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator

from recipes.audio_window.match import (
    Batch,
    blend,
    fit,
    padded,
    random_length,
    random_seconds,
    read,
    write,
)
from recipes.digits.sequences import TOKEN_IDS, Composer
from recipes.digits.voices import Bank

POSITIONS = 3000  # of the encoder in a batch, together; times --larger
MOST = 8  # windows in a batch; times --larger
SHORTEST = 0.5  # seconds
PLACEHOLDER = 0  # for a token that the model does not know


def batch(composer: Composer, rng: Generator, larger: int = 1) -> Batch:
    """Windows with one length, from 1 to 30 s; short ones are more frequent. larger: how many times
    the usual number of windows.
    """
    ids = [*TOKEN_IDS, PLACEHOLDER]
    seconds = random_seconds(rng)
    windows = []
    for _ in range(larger * int(np.clip(POSITIONS // (50 * seconds), 2, MOST))):
        length = max(random_length(rng, seconds), SHORTEST)
        window = composer.window(rng, length, anywhere=False)
        mel = torch.zeros(80, 3000)
        mel[:, : window.mel.shape[1]] = window.mel
        windows.append((mel, [ids[token] for token in composer.reply(rng, window).tokens]))
    mels, texts = zip(*windows, strict=True)
    return Batch(torch.stack(mels), seconds, *padded(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of this recipe, in OpenAI's format")
    parser.add_argument("folder", type=Path, help="with words.pt; where the result is written")
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--real", type=float, default=0.6, help="share of windows of real speech")
    parser.add_argument("--share", type=float, default=0.75, help="of new weights [0.75]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="processes that make the windows")
    parser.add_argument("--larger", type=int, default=1, help="times the windows in a batch [1]")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    # the bundled model has not heard those people, so that they can test it
    composer = Composer(Bank.load(args.folder / "words.pt"), args.real, people=False)

    def batch_of(step: int) -> Batch:
        return batch(composer, np.random.default_rng((args.seed, step)), args.larger)

    state = args.folder / "short.state"
    teacher = read(args.checkpoint).to(args.device)
    student = fit(teacher, batch_of, args.steps, args.rate, state, args.workers)
    write(blend(student, teacher, args.share), state.with_suffix(".pt"))


if __name__ == "__main__":
    main()
