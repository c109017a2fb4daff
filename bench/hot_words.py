"""What hot words cost and what they find.

    OMP_NUM_THREADS=1 python bench/hot_words.py cost [--rounds 3] [--sizes tiny base small]
    python bench/hot_words.py found --audio FSDD_FOLDER [--model digits] [--speech 500] [--beams N]

`cost`: the CPU time of a step with 0, 100 and 5,000 phrases, of random models of Whisper's sizes,
with 16 texts. The three take turns, step by step. Prints a table of docs/transcribing.md: medians
of the rounds, with the smallest and the largest.

`found`: recordings of a spoken digit in white noise at 10, 5, 0 and -5 dB, of the Free Spoken Digit
Dataset, named {digit}_{speaker}_{index}.wav; those of the lowest indices, of which `digits` was not
trained on 0 to 4. Each digit's word in turn is the only hot word: how often it is found where it is
spoken, and written where it is not. Then 5,000 phrases that nobody says. Everything is seeded.
Prints the other table.
"""

import argparse
import statistics
import sys
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from trust_material import RATE, SPEAKERS, Digits, mixed

import slimwhisper
from recipes.digits.catalogue import WORDS
from slimwhisper.audio.mel import first_window
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search, Window
from slimwhisper.longform.rules import make_rules
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Dims

