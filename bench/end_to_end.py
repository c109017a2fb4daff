"""Times whole windows through one engine: python bench/end_to_end.py [--shapes ...] [--windows ...]

Random weights and noise. Speech: 100 tokens a window, after prompts of 4 to 227 tokens that differ
from window to window. Varied: the same with 50 to 150 tokens, so that texts end one by one. Clips:
20 tokens, without text before. Round 1 is cold: kernels are compiled and graphs recorded. On a GPU,
with --serially, a last round waits for the encoder instead of decoding beside it.
Texts that differ from the first round's are counted: rounding depends on which windows are decoded
together, and random weights have close calls, so a few may.

Prints a line for each round; with --results, appends it to a file at once.
"""

import argparse
from itertools import product
from typing import Any

import torch
from engines import decode, make_parser, models, serially, window
from rows import Rows

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Window
from slimwhisper.model.model import Model
from slimwhisper.types import CHUNK_SECONDS

# tokens; tokens before the text, at most; by how many of a hundred tokens the texts differ, at most
WORKLOADS = {"speech": (100, 223, 0), "varied": (100, 223, 50), "clips": (20, 0, 0)}


def windows_of(model: Model, count: int, tokens: int, before: int, spread: int = 0) -> list[Window]:
    """Windows of different noise; the lengths of prompts, and of texts, are spread evenly."""
    kinds = []
    for i in range(min(count, 64)):
        length = tokens + (61 * i % (2 * spread + 1) - spread) * tokens // 100
        kinds.append(window(model, length, 37 * i % (before + 1), seed=i))
    return [kinds[i % len(kinds)] for i in range(count)]


def main() -> None:
    parser, gpu = make_parser(__doc__, ["tiny"], "slim"), torch.cuda.is_available()
    parser.add_argument("--slots", type=int, nargs="+", default=[64, 256] if gpu else [2])
    parser.add_argument("--windows", type=int, default=1024 if gpu else 3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--serially", action="store_true", help="a round more, on a GPU")
    parser.add_argument("--tokens", type=int, help="of a text [100, or 20 of a clip]")
    args = parser.parse_args()
    rows = Rows(args.results, "end to end", torch.device(args.device))
    for model, case in models(args):
        for slots, workload in product(args.slots, WORKLOADS):
            measure(model, {**case, "batch": slots, "workload": workload}, args, rows)


def measure(model: Model, case: dict[str, Any], args: argparse.Namespace, rows: Rows) -> None:
    """All rounds of one workload and number of slots."""
    tokens, before, spread = WORKLOADS[case["workload"]]
    windows = windows_of(model, args.windows, args.tokens or tokens, before, spread)
    engine = Engine(model, case["batch"])
    serially_too = args.serially and model.device.type == "cuda"
    overlaps = [True] * args.rounds + [False] * serially_too
    first: list[tuple[int, ...]] = []
    for number, overlap in enumerate(overlaps, 1):
        if not overlap:
            serially(engine)
        seconds, texts = decode(engine, windows)
        first, each = first or texts, seconds / len(windows)
        differ = sum(a != b for a, b in zip(first, texts, strict=True))
        row = {"round": number, "overlap": overlap, "different": differ}
        rows.add(**case, **row, what="window", milliseconds=1000 * each)
        print(
            f"{case['batch']:4} slots, {case['workload']}, round {number}, overlap {overlap}: "
            f"{1000 * each:.2f} ms a window, {1 / each:.1f} windows a second, "
            f"{CHUNK_SECONDS / each:.0f} x real time; {differ} texts differ",
            flush=True,
        )


if __name__ == "__main__":
    main()
