"""Teaches a model short windows: python -m recipes.audio_window.train CHECKPOINT AUDIO OUT

CHECKPOINT is a .pt file (`slimwhisper convert` writes one), AUDIO a folder of recordings, in which
only speech should be: the model itself writes the texts. OUT is the .pt file to write; beside it is
OUT's .state, from which a stopped run resumes.
"""

import argparse
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator

import slimwhisper
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
from slimwhisper import SlimWhisper
from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.types import SAMPLE_RATE

TOGETHER = 60  # seconds of audio in a batch
MOST = 8  # windows in a batch

load = lru_cache(maxsize=64)(slimwhisper.load_audio)


def batch(model: SlimWhisper, recordings: Sequence[Path], rng: Generator) -> Batch:
    """Pieces of recordings with one length, and the model's texts for them in windows of 30 s."""
    seconds, mels = random_seconds(rng), []
    for _ in range(int(np.clip(TOGETHER // seconds, 1, MOST))):
        audio = load(recordings[int(rng.integers(len(recordings)))])
        length = round(random_length(rng, seconds) * SAMPLE_RATE)
        start = int(rng.integers(max(len(audio) - length, 0) + 1))
        piece = ArraySamples(audio[start : start + length])
        spectrogram = Spectrogram(piece, model.dims.n_mels)
        mels.append(spectrogram.window(0, spectrogram.frames))
    mel = torch.stack(mels)
    texts = []
    results = model.decode(mel)
    for result in results if isinstance(results, list) else [results]:
        tokenizer = model.network.vocabulary.tokenizer(result.language, "transcribe")
        texts.append([*tokenizer.sot_sequence, *result.tokens])
    return Batch(mel, seconds, *padded(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="in OpenAI's format")
    parser.add_argument("audio", type=Path, help="folder of recordings")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--steps", type=int, default=2000, help="[2000]")
    parser.add_argument("--rate", type=float, default=1e-5, help="the learning rate [0.00001]")
    parser.add_argument("--share", type=float, default=0.75, help="of new weights [0.75]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = sorted(p for p in args.audio.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES)
    if not found:
        raise SystemExit(f"{args.audio}: no recordings; give a folder of audio files")
    torch.manual_seed(args.seed)
    model = slimwhisper.load_model(args.checkpoint, audio_window="full")

    def batch_of(step: int) -> Batch:
        return batch(model, found, np.random.default_rng((args.seed, step)))

    state = args.out.with_suffix(".state")
    teacher = read(args.checkpoint)
    student = fit(teacher, batch_of, args.steps, args.rate, state)
    write(blend(student, teacher, args.share), args.out)


if __name__ == "__main__":
    main()
