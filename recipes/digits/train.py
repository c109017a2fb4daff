"""Trains `digits`: python -m recipes.digits.train FSDD FOLDER

FSDD holds the Free Spoken Digit Dataset's WAV files. FOLDER gets the words of all voices, words.pt,
the checkpoint, digits.pt, and what a run that was stopped goes on from, digits.state. README.md has
the data, the times and the results.
"""

import argparse
import copy
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.digits.model import Student, dimensions, disturbed
from recipes.digits.sequences import IGNORED, SOT, Composer, Example
from recipes.digits.voices import Bank, make_bank

Mixes = tuple[tuple[float, tuple[float, ...]], ...]
WEIGHTS = {"token": 1.0, "digit": 0.5, "before": 0.3, "edge": 0.3, "guide": 0.3}
BATCHES = {6: 16, 12: 8, 30: 4}  # windows of so many seconds in a step
MIX: Mixes = (
    (0.0, (1, 0, 0)),
    (0.1, (0.4, 0.4, 0.2)),
    (0.35, (0.25, 0.25, 0.5)),
    (0.65, (0.1, 0.1, 0.8)),
)
GOING_ON: Mixes = ((0.0, (0.1, 0.1, 0.8)),)  # a run that starts from another
ENCODER_ALONE = 0.1  # of the steps, the first
WARM_UP = 200  # steps
KEEP_EVERY = 250  # steps
AVERAGE = 0.998  # of weights, a step


def collate(examples: list[Example]) -> dict[str, Tensor]:
    """Examples side by side, their tokens padded."""
    longest = max(len(e.tokens) for e in examples)

    def padded(rows: list[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

    return {
        "mel": torch.stack([e.mel for e in examples]),
        "labels": torch.stack([e.labels for e in examples]),
        "edges": torch.stack([e.edges for e in examples]),
        "tokens": padded([e.tokens for e in examples], SOT),
        "targets": padded([e.targets for e in examples], IGNORED),
        "spans": torch.tensor([e.spans + [(0, 0)] * (longest - len(e.spans)) for e in examples]),
        "offsets": torch.tensor([e.offset for e in examples]),
    }


def batch_at(
    composer: Composer, seed: int, step: int, steps: int, mixes: Mixes = MIX
) -> dict[str, Tensor]:
    """The batch of a step, the same in every run."""
    rng = np.random.default_rng((seed, step))
    mix = next(shares for start, shares in reversed(mixes) if step >= start * steps)
    seconds = int(rng.choice(list(BATCHES), p=mix))
    batch = collate([composer.example(rng, seconds) for _ in range(BATCHES[seconds])])
    generator = torch.Generator().manual_seed(seed + step)
    batch["tokens"] = disturbed(batch["tokens"], batch["targets"], 0.08, generator)
    return batch


def make_optimizers(student: Student) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, convolutions, norms and biases."""
    matrices = [p for n, p in student.named_parameters() if p.ndim == 2 and ".blocks." in n]
    others = [p for n, p in student.named_parameters() if not (p.ndim == 2 and ".blocks." in n)]
    return [
        torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_at(step: int, steps: int, top: float) -> float:
    """Warm-up, then a cosine to a hundredth."""
    part = max(step - WARM_UP, 0) / max(steps - WARM_UP, 1)
    return top * min((step + 1) / WARM_UP, 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2)


def train(asked: argparse.Namespace) -> None:
    torch.manual_seed(asked.seed)
    asked.folder.mkdir(parents=True, exist_ok=True)
    words = asked.folder / "words.pt"
    if not words.exists():
        print(f"{words}: reading and speaking the words", flush=True)
        save(vars(make_bank(asked.fsdd)), words)
    composer = Composer(Bank.load(words), asked.real, asked.without)
    student = Student(dimensions(asked.width, tuple(asked.layers)))
    if asked.start:
        student.load_state_dict(torch.load(asked.start, weights_only=True)["average"])
    average = copy.deepcopy(student)
    optimizers = make_optimizers(student)
    state = asked.folder / f"{asked.name}.state"
    first = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        student.load_state_dict(saved["student"])
        average.load_state_dict(saved["average"])
        for optimizer, kept in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        first = saved["step"]
        print(f"{state}: going on at step {first}", flush=True)

    sums: dict[str, float] = {}
    since = time.monotonic()
    for step in range(first, asked.steps):
        mixes = GOING_ON if asked.start else MIX
        batch = batch_at(composer, asked.seed, step, asked.steps, mixes)
        for optimizer, top in zip(optimizers, (asked.rate, asked.rate / 2), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, asked.steps, top)
        alone = not asked.start and step < ENCODER_ALONE * asked.steps
        with torch.autocast("cpu", torch.bfloat16):
            losses = student.losses(batch, alone)
        torch.stack([WEIGHTS[name] * loss for name, loss in losses.items()]).sum().backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
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
            print(f"{step + 1}/{asked.steps}  {means}  {spent:.0f} s", flush=True)
            sums.clear()
        if (step + 1) % KEEP_EVERY == 0 or step + 1 == asked.steps:
            saved = {
                "student": student.state_dict(),
                "average": average.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "step": step + 1,
            }
            save(saved, state)
            save(average.checkpoint(), state.with_suffix(".pt"))


def save(content: dict[str, Any], path: Path) -> None:
    """Written whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    torch.save(content, part)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--name", default="digits", help="of the checkpoint [digits]")
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, nargs=2, default=(4, 4), help="encoder's, decoder's")
    parser.add_argument("--real", type=float, default=0.6, help="share of windows of real speech")
    parser.add_argument("--without", help="a speaker to leave out")
    parser.add_argument("--start", type=Path, help="the .state of an earlier run to start from")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
