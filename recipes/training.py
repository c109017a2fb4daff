"""The loop of all trainings here: batches, losses, optimizers, and a run that can be resumed."""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from slimwhisper.disk import atomic_write

KEEP_EVERY = 250  # steps

Model = TypeVar("Model", bound=nn.Module)
Batch = dict[str, Tensor]
BatchOf = Callable[[int], Batch]  # that of a step


def make_parser(doc: str, steps: int, rate: float) -> argparse.ArgumentParser:
    """The flags of a training with these defaults; doc: of its module."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--steps", type=int, default=steps, help="[%(default)s]")
    parser.add_argument("--rate", type=float, default=rate, help="the learning rate [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    return parser


def save(content: Mapping[str, Any], path: Path) -> None:
    """Write a file completely or not at all."""
    with atomic_write(path) as file:
        torch.save(content, file)


def rate_share(step: int, steps: int, warm_up: int) -> float:
    """Of the greatest learning rate: warm-up, then a cosine down to a hundredth."""
    part = max(step - warm_up, 0) / max(steps - warm_up, 1)
    return min((step + 1) / warm_up, 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2)


def fit(
    student: Model,
    optimizers: Sequence[torch.optim.Optimizer],
    losses_of: Callable[[Batch], Batch],
    batch_of: BatchOf,
    steps: int,
    state: Path,
    *,
    warm_up: int = 200,
    share: float = 0.002,
    workers: int = 0,
) -> Model:
    """Train the student from `state` on, if that exists: a stopped run resumes.

    losses_of: the losses [] of a batch, whose sum is minimized. batch_of: the batch of a step.
    warm_up: steps until the optimizers have their rates. share: of each step's weights in their
    moving average, with which a copy of the student is returned. workers: processes that make the
    batches; 0: this one.
    """
    device = next(student.parameters()).device

    def mean(old: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
        return old.lerp(new, max(share, 1 / (int(count) + 1)))

    average = AveragedModel(student, avg_fn=mean)
    tops = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    parts: dict[str, Any] = {"student": student, "average": average}
    parts |= {str(i): optimizer for i, optimizer in enumerate(optimizers)}
    first = 0
    if state.exists():
        saved = torch.load(state, map_location=device, weights_only=True)
        first = saved.pop("step")
        for name, content in saved.items():
            parts[name].load_state_dict(content)
        print(f"{state}: continuing at step {first}", flush=True)
    load = cast("Any", DataLoader)  # typed for a Dataset
    batches = load(range(first, steps), batch_size=None, collate_fn=batch_of, num_workers=workers)
    sums, since, shown = Counter[str](), time.monotonic(), first
    for step, batch in enumerate(batches, first):
        for optimizer, top in zip(optimizers, tops, strict=True):
            optimizer.param_groups[0]["lr"] = top * rate_share(step, steps, warm_up)
        with torch.autocast(device.type, torch.bfloat16):
            losses = losses_of({name: tensor.to(device) for name, tensor in batch.items()})
        torch.stack(list(losses.values())).sum().backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        average.update_parameters(student)
        sums.update({name: float(loss.detach()) for name, loss in losses.items()})
        done = step + 1
        if done % 50 == 0 or done == steps:
            count, spent = done - shown, time.monotonic() - since
            means = "  ".join(f"{name} {total / count:.4f}" for name, total in sums.items())
            print(f"{done}/{steps}  {means}  {spent:.0f} s", flush=True)
            shown = done
            sums.clear()
        if done % KEEP_EVERY == 0 or done == steps:
            save({name: part.state_dict() for name, part in parts.items()} | {"step": done}, state)
    return cast("Model", average.module)
