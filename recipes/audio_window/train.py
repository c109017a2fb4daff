"""Teaches a model short windows: python -m recipes.audio_window.train CHECKPOINT AUDIO OUT

CHECKPOINT is a .pt file (`slimwhisper convert` writes one). AUDIO is a folder of recordings, in
which only speech should be: the model itself writes the texts. For `digits` it is the words.pt of
`recipes.digits.train`. OUT is the .pt file to write; beside it is OUT's .state, from which a
stopped run resumes.

Whisper is trained on windows of 30 s: speech, then silence. Of a window without the silence, most
checkpoints write nonsense. Here a copy learns to have the same states for the short window as the
checkpoint has for the whole one: the encoder's output, and the decoder's last states, as FUTO's
"audio context fine-tuning" does (github.com/futo-org/whisper-acft). No texts have to be correct.
"""

import argparse
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import whisper
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from whisper.model import Whisper

import slimwhisper
from recipes.digits.model import encode, last_states
from recipes.digits.sequences import TOKEN_IDS, Composer
from recipes.digits.voices import Bank
from recipes.training import Batch, BatchOf, fit, make_parser, save
from slimwhisper import SlimWhisper
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.research.comparison import find_recordings
from slimwhisper.types import SAMPLE_RATE

SECONDS = 30  # of a whole window
TEMPERATURE = 3.0  # at which the order of unlikely tokens counts too: beams choose among them
WHOLE = 0.2  # share of the batches with windows of 30 s, which stay as they are

TOGETHER = 60  # seconds of audio in a batch; times --larger
MOST = 8  # windows in a batch; times --larger
SHORTEST = 0.5  # seconds of `digits`
PLACEHOLDER = 0  # for a token that `digits` does not know

# A Batch: windows of 30 s whose audio ends early, all at the same second, and texts for them: mel
# [B, n_mels, 3000], the part of it that holds the audio, short [B, n_mels, frames], the decoder's
# input, tokens [B, T] int64, padded on the right, and what of it is not padding, counted [B, T].

load = lru_cache(maxsize=64)(slimwhisper.load_audio)


def random_lengths(rng: Generator, larger: int) -> tuple[int, list[float]]:
    """The length of a batch's windows in seconds, from 1 to 30, more often short than long; and how
    much of each holds audio: all, or up to a second less. larger: times the usual number.
    """
    short = rng.random() >= WHOLE
    seconds = int(np.exp(rng.uniform(0, np.log(SECONDS)))) if short else SECONDS
    windows = larger * int(np.clip(TOGETHER // seconds, 1, MOST))
    part = rng.random(windows) < 0.7
    return seconds, (seconds - part * rng.uniform(0, 1, windows)).tolist()


def batch_of(mels: Sequence[Tensor], seconds: int, texts: Sequence[list[int]]) -> Batch:
    """Spectrograms [n_mels, 3000] of `seconds` of audio, and token ids of texts."""
    lengths = torch.tensor([len(text) for text in texts])
    tokens = pad_sequence([torch.tensor(text) for text in texts], True)
    counted = torch.arange(tokens.shape[1]) < lengths[:, None]
    mel = torch.stack(list(mels))
    return {"mel": mel, "short": mel[..., : 100 * seconds], "tokens": tokens, "counted": counted}


def states_of(model: Whisper, tokens: Tensor, audio: Tensor) -> Tensor:
    """tokens [B, T], the encoder's output [B, q, d] -> the decoder's last states [B, T, d]."""
    return last_states(model.decoder, model.decoder.token_embedding(tokens), audio)


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
        whole = encode(teacher.encoder, batch["mel"])
        expected = states_of(teacher, batch["tokens"], whole)[batch["counted"]]
    short = encode(student.encoder, batch["short"])
    states = states_of(student, batch["tokens"], short)[batch["counted"]]
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


def learn(
    teacher: Whisper, make: BatchOf, steps: int, rate: float, state: Path, workers: int = 0
) -> Whisper:
    """A copy of the teacher that is trained on its device (`recipes.training.fit`).

    make: the batch of a step. rate: AdamW's greatest learning rate.
    """
    student = deepcopy(teacher.eval()).requires_grad_()
    teacher.requires_grad_(requires_grad=False)
    used = used_tokens(teacher)[:, None]
    student.decoder.token_embedding.weight.register_hook(lambda gradient: gradient * used)
    optimizer = torch.optim.AdamW(student.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.0)
    more: dict[str, Any] = {"warm_up": 50, "share": 0.005, "workers": workers}
    return fit(student, [optimizer], partial(losses, student, teacher), make, steps, state, **more)


def model_batch(
    model: SlimWhisper, recordings: Sequence[Path], rng: Generator, larger: int = 1
) -> Batch:
    """Pieces of recordings with one length, and the model's texts for them in windows of 30 s.

    larger: how many times the usual number of windows.
    """
    (seconds, lengths), mels = random_lengths(rng, larger), []
    for length in (round(SAMPLE_RATE * heard) for heard in lengths):
        audio = load(recordings[int(rng.integers(len(recordings)))])
        start = int(rng.integers(max(len(audio) - length, 0) + 1))
        spectrogram = Spectrogram(ArraySamples(audio[start : start + length]), model.dims.n_mels)
        mels.append(spectrogram.window(0, spectrogram.frames))
    texts = []
    results = model.decode(torch.stack(mels))
    for result in results if isinstance(results, list) else [results]:
        tokenizer = model.network.vocabulary.tokenizer(result.language, "transcribe")
        texts.append([*tokenizer.sot_sequence, *result.tokens])
    return batch_of(mels, seconds, texts)


def digits_batch(composer: Composer, rng: Generator, larger: int = 1) -> Batch:
    """The same of the windows, and with the answers, that `digits` was trained on."""
    ids = [*TOKEN_IDS, PLACEHOLDER]
    (seconds, lengths), mels, texts = random_lengths(rng, larger), [], []
    for length in lengths:
        window = composer.window(rng, max(length, SHORTEST), anywhere=False)
        mels.append(F.pad(window.mel, (0, 3000 - window.mel.shape[1])))
        texts.append([ids[token] for token in composer.reply(rng, window).tokens])
    return batch_of(mels, seconds, texts)


def batches(args: argparse.Namespace) -> BatchOf:
    """What makes a step's batch of what AUDIO has. Raises AudioError if it has no recordings."""

    def rng(step: int) -> Generator:
        return np.random.default_rng((args.seed, step))

    if args.audio.suffix == ".pt":
        composer = Composer(Bank.load(args.audio))
        return lambda step: digits_batch(composer, rng(step), args.larger)
    found = [recording.path for recording in find_recordings([str(args.audio)])]
    model = slimwhisper.load_model(args.checkpoint, args.device, audio_window="full")
    return lambda step: model_batch(model, found, rng(step), args.larger)


def main() -> None:
    parser = make_parser(__doc__, steps=2000, rate=1e-5)
    parser.add_argument("checkpoint", type=Path, help="in OpenAI's format")
    parser.add_argument("audio", type=Path, help="folder of recordings, or a words.pt")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--share", type=float, default=0.75, help="of new weights [0.75]")
    parser.add_argument("--workers", type=int, default=0, help="processes that make the windows")
    parser.add_argument("--larger", type=int, default=1, help="times the windows in a batch [1]")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    make, state = batches(args), args.out.with_suffix(".state")
    teacher = whisper.load_model(str(args.checkpoint), args.device)
    student = learn(teacher, make, args.steps, args.rate, state, args.workers)
    write(blend(student, teacher, args.share), args.out)


if __name__ == "__main__":
    main()
