"""Trains a copy of a model to have the same states for short windows as the model for whole ones.

Whisper is trained on windows of 30 s: speech, then silence. Of a window without the silence, most
checkpoints write nonsense. Here a copy learns to have the same states for the short window as the
checkpoint has for the whole one: the encoder's output, and the decoder's last states, as FUTO's
"audio context fine-tuning" does (github.com/futo-org/whisper-acft). No texts have to be correct.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from whisper.model import AudioEncoder, ModelDimensions, TextDecoder, Whisper

FRAMES_PER_SECOND = 100  # of the spectrogram; the encoder halves them
WARM_UP = 50  # steps
KEEP_EVERY = 250  # steps
SECONDS = 30  # of a whole window
TEMPERATURE = 3.0  # at which the order of unlikely tokens counts too: beams choose among them
WHOLE = 0.2  # share of the batches with windows of 30 s, which stay as they are


@dataclass(frozen=True)
class Batch:
    """Windows of 30 s whose audio ends early, all at the same second, and texts for them."""

    mel: Tensor  # [B, n_mels, 3000]
    seconds: int  # that hold the audio
    tokens: Tensor  # [B, T] int64: the decoder's input, padded on the right
    counted: Tensor  # [B, T] bool: what is not padding

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        tensors = (self.tokens.to(device), self.counted.to(device))
        return Batch(self.mel.to(device), self.seconds, *tensors)


def random_seconds(rng: Generator) -> int:
    """The length of a batch's windows, from 1 to 30 s, more often short than long."""
    if rng.random() < WHOLE:
        return SECONDS
    return int(np.exp(rng.uniform(0, np.log(SECONDS))))


def random_length(rng: Generator, seconds: int) -> float:
    """How much of a window of `seconds` holds audio: all, or up to a second less."""
    return seconds - (rng.uniform(0, 1) if rng.random() < 0.7 else 0.0)


def padded(texts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids of B texts -> [B, T] int64, padded with each text's last, and what is not padding,
    [B, T] bool.
    """
    longest = max(map(len, texts))
    tokens = [[*text, *text[-1:] * (longest - len(text))] for text in texts]
    counted = torch.arange(longest) < torch.tensor([len(text) for text in texts])[:, None]
    return torch.tensor(tokens), counted


def encode(encoder: AudioEncoder, mel: Tensor) -> Tensor:
    """mel [B, n_mels, 2 q], q up to 1500 -> the encoder's output [B, q, d]."""
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).transpose(1, 2)
    x = (x + encoder.positional_embedding[: x.shape[1]]).to(x.dtype)
    for block in encoder.blocks:
        x = block(x)
    return encoder.ln_post(x)


def last_states(decoder: TextDecoder, tokens: Tensor, audio: Tensor) -> Tensor:
    """tokens [B, T], the encoder's output [B, q, d] -> [B, T, d], from which come the logits."""
    x = decoder.token_embedding(tokens) + decoder.positional_embedding[: tokens.shape[1]]
    for block in decoder.blocks:
        x = block(x.to(audio.dtype), audio, mask=decoder.mask)
    return decoder.ln(x)


def distance(x: Tensor, expected: Tensor) -> Tensor:
    """The mean square of the difference, as a share of the variance of `expected`, []."""
    expected = expected.float()
    return F.mse_loss(x.float(), expected) / expected.var()


def divergence(logits: Tensor, expected: Tensor) -> Tensor:
    """The mean Kullback-Leibler divergence of the next tokens' distributions, [n, V] each, as they
    are and at TEMPERATURE (arXiv 1503.02531, section 2), [].
    """
    parts = []
    for t in (1.0, TEMPERATURE):
        found, wanted = (logits / t).log_softmax(-1), (expected / t).log_softmax(-1)
        parts.append(t * t * F.kl_div(found, wanted, reduction="batchmean", log_target=True))
    return torch.stack(parts).sum()


def used_tokens(model: Whisper) -> Tensor:
    """[V] bool: the tokens with an embedding; `digits` has zeros for all others."""
    return model.decoder.token_embedding.weight.any(dim=1)


