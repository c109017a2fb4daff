"""Trains `digits`: python -m recipes.digits.train FSDD FOLDER

FSDD holds the Free Spoken Digit Dataset's WAV files. FOLDER gets the words of all voices, words.pt,
the checkpoint, digits.pt, and the state from which a stopped run resumes: encoder.state, then
digits.state. README.md has the data, the times and the results.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from recipes.audio_window.match import save
from recipes.digits.model import HALVES, Student, dimensions, disturbed
from recipes.digits.sequences import IGNORED, SOT, Composer, Reply, Window
from recipes.digits.voices import Bank, make_bank

Batch = dict[str, Tensor]
WEIGHTS = {"token": 1.0, "digit": 0.5, "before": 0.3, "edge": 0.3, "guide": 0.3}
WARM_UP = 200  # steps
KEEP_EVERY = 250  # steps
AVERAGE = 0.998  # decay per step of the moving average of the weights
# The encoder's windows: {seconds: windows per step}; the share of each from a part of training on.
WINDOWS = {6: 16, 12: 8, 30: 4}
MIX = ((0.0, (1, 0, 0)), (0.4, (0.4, 0.3, 0.3)), (0.7, (0.1, 0.2, 0.7)))
# The decoder's: windows of 30 s per step, how many of them are new, and how many outputs are kept.
REPLIES, NEW, KEPT = 16, 1, 5000
DISTURBED = 0.05  # share of the digits in the decoder's input that are replaced


def encoder_batch(composer: Composer, seed: int, part: float, step: int) -> Batch:
    """Windows and their labels for a step, when `part` of the steps are done.

    mel [B, 80, frames], labels [B, 3, frames / 2], edges [B, frames / 2], offsets [B].
    """
    rng = np.random.default_rng((seed, step))
    mix = next(shares for start, shares in reversed(MIX) if part >= start)
    seconds = int(rng.choice(list(WINDOWS), p=mix))
    windows = [composer.window(rng, seconds) for _ in range(WINDOWS[seconds])]
    return {
        "mel": torch.stack([w.mel for w in windows]),
        "labels": torch.stack([w.labels for w in windows]),
        "edges": torch.stack([w.edges for w in windows]),
        "offsets": torch.tensor([round(w.offset * 50) for w in windows]),
    }


class EncodedWindows:
    """Windows of 30 s and the encoder's output for them, with dropout, kept for the decoder.

    Without dropout the encoder would be surer of these voices than of new ones. Window i is made
    when it is first drawn, so that a resumed run draws the same windows.
    """

    def __init__(self, composer: Composer, student: Student, seed: int) -> None:
        self._composer, self._student, self._seed = composer, student, seed
        self._kept: dict[int, tuple[Window, Tensor]] = {}

    def batch(self, step: int) -> Batch:
        """Replies to NEW new windows and to earlier ones, each with a new prompt.

        As `padded`, and audio [REPLIES, 1500, width] bfloat16.
        """
        rng = np.random.default_rng((self._seed, 1, step))
        last = REPLIES + step * NEW
        first = max(last - KEPT, 0)
        for old in range(first - NEW, first):
            self._kept.pop(old, None)
        drawn = [*range(last - NEW, last), *rng.integers(first, last, REPLIES - NEW).tolist()]
        encoded = [self._at(i) for i in drawn]
        batch = padded([self._composer.reply(rng, window) for window, _ in encoded])
        generator = torch.Generator().manual_seed(self._seed + step)
        batch["tokens"] = disturbed(batch["tokens"], batch["targets"], DISTURBED, generator)
        return {**batch, "audio": torch.stack([audio for _, audio in encoded])}

    def _at(self, i: int) -> tuple[Window, Tensor]:
        """Window i, and the encoder's output for it [1500, width] bfloat16."""
        if i not in self._kept:
            window = self._composer.window(np.random.default_rng((self._seed, 2, i)), 30)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.random.fork_rng():
                torch.manual_seed(self._seed + i)  # for the dropout
                audio = self._student.encode(window.mel[None], torch.zeros(1, dtype=torch.long))
            self._kept[i] = window, audio[0].bfloat16()
        return self._kept[i]


def padded(replies: Sequence[Reply]) -> Batch:
    """tokens [B, T], targets [B, T], spans [B, T, 2] of replies, padded to the longest."""
    longest = max(len(r.tokens) for r in replies)

    def rows(sequences: Iterable[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (longest - len(row)) for row in sequences])

    return {
        "tokens": rows((r.tokens for r in replies), SOT),
        "targets": rows((r.targets for r in replies), IGNORED),
        "spans": torch.tensor([r.spans + [(0, 0)] * (longest - len(r.spans)) for r in replies]),
    }