SIZES = {"tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}  # width, heads, layers
TEXTS, STEPS, PHRASES = 16, 60, 5000
BONUSES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
SNR = (10.0, 5.0, 0.0, -5.0)  # dB, of noise


def random_model(width: int, heads: int, layers: int) -> Model:
    """With Whisper's vocabulary, and one layer in the encoder, which is not measured."""
    sizes = (width, heads, layers)
    dims = Dims(80, 1500, width, heads, 1, 51865, 448, *sizes)
    return Model(random_checkpoint(dims), torch.device("cpu"), torch.float32)


def phrases(vocabulary: Vocabulary, count: int) -> tuple[str, ...]:
    """Names of one to three made words, of two or three of the vocabulary's pieces each."""
    rng, tokenizer = np.random.default_rng(0), vocabulary.tokenizer()
    pieces = [tokenizer.decode([t]).lower() for t in range(300, 20_000)]
    pieces = [p.strip() for p in pieces if p.strip().isascii() and p.strip().isalpha()]

    def word() -> str:
        return "".join(rng.choice(pieces, rng.integers(2, 4))).capitalize()[:30]

    return tuple(" ".join(word() for _ in range(rng.integers(1, 4))) for _ in range(count))


def seconds_of_steps(model: Model, windows: list[Window], search: Search) -> list[float]:
    """The median time of a step of 16 texts of each window; the windows take turns."""
    engines = [Engine(model, model.vocabulary, TEXTS, search) for _ in windows]
    for engine, window in zip(engines, windows, strict=True):
        for _ in range(TEXTS):
            engine.submit(0, window)
    times: list[list[float]] = [[] for _ in windows]
    while not engines[0].idle:
        for engine, of_engine in zip(engines, times, strict=True):
            began = time.thread_time()
            answers = engine.step()
            of_engine.append(time.thread_time() - began)
            for ticket, _ in answers:
                engine.reply(ticket)
    return [statistics.median(of_engine[5:-1]) for of_engine in times]


def cost(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    counts = 0, args.phrases // 50, args.phrases
    several = " | ".join(f"{count:,} phrases" for count in counts[1:])
    print(f"| CPU time of a step of 16 texts, ms | none | {several} |")
    print("|---|---|---|---|")
    for name, beams in product(args.sizes, (None, 5)):
        model = random_model(*SIZES[name])
        vocabulary, search = model.vocabulary, Search(beams=beams)
        sot, mel = vocabulary.tokenizer("en").sot_sequence, torch.zeros(80, 3000)
        windows = []
        for count in counts:
            words = phrases(vocabulary, count)
            options = Options(sample_len=args.steps, hot_words=words, without_timestamps=True)
            windows.append(Window(mel, tuple(sot), 0, make_rules(model.dims, options, vocabulary)))
        rounds = [seconds_of_steps(model, windows, search) for _ in range(args.rounds)]
        ratios = [[t / times[0] - 1 for t in times] for times in rounds]
        none, *others = (statistics.median(t) for t in zip(*rounds, strict=True))
        _, *more = (
            f"{statistics.median(r):+.1%} ({min(r):+.1%} to {max(r):+.1%})"
            for r in zip(*ratios, strict=True)
        )
        cells = [f"{t * 1e3:.1f}, {m}" for t, m in zip(others, more, strict=True)]
        label = name if beams is None else f"{name}, {beams} beams"
        print(f"| {label} | {none * 1e3:.1f} | {' | '.join(cells)} |", flush=True)


def noisy(digits: Digits, count: int) -> list[tuple[str, Any]]:
    """Recordings with noise: the word that is spoken, and samples."""
    rng, clips = np.random.default_rng(0), []
    order = islice(product(range(50), SPEAKERS, range(10)), count)
    for number, (index, speaker, digit) in enumerate(order):
        speech = np.pad(digits.word(digit, speaker, index), RATE // 4)
        noise = rng.standard_normal(len(speech)).astype(np.float32)
        level = SNR[number // 10 % len(SNR)]
        clips.append((WORDS[digit], mixed(speech, noise, level)))
    return clips


def found(args: argparse.Namespace) -> None:
    model: Any = slimwhisper.load_model(args.model, device="cpu")
    network, vocabulary = model.network, model.network.vocabulary
    tokenizer = vocabulary.tokenizer("en")
    prompt = tuple(tokenizer.sot_sequence)
    clips = noisy(Digits(args.audio), args.speech)
    features = []
    for _, samples in clips:  # heard once, decoded many times
        mel = first_window(samples, model.dims.n_mels, 3000)
        features.append(network.encoder(mel[None])[0])

    def words_of(bonus: float, hot: tuple[str, ...], beams: int | None) -> list[list[str]]:
        """Of each recording."""
        options = model.make_options(hot_words=hot, hot_word_bonus=bonus, beam_size=beams)
        rules = make_rules(model.dims, options, vocabulary)
        engine = Engine(network, vocabulary, TEXTS, Search(beams=beams))
        answers = engine.run([Window(audio, prompt, 0, rules) for audio in features])
        texts = [tokenizer.decode(list(a.tokens)).lower() for a in answers]  # type: ignore[union-attr]
        return ["".join(c if c.isalpha() else " " for c in text).split() for text in texts]

    others = phrases(vocabulary, args.phrases)
    without = words_of(0.0, (), args.beams)
    changing = f"texts that {args.phrases:,} others change"
    print(f"| bonus | found where spoken | written where not spoken | {changing} |")
    print("|---|---|---|---|")
    for bonus in args.bonuses:
        spoken = right = silent = wrong = 0
        for hot in WORDS:
            heard = words_of(bonus, (hot,), args.beams) if bonus else without
            for (said, _), words in zip(clips, heard, strict=True):
                if said == hot:
                    spoken, right = spoken + 1, right + (hot in words)
                else:
                    silent, wrong = silent + 1, wrong + (hot in words)
        changed = words_of(bonus, others, args.beams) if bonus else without
        count = sum(a != b for a, b in zip(changed, without, strict=True))
        cells = (f"{right / spoken:.1%}", f"{wrong / silent:.2%}", f"{count} of {len(clips)}")
        print(f"| {f'{bonus:g}' if bonus else 'none'} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("cost")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    command.add_argument("--steps", type=int, default=STEPS)
    command.set_defaults(run=cost)
    command = commands.add_parser("found")
    command.add_argument("--audio", type=Path, required=True)
    command.add_argument("--model", default="digits")
    command.add_argument("--speech", type=int, default=500, help="recordings of a digit")
    command.add_argument("--beams", type=int)
    command.add_argument("--bonuses", nargs="+", type=float, default=BONUSES)
    command.set_defaults(run=found)
    for command in commands.choices.values():
        command.add_argument("--phrases", type=int, default=PHRASES, help="of the longest list")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
