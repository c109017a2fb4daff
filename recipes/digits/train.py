"""Trains `digits`: python -m recipes.digits.train FSDD FOLDER

FSDD holds the Free Spoken Digit Dataset's WAV files. FOLDER gets the words of all voices, words.pt,
the checkpoint, digits.pt, and the states from which a stopped run resumes: digits-encoder.state,
then digits.state. README.md has the data, the times and the results.
"""

import argparse
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recipes.digits.model import Student, dimensions, disturbed
from recipes.digits.sequences import IGNORED, SOT, Composer, Window
from recipes.digits.voices import Bank, make_bank
from recipes.training import Batch, fit, save

# The encoder's windows: {seconds: windows per step}; the share of each from a part of training on.
WINDOWS = {6: 16, 12: 8, 30: 4}
MIX = ((0.0, (1, 0, 0)), (0.4, (0.4, 0.3, 0.3)), (0.7, (0.1, 0.2, 0.7)))
# The decoder's: windows of 30 s per step, how many of them are new, and how many outputs are kept.
REPLIES, NEW, KEPT = 16, 1, 5000
# the beginnings of the names of what is trained together
HALVES = {"encoder": ("encoder.", "digit_heads.", "edge_"), "decoder": ("decoder.", "rows")}
SHAPE = 128, (4, 4)  # the width; layers of the encoder and of the decoder
DISTURBED = 0.05  # share of the digits in the decoder's input that are replaced


def encoder_batch(composer: Composer, seed: int, steps: int, step: int) -> Batch:
    """Windows and their labels for one of so many steps.

    mel [B, 80, frames], labels [B, 3, frames / 2], edges [B, frames / 2], offsets [B].
    """
    rng = np.random.default_rng((seed, step))
    mix = next(shares for start, shares in reversed(MIX) if step / steps >= start)
    seconds = int(rng.choice(list(WINDOWS), p=mix))
    windows = [composer.window(rng, seconds) for _ in range(WINDOWS[seconds])]
    return {
        "mel": torch.stack([w.mel for w in windows]),
        "labels": torch.stack([w.labels for w in windows]),
        "edges": torch.stack([w.edges for w in windows]),
        "offsets": torch.tensor([round(w.offset * 50) for w in windows]),
    }


def encoded_windows(
    composer: Composer, student: Student, seed: int
) -> Callable[[int], tuple[Window, Tensor]]:
    """Windows of 30 s by number, and the encoder's output for each [1500, width] bfloat16, kept.

    With dropout: without it the encoder would be surer of these voices than of new ones. Window i
    is the same whenever it is made, so that a resumed run draws the same windows.
    """

    @lru_cache(maxsize=KEPT)
    def encoded(i: int) -> tuple[Window, Tensor]:
        window = composer.window(np.random.default_rng((seed, 2, i)), 30)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.random.fork_rng():
            torch.manual_seed(seed + i)  # for the dropout
            audio = student.encode(window.mel[None], torch.zeros(1, dtype=torch.long))
        return window, audio[0].bfloat16()

    return encoded


def decoder_batch(
    composer: Composer, encoded: Callable[[int], tuple[Window, Tensor]], seed: int, step: int
) -> Batch:
    """Replies to NEW new windows and to earlier ones, each with a new prompt.

    tokens [B, T], targets [B, T], spans [B, T, 2], padded to the longest, and the encoder's output,
    audio [REPLIES, 1500, width] bfloat16.
    """
    rng = np.random.default_rng((seed, 1, step))
    last = REPLIES + step * NEW
    earlier = rng.integers(max(last - KEPT, 0), last, REPLIES - NEW)
    drawn = [encoded(int(i)) for i in (*range(last - NEW, last), *earlier)]
    parts = zip(*(composer.reply(rng, window) for window, _ in drawn), strict=True)
    tokens, targets, spans = (
        pad_sequence([torch.tensor(row) for row in rows], True, value)
        for rows, value in zip(parts, (SOT, IGNORED, 0), strict=True)
    )
    generator = torch.Generator().manual_seed(seed + step)
    tokens = disturbed(tokens, targets, DISTURBED, generator)
    audio = torch.stack([audio for _, audio in drawn])
    return {"tokens": tokens, "targets": targets, "spans": spans, "audio": audio}


def make_optimizers(student: Student, half: str, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, convolutions, norms and biases.

    half: what they train, the "encoder" with its heads or the "decoder" with its embedding.
    """
    trained = [(n, p) for n, p in student.named_parameters() if n.startswith(HALVES[half])]
    matrices = [p for n, p in trained if p.ndim == 2 and ".blocks." in n]
    others = [p for n, p in trained if not (p.ndim == 2 and ".blocks." in n)]
    return [
        torch.optim.Muon(matrices, rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, rate / 2, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(args: argparse.Namespace) -> None:
    """First the encoder, with labels of its own; then the decoder, with the encoder frozen."""
    torch.manual_seed(args.seed)
    args.folder.mkdir(parents=True, exist_ok=True)
    words, state = args.folder / "words.pt", args.folder / f"{args.name}.state"
    if not words.exists():
        print(f"{words}: reading and speaking the words", flush=True)
        save(make_bank(args.fsdd)._asdict(), words)
    composer = Composer(Bank.load(words))
    student = Student(dimensions(*SHAPE))

    hear = partial(encoder_batch, composer, args.seed, args.hearing)
    first = state.with_stem(f"{args.name}-encoder")
    optimizers = make_optimizers(student, "encoder", args.rate)
    student = fit(student, optimizers, student.hearing_losses, hear, args.hearing, first)
    encoded = encoded_windows(composer, student.train(), args.seed)

    say = partial(decoder_batch, composer, encoded, args.seed)
    optimizers = make_optimizers(student, "decoder", args.rate)
    student = fit(student, optimizers, student.saying_losses, say, args.saying, state)
    save(student.checkpoint(), state.with_suffix(".pt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--name", default="digits", help="of the checkpoint [digits]")
    parser.add_argument("--hearing", type=int, default=5000, help="the encoder's steps [5000]")
    parser.add_argument("--saying", type=int, default=3000, help="the decoder's steps [3000]")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
