"""The flags of the `bench` command."""

import argparse
from typing import Any

from slimwhisper.flags import CACHES, MODEL, add_model_flags

BATCHES = (1, 8, 16, 64)


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def add_bench(commands: Any) -> None:
    """The parser of `bench`."""
    p = commands.add_parser(
        "bench",
        help="how fast each cache decodes here, and the memory it takes",
        description="Decodes recordings of noise, a fixed number of tokens each, with every cache "
        "at every batch size, in turns. Prints medians, the machine, and one line of JSON.",
    )
    p.add_argument("--model", help=f"{MODEL} [random weights in the shape of tiny]")
    p.add_argument(
        "--random", action="store_true", help="random weights in the shape that --model names"
    )
    add_model_flags(p)
    p.add_argument("--device", help="such as cpu, cuda or cuda:1 [a GPU where there is one]")
    p.add_argument("--threads", type=positive, default=0, help="CPU threads [all cores]")
    p.add_argument("--cache", nargs="+", choices=CACHES, default=list(CACHES), help="[all]")
    p.add_argument(
        *("--batch", "--batch_size"),
        nargs="+",
        type=positive,
        default=list(BATCHES),
        help="windows decoded together [1 8 16 64]",
    )
    p.add_argument("--tokens", type=positive, default=100, help="of each window [100]")
    p.add_argument("--windows", type=positive, help="in all [twice the batch, 4 to 128 or batch]")
    p.add_argument("--rounds", type=positive, default=3, help="of which medians are taken [3]")
    p.add_argument("--beam_size", type=positive, help="beams [greedy]")
    p.add_argument(
        "--against_whisper",
        action="store_true",
        help="openai-whisper too, one by one, on the files of the largest batch",
    )
    p.add_argument("--json", action="store_true", help="the line of JSON alone")