def losses(student: Whisper, teacher: Whisper, batch: Batch) -> dict[str, Tensor]:
    """How far the student's states for short windows are from the teacher's for whole ones, []."""
    with torch.no_grad():
        whole = encode(teacher.encoder, batch.mel)
        expected = last_states(teacher.decoder, batch.tokens, whole)
    short = encode(student.encoder, batch.mel[..., : batch.seconds * FRAMES_PER_SECOND])
    states = last_states(student.decoder, batch.tokens, short)
    states, expected = states[batch.counted], expected[batch.counted]
    used = used_tokens(teacher)
    logits, expected_logits = (
        x.float() @ model.decoder.token_embedding.weight[used].T
        for x, model in ((states, student), (expected, teacher))
    )
    return {
        "audio": distance(short, whole[:, : short.shape[1]]),
        "text": distance(states, expected),
        "tokens": divergence(logits, expected_logits),
    }


def read(path: Path) -> Whisper:
    """A checkpoint in OpenAI's format, in float32. Raises what `torch.load` does."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    model = Whisper(ModelDimensions(**content["dims"]))
    model.load_state_dict(content["model_state_dict"])
    return model.float()


def blend(student: Whisper, teacher: Whisper, share: float) -> Whisper:
    """The student with `share` of its own weights, and the rest of the teacher's: it forgets less
    (Wortsman et al., arXiv 2109.01903).
    """
    with torch.no_grad():
        for own, old in zip(student.parameters(), teacher.parameters(), strict=True):
            own.lerp_(old, 1 - share)
    return student


def write(model: Whisper, path: Path) -> None:
    """In OpenAI's format, float16; it says that windows may be as long as their audio."""
    weights = {k: v.half().contiguous() for k, v in model.state_dict().items()}
    content = {"dims": vars(model.dims), "model_state_dict": weights, "audio_window": "auto"}
    save(content, path)


def save(content: Mapping[str, Any], path: Path) -> None:
    """Write a file completely or not at all."""
    part = path.with_name(f"{path.name}.part")
    torch.save(content, part)
    part.replace(path)


def fit(
    teacher: Whisper,
    batch_of: Callable[[int], Batch],
    steps: int,
    rate: float,
    state: Path,
    workers: int = 0,
) -> Whisper:
    """Train a copy of the teacher, on its device, from `state` on if that exists: a stopped run
    resumes.

    batch_of: the batch of a step. rate: AdamW's greatest learning rate. workers: processes that
    make the batches; 0: this one. Returns the mean of the copy's weights over the last part of the
    training.
    """
    teacher.eval().requires_grad_(requires_grad=False)
    device = teacher.device
    student = deepcopy(teacher)
    learned = [p for n, p in student.named_parameters() if n != "encoder.positional_embedding"]
    for parameter in learned:
        parameter.requires_grad_()
    average = deepcopy(student)
    optimizer = torch.optim.AdamW(learned, rate, betas=(0.9, 0.98), weight_decay=0.0)
    parts = {"student": student, "average": average, "optimizer": optimizer}
    first = 0
    if state.exists():
        saved = torch.load(state, map_location=device, weights_only=True)
        first = saved.pop("step")
        for name, content in saved.items():
            parts[name].load_state_dict(content)
        print(f"{state}: continuing at step {first}", flush=True)
    unused = ~used_tokens(teacher)
    sums: dict[str, float] = {}
    since, shown = time.monotonic(), first
    numbers, load = range(first + 1, steps + 1), cast("Any", DataLoader)  # typed for a Dataset
    batches = load(numbers, batch_size=None, collate_fn=batch_of, num_workers=workers)
    for step, batch in zip(numbers, batches, strict=True):
        part = max(step - WARM_UP, 0) / max(steps - WARM_UP, 1)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(
                step / WARM_UP, 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2
            )
        with torch.autocast(device.type, torch.bfloat16):
            found = losses(student, teacher, batch.to(device))
        torch.stack(list(found.values())).sum().backward()
        gradient = student.decoder.token_embedding.weight.grad
        assert gradient is not None
        gradient[unused] = 0
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            share = max(0.005, 1 / step)
            for mean, new in zip(average.parameters(), student.parameters(), strict=True):
                mean.lerp_(new, share)
        for name, loss in found.items():
            sums[name] = sums.get(name, 0.0) + float(loss.detach())
        if step % 50 == 0 or step == steps:
            count = step - shown
            means = "  ".join(f"{name} {total / count:.4f}" for name, total in sums.items())
            print(f"{step}/{steps}  {means}  {time.monotonic() - since:.0f} s", flush=True)
            shown = step
            sums.clear()
        if step % KEEP_EVERY == 0 or step == steps:
            content = {name: part.state_dict() for name, part in parts.items()}
            save({**content, "step": step}, state)
    return average
