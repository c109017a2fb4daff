"""Teaches `digits` short windows: python -m recipes.digits.audio_window CHECKPOINT FOLDER

The windows are as long as their audio, and the states those of the checkpoint for windows of 30 s
(`recipes.audio_window.match`). FOLDER has the words.pt of `train`; it gets short.pt.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from recipes.audio_window.match import Batch, fit, padded, read, write
from recipes.digits.sequences import TOKEN_IDS, Composer
from recipes.digits.voices import Bank

POSITIONS = 3000  # of the encoder in a batch, together
MOST = 16  # windows in a batch
WHOLE = 0.2  # share of the batches with windows of 30 s, which stay as they are
PLACEHOLDER = 0  # for a token that the model does not know


def batches(composer: Composer, seed: int) -> Iterator[Batch]:
    """Batches of windows with one length, from 1 to 30 s; short ones are more frequent."""
    ids = np.array([*TOKEN_IDS, PLACEHOLDER])
    rng = np.random.default_rng(seed)
    while True:
        seconds = 30 if rng.random() < WHOLE else int(np.exp(rng.uniform(0, np.log(30))))
        count = int(np.clip(POSITIONS // (50 * seconds), 2, MOST))
        windows = []
        for _ in range(count):
            length = seconds - rng.uniform(0, 1) if rng.random() < 0.7 else float(seconds)
            window = composer.window(rng, max(length, 0.3), anywhere=False)
            mel = torch.zeros(80, 3000)
            mel[:, : window.mel.shape[1]] = window.mel
            windows.append((mel, [int(ids[t]) for t in composer.reply(rng, window).tokens]))
        mels, texts = zip(*windows, strict=True)
        yield Batch(torch.stack(mels), seconds, *padded(list(texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of this recipe, in OpenAI's format")
    parser.add_argument("folder", type=Path, help="with words.pt; where the result is written")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--real", type=float, default=0.6, help="share of windows of real speech")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    # the bundled model has not heard those people, so that they can test it
    composer = Composer(Bank.load(args.folder / "words.pt"), args.real, people=False)
    student = fit(read(args.checkpoint), batches(composer, args.seed), args.steps, args.rate)
    write(student, args.folder / "short.pt")


if __name__ == "__main__":
    main()
