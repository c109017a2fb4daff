"""Drafts: how much faster a large model writes: python bench/drafts.py [--shapes large-v3] ...

Random checkpoints of official shapes, with a draft of --layers decoder layers on the same encoder
output. Random weights agree on nothing, so the draft computes its guesses, which takes its time,
and the guesses are then made right with the probability of --rates. The encoder is left out: it is
the same with and without. Each round decodes the same windows without a draft and with one, in
turns. Prints a table and ends in one line of JSON; with --results, also appends each measurement to
a file at once.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from decode import window
from rows import Rows, add_results_flag
from timing import machine
from torch import Tensor

from slimwhisper.cache.base import Rows as CacheRows
from slimwhisper.cache.plan import CrossCache
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.engine.draft_model import DraftModel
from slimwhisper.engine.drafter import Behind
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Window
from slimwhisper.engine.speculation import SpeculativeLane
from slimwhisper.model.model import Model

BEFORE = 0  # tokens of earlier text


class Rated(DraftModel):
    """Guesses that are right with a given probability, in the time that a draft takes."""

    def __init__(
        self,
        draft: Model,
        target: Model,
        text: tuple[int, ...],
        rate: float,
        rows: CrossCache,
        n: int,
    ) -> None:
        super().__init__(draft, target, rows, n)
        self.text, self.rate = text, rate
        self.random = torch.Generator().manual_seed(0)
        self.prompt = 0

    def begin(self, windows: Sequence[Window], prompts: Tensor, rows: CacheRows) -> None:
        super().begin(windows, prompts, rows)
        self.prompt = prompts.shape[1]

    def logits(self, behind: Behind) -> Tensor:
        logits = super().logits(behind)
        places = behind.positions[:, -1] + 1 - self.prompt
        known = torch.tensor([*self.text, 0])[places.clamp(max=len(self.text))]
        wrong = torch.rand(len(known), generator=self.random) >= self.rate
        return logits.scatter(1, (known + wrong.long())[:, None], 1e4)


def texts_of(engine: Engine, windows: int, model: Model, tokens: int) -> tuple[list[Any], float]:
    """The texts, and the seconds they took."""
    since = time.perf_counter()
    for tag in range(windows):
        engine.submit(tag, window(model, tokens, BEFORE))
    texts = []
    while not engine.idle:
        for ticket, answer in engine.step():
            assert isinstance(answer, Decoded)
            texts.append(answer.tokens)
            engine.reply(ticket, None)
    return texts, time.perf_counter() - since


def measure(model: Model, draft: Model, windows: int, rate: float, a: Any) -> dict[str, Any]:
    """Ratios of --rounds rounds, and whether the texts are the same."""
    plain = Engine(model, model.vocabulary, windows)
    (text, *_), _ = texts_of(plain, windows, model, a.tokens)

    def drafter(cross: CrossCache, rows: int) -> Rated:
        return Rated(draft, model, text, rate, cross, rows)

    drafted = Engine(model, model.vocabulary, windows, draft=drafter)
    texts_of(drafted, windows, model, a.tokens)  # its lane learns how long steps take
    ratios, same, lane = [], True, drafted.first
    assert isinstance(lane, SpeculativeLane)
    lane.rounds = lane.guessed = lane.right = 0
    for _ in range(a.rounds):
        expected, without = texts_of(plain, windows, model, a.tokens)
        found, spent = texts_of(drafted, windows, model, a.tokens)
        same &= found == expected
        ratios.append(without / spent)
    tokens = a.rounds * windows * a.tokens
    return {
        "times_as_fast": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
        "same": same,
        "tokens_per_step": round(tokens / windows / max(lane.rounds, 1), 2),
        "right": round(lane.right / max(lane.guessed, 1), 2),
        "ms_per_token_without": round(1000 * without / a.tokens, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["large-v3"], choices=sorted(OFFICIAL_DIMS))
    parser.add_argument("--layers", type=int, default=2, help="of the draft's decoder [2]")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.6, 0.8, 0.9])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--tokens", type=int, default=48, help="of each text [48]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    add_results_flag(parser)
    a = parser.parse_args()
    device, dtype = torch.device(a.device), getattr(torch, a.dtype)
    rows, table = Rows(a.results, "drafts", device), []
    for shape in a.shapes:
        dims = OFFICIAL_DIMS[shape]
        checkpoint = random_checkpoint(dims)
        model = Model(checkpoint, device, dtype)
        small = random_checkpoint(replace(dims, n_text_layer=a.layers), seed=1)
        draft = Model(small, device, dtype, encoder=model.encoder)
        del checkpoint, small
        gc.collect()
        features = torch.randn(1, dims.n_audio_ctx, dims.n_audio_state).to(device, dtype)
        model.encoder = lambda mel, f=features: f.expand(len(mel), -1, -1)  # type: ignore[assignment]
        for windows in a.windows:
            for rate in a.rates:
                key = {"shape": shape, "windows": windows, "rate": rate, "dtype": a.dtype}
                found = {**key, **measure(model, draft, windows, rate, a)}
                rows.add(**found)
                table.append(found)
                print("  ".join(f"{k} {v}" for k, v in found.items()), flush=True)
        del model, draft
        gc.collect()
    print(json.dumps({"machine": machine(device), "rounds": a.rounds, "results": table}))


if __name__ == "__main__":
    main()