def make_optimizers(student: Student) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, convolutions, norms and biases."""
    trained = [(n, p) for n, p in student.named_parameters() if p.requires_grad]
    matrices = [p for n, p in trained if p.ndim == 2 and ".blocks." in n]
    others = [p for n, p in trained if not (p.ndim == 2 and ".blocks." in n)]
    return [
        torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_at(step: int, steps: int, top: float) -> float:
    """The learning rate: warm-up, then a cosine down to a hundredth of `top`."""
    part = max(step - WARM_UP, 0) / max(steps - WARM_UP, 1)
    return top * min((step + 1) / WARM_UP, 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2)


def fit(
    student: Student,
    losses_of: Callable[[Batch], dict[str, Tensor]],
    batch_of: Callable[[int], Batch],
    steps: int,
    rate: float,
    state: Path,
) -> Student:
    """Train what requires gradients, with losses [] of a batch; resumes from `state` if it exists.

    Returns a student with the average of the weights.
    """
    average = copy.deepcopy(student)
    optimizers = make_optimizers(student)
    first = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        student.load_state_dict(saved["student"])
        average.load_state_dict(saved["average"])
        for optimizer, optimizer_state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
        first = saved["step"]
        print(f"{state}: continuing at step {first}", flush=True)
    sums: dict[str, float] = {}
    since = time.monotonic()
    for step in range(first, steps):
        batch = batch_of(step)
        for optimizer, top in zip(optimizers, (rate, rate / 2), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps, top)
        with torch.autocast("cpu", torch.bfloat16):
            losses = losses_of(batch)
        torch.stack([WEIGHTS[name] * loss for name, loss in losses.items()]).sum().backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            part = max(1 - AVERAGE, 1 / (step + 1))
            for mean, new in zip(average.parameters(), student.parameters(), strict=True):
                mean.lerp_(new, part)
        for name, loss in losses.items():
            sums[name] = sums.get(name, 0.0) + float(loss.detach())
        if (step + 1) % 50 == 0:
            means = "  ".join(f"{name} {total / 50:.3f}" for name, total in sums.items())
            spent = time.monotonic() - since
            print(f"{state.stem} {step + 1}/{steps}  {means}  {spent:.0f} s", flush=True)
            sums.clear()
        if (step + 1) % KEEP_EVERY == 0 or step + 1 == steps:
            saved = {
                "student": student.state_dict(),
                "average": average.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "step": step + 1,
            }
            save(saved, state)
    return average


def begin(student: Student, half: str, start: Path | None) -> None:
    """Train only this half from here on, from another run's weights if `start` is given."""
    student.train_only(half)
    if start:
        learned = torch.load(start, weights_only=True)["average"]
        ours = {name: t for name, t in learned.items() if name.startswith(HALVES[half])}
        student.load_state_dict(ours, strict=False)


def train(args: argparse.Namespace) -> None:
    """First the encoder, with labels of its own; then the decoder, with the encoder frozen."""
    torch.manual_seed(args.seed)
    args.folder.mkdir(parents=True, exist_ok=True)
    words = args.folder / "words.pt"
    if not words.exists():
        print(f"{words}: reading and speaking the words", flush=True)
        save(vars(make_bank(args.fsdd)), words)
    composer = Composer(Bank.load(words), args.real, args.without)
    student = Student(dimensions(args.width, tuple(args.layers)))
    begun = MIX[1][0] if args.start else 0.0  # longer windows right away

    def windows(step: int) -> Batch:
        part = begun + (1 - begun) * step / args.hearing
        return encoder_batch(composer, args.seed, part, step)

    begin(student, "encoder", args.start and args.folder / f"{args.start}-encoder.state")
    state = args.folder / f"{args.name}-encoder.state"
    student = fit(student, student.hearing_losses, windows, args.hearing, args.rate, state)
    begin(student, "decoder", args.start and args.folder / f"{args.start}.state")
    encoded = EncodedWindows(composer, student.train(), args.seed)
    state = args.folder / f"{args.name}.state"
    student = fit(student, student.saying_losses, encoded.batch, args.saying, args.rate, state)
    save(student.checkpoint(), state.with_suffix(".pt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--name", default="digits", help="of the checkpoint [digits]")
    parser.add_argument("--hearing", type=int, default=5000, help="the encoder's steps [5000]")
    parser.add_argument("--saying", type=int, default=3000, help="the decoder's steps [3000]")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, nargs=2, default=(4, 4), help="encoder's, decoder's")
    parser.add_argument("--real", type=float, default=0.6, help="share of windows of real speech")
    parser.add_argument("--start", metavar="NAME", help="of a run in FOLDER to start from")
    parser.add_argument("--without", help="a speaker to leave out")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
