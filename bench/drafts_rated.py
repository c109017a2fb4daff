"""Drafts that are right with a given probability, on official shapes; for `drafts.py`.

Random weights agree on nothing, so the draft computes its guesses, which takes its time, and the
guesses are then made right with the probability that is asked for. Decoders alone: the encoder is
the same with and without a draft, so it has one layer, and its output is made up.
"""

import argparse
import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from decode import window
from rows import Row, Rows
from torch import Tensor

from slimwhisper.cache.base import Rows as CacheRows
from slimwhisper.cache.plan import CrossCache
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.devices import INT8
from slimwhisper.engine.draft_model import DraftModel, fast_draft
from slimwhisper.engine.drafter import Behind
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Window
from slimwhisper.engine.speculation import SpeculativeLane
from slimwhisper.model.model import Model


class Rated(DraftModel):
    """Guesses that are right with a given probability, in the time that a draft takes."""

    def __init__(
        self,
        draft: Model,
        target: Model,
        text: tuple[int, ...],
        rate: float,
        cross: CrossCache,
        rows: int,
    ) -> None:
        """text: that all windows will have."""
        super().__init__(draft, target, cross, rows)
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


def run(asked: argparse.Namespace, rows: Rows) -> list[Row]:
    """Measure what the results do not have yet; returns all rows."""
    found = []
    for shape, dtype, cross in product(asked.shapes, asked.dtypes, asked.cross_caches):
        case = {"what": "rated", "shape": shape, "dtype": dtype, "layers": asked.layers}
        case |= {"cross": cross, "tokens": asked.tokens, "threads": torch.get_num_threads()}
        models: tuple[Model, Model] | None = None
        for windows in asked.windows:
            key = {**case, "windows": windows}
            numbers = missing(rows, asked, [{**key, "rate": rate} for rate in asked.rates])
            if numbers:
                models = models or with_draft(made(shape, dtype, cross), asked.layers)
                measure(*models, key, numbers, asked.tokens, rows)
            for rate in asked.rates:
                for number in range(asked.rounds):
                    found += rows.kept(**key, rate=rate, round=number)[-1:]
        del models
        gc.collect()
    return found


def missing(rows: Rows, asked: argparse.Namespace, cases: Iterable[Row]) -> list[Row]:
    """The cases, each with a round, that were not measured yet; round by round."""
    every = [{**case, "round": n} for n in range(asked.rounds) for case in cases]
    return [case for case in every if not rows.kept(**case)]


def made(shape: str, dtype: str, cross: str = "e") -> Model:
    """A model with random weights, whose encoder's output is made up. cross: the form of its cache
    of the audio.
    """
    dims = replace(OFFICIAL_DIMS[shape], n_audio_layer=1)
    number = torch.float32 if dtype == INT8 else getattr(torch, dtype)
    checkpoint, forms = random_checkpoint(dims, 0), (cross, "x")
    model = Model(checkpoint, torch.device("cpu"), number, forms, int8=dtype == INT8)
    without_encoder(model)
    return model


def with_draft(model: Model, layers: int) -> tuple[Model, Model]:
    """The model, and a draft with random weights and so many layers."""
    dims = replace(model.dims, n_text_layer=layers)
    return model, fast_draft(random_checkpoint(dims, 1), model)


def without_encoder(model: Model) -> None:
    """Every window gets the same encoder output."""
    dims, random = model.dims, torch.Generator().manual_seed(0)
    made_up = torch.randn(1, dims.n_audio_ctx, dims.n_audio_state, generator=random)
    vars(model)["encoder"] = lambda mel: made_up.to(model.dtype).expand(len(mel), -1, -1)


def measure(
    model: Model, draft: Model, case: Row, missing: Sequence[Row], tokens: int, rows: Rows
) -> None:
    """Rounds: with each rate, and just before without a draft."""
    windows = [window(model, tokens, 0)] * case["windows"]
    plain = Engine(model, model.vocabulary, len(windows))
    text = decoded(plain, windows)[0][0]
    drafted = {}
    for rate in dict.fromkeys(row["rate"] for row in missing):
        rated = partial(Rated, draft, model, text, rate)
        drafted[rate] = Engine(model, model.vocabulary, len(windows), draft=rated)
        decoded(drafted[rate], windows)  # its lane learns how long steps take
    for row in missing:
        without = decoded(plain, windows)
        rows.add(**row, **compared(without, drafted[row["rate"]], windows))


Texts = tuple[list[tuple[int, ...]], float]  # tokens of each window, and the seconds they took


def decoded(engine: Engine, windows: Sequence[Window]) -> Texts:
    """The texts of all windows."""
    since = time.perf_counter()
    for tag, one in enumerate(windows):
        engine.submit(tag, one)
    texts: dict[int, tuple[int, ...]] = {}
    while not engine.idle:
        for ticket, answer in engine.step():
            assert isinstance(answer, Decoded)
            texts[ticket.tag] = tuple(answer.tokens)
            engine.reply(ticket, None)
    return [texts[tag] for tag in range(len(windows))], time.perf_counter() - since


def compared(without: Texts, engine: Engine, windows: Sequence[Window]) -> dict[str, Any]:
    """Decodes them with a draft, too: columns of a row."""
    lane = engine.first
    assert isinstance(lane, SpeculativeLane)
    lane.guessed = lane.right = 0
    texts, seconds = decoded(engine, windows)
    tokens = sum(map(len, texts))
    return {
        "seconds": seconds,
        "seconds_without": without[1],
        "times_as_fast": without[1] / seconds,
        "different": sum(a != b for a, b in zip(without[0], texts, strict=True)),
        "sampled": tokens,
        "tokens_per_step": tokens / max(tokens - lane.right, 1),  # of each text
        "guessed": lane.guessed,
        "right": lane.right,
    }
