"""A real draft on recordings, for `drafts.py`: whether the texts are the same, and the time saved.

The recordings are encoded once; with and without a draft the same windows are decoded, in turns.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from drafts_rated import compared, decoded, missing
from numpy.typing import NDArray
from rows import Row, Rows
from torch import Tensor

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.digests import weights_digest
from slimwhisper.engine.draft_model import DraftModel, load_draft
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.pace import LENGTHS
from slimwhisper.engine.requests import Window
from slimwhisper.engine.speculation import SpeculativeLane
from slimwhisper.longform.session import Session
from slimwhisper.model.model import Model
from slimwhisper.types import Options


class Always:
    """In the place of a `Pace`: the same length, whether that pays or not."""

    timed = False

    def __init__(self, length: int) -> None:
        self._length = length

    def choose(self, hopes: NDArray[np.float64], most: int) -> int:
        return max(k for k in LENGTHS if k <= min(self._length, most))


def run(asked: argparse.Namespace, rows: Rows) -> list[Row]:
    """Measure what the results do not have yet; returns all rows."""
    paths = sorted(p for p in asked.folder.iterdir() if p.suffix in AUDIO_SUFFIXES)[: asked.count]
    checkpoint, smaller = load_checkpoint(asked.model), load_checkpoint(asked.draft)
    case = {
        "what": "texts",
        "model": asked.model,
        "draft": Path(asked.draft).name,
        "weights": [weights_digest(checkpoint.state), weights_digest(smaller.state)],
        "recordings": len(paths),
        "threads": torch.get_num_threads(),
    }
    cases = [
        {**case, "windows": windows, "length": length}
        for windows in asked.windows
        for length in asked.lengths
    ]
    to_do = missing(rows, asked, cases)
    if to_do:
        model = Model(checkpoint, torch.device("cpu"), torch.float32)
        draft = load_draft(smaller, checkpoint, model)
        windows, seconds = encoded(model, paths)
        case_rounds(model, draft, windows, to_do, rows, seconds)
    return [rows.kept(**one, round=n)[-1] for one in cases for n in range(asked.rounds)]


def encoded(model: Model, paths: Sequence[Path]) -> tuple[list[Window], float]:
    """The first window of each recording, whose encoder output the model will remember; and the
    seconds that the encoder took.
    """
    options, windows, spent = Options(language="en"), [], 0.0
    outputs: list[Tensor] = []  # [p, d] of each window
    for number, path in enumerate(paths):
        mel = Spectrogram(ArraySamples(load_audio(str(path))), model.dims.n_mels)
        session = Session(mel, model.dims, options, vocabulary=model.vocabulary)
        request = session.next_request()
        assert isinstance(request, Window) and request.mel is not None
        since = time.perf_counter()
        with torch.inference_mode():
            outputs.append(model.encoder(request.mel[None])[0])
        spent += time.perf_counter() - since
        # only its number is read
        windows.append(replace(request, mel=torch.tensor(float(number)).expand_as(request.mel)))
        mel.close()
    kept = torch.stack(outputs)
    vars(model)["encoder"] = lambda mel: kept[mel[:, 0, 0].long()]
    return windows, spent


def case_rounds(
    model: Model,
    draft: Model,
    windows: Sequence[Window],
    to_do: Sequence[Row],
    rows: Rows,
    encoder: float,
) -> None:
    """Rounds: without a draft, then with each length of the draft."""
    for slots in dict.fromkeys(row["windows"] for row in to_do):
        plain = Engine(model, model.vocabulary, slots)
        decoded(plain, windows[: 2 * slots])
        here = [row for row in to_do if row["windows"] == slots]
        lengths = dict.fromkeys(row["length"] for row in here)
        drafted = {length: with_draft(model, draft, slots, length) for length in lengths}
        for engine in drafted.values():
            decoded(engine, windows[: 2 * slots])  # its lane learns how long steps take
        for number in sorted({row["round"] for row in here}):
            without = decoded(plain, windows)
            for row in here:
                if row["round"] == number:
                    found = compared(without, drafted[row["length"]], windows)
                    rows.add(**row, **found, encoder_seconds=encoder)


def with_draft(model: Model, draft: Model, slots: int, length: int) -> Engine:
    """length: of every draft; 0: as the lane chooses."""
    made = partial(DraftModel, draft, model)
    engine = Engine(model, model.vocabulary, slots, draft=made)
    assert isinstance(engine.first, SpeculativeLane)
    if length:
        vars(engine.first)["pace"] = Always(length)
    return engine
