"""The memory that a draft takes, measured, and by `slimwhisper report --draft`; for `drafts.py`.

Each measurement has a process of its own: what another one has freed would hide a rise.
"""

import argparse
import gc
import os
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from decode import window
from drafts_rated import decoded, made, with_draft, without_encoder
from rows import Row, Rows
from timing import resident_bytes

from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS, make_report
from slimwhisper.commands.measurement import Memory
from slimwhisper.commands.report import costs_of_draft
from slimwhisper.engine.draft_model import DraftModel, load_draft
from slimwhisper.engine.engine import Engine
from slimwhisper.model.model import Model

TOKENS = 16


def run(asked: argparse.Namespace, rows: Rows) -> list[Row]:
    """Measure what the results do not have yet; returns all rows."""
    found = []
    for model, draft in pairs(asked):
        for windows in asked.windows:
            case = {"what": "memory", "model": model, "draft": Path(draft).name, "windows": windows}
            kept = rows.kept(**case)
            found += kept[-1:] or [rows.add(**case, **measured(model, draft, windows))]
    return found


def pairs(asked: argparse.Namespace) -> list[tuple[str, str]]:
    """Models and drafts: checkpoints, or official shapes with a number of layers."""
    if asked.shapes:
        return [(shape, str(asked.layers)) for shape in asked.shapes]
    return [(asked.model, asked.draft)]


def measured(model: str, draft: str, windows: int) -> dict[str, Any]:
    """Columns of a row, in bytes."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        without, with_draft = (
            pool.apply(alone, (model, other, windows)) for other in (None, draft)
        )
    small, dims = with_draft.pop("draft"), with_draft.pop("dims")
    said = costs_of_draft(small, make_report(dims, windows, "float32"), Path(draft).name)
    return {
        "weights_said": said.weights,
        "weights": with_draft["resident"] - without["resident"],
        "text_said": said.text,
        "text": with_draft["caches"] - without["caches"],
        "both_said": said.weights + said.text,
        "peak": with_draft["peak"] - without["peak"],
        "resident_without": without["resident"],
        "peak_without": without["peak"],
    }


def alone(name: str, draft: str | None, windows: int) -> dict[str, Any]:
    """In a process of its own: what a model holds, and its peak while windows are decoded."""
    model, smaller = loaded(name, draft)
    dims, small = model.dims, None if smaller is None else smaller.dims
    without_encoder(model)
    gc.collect()
    memory = Memory(torch.device("cpu"))
    resident = resident_bytes(os.getpid())
    maker = None if smaller is None else partial(DraftModel, smaller, model)
    engine = Engine(model, model.vocabulary, windows, draft=maker)
    decoded(engine, [window(model, TOKENS, 0)] * windows)
    caches, peak = engine.nbytes(), memory.peak()
    return {"resident": resident, "peak": peak, "caches": caches, "dims": dims, "draft": small}


def loaded(name: str, draft: str | None) -> tuple[Model, Model | None]:
    """A model and its draft: from checkpoints, or an official shape and a number of layers."""
    if name in OFFICIAL_DIMS and (draft is None or draft.isdigit()):
        model = made(name, "float32")
        return (model, None) if draft is None else with_draft(model, int(draft))
    checkpoint = load_checkpoint(name)
    model = Model(checkpoint, torch.device("cpu"), torch.float32)
    if draft is None:
        return model, None
    return model, load_draft(load_checkpoint(draft), checkpoint, model)
