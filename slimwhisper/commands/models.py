"""Runs the `models` command: lists the names for `--model`, and the models on this machine."""

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from slimwhisper.cache.forms import PRESETS
from slimwhisper.checkpoint.files import expand_user, expected_shapes
from slimwhisper.checkpoint.load import read
from slimwhisper.commands.costs import allocate, known_dims
from slimwhisper.commands.tables import console, table
from slimwhisper.errors import CheckpointError
from slimwhisper.formats import names
from slimwhisper.formats.downloads import default_download_root, fetch_model
from slimwhisper.text import human_size
from slimwhisper.tokens.vocabulary import SIZES
from slimwhisper.types import Dims

PRESET = "slim"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A name, and facts about its model that need no loading."""

    name: str
    source: str  # "bundled", "openai", or a repository's id on the Hugging Face hub
    languages: str  # a code, or how many there are; "?": not known
    parameters: int | None  # computed from the dimensions; None: they are not known
    weights_bytes: int | None  # in float16, computed
    window_bytes: int | None  # the caches of a window, preset slim, in float16, computed
    path: str | None  # on this machine; None: it would be downloaded


def run_models(arguments: argparse.Namespace) -> int:
    """The `models` command: `model_dir`, `json`."""
    root = arguments.model_dir
    folder = default_download_root() if root is None else expand_user(root)
    models = [_describe(name, folder) for name in names.available_models()]
    if arguments.json:
        print(json.dumps([asdict(model) for model in models]))
    else:
        print_models(models)
    return 0


def _describe(name: str, root: Path) -> KnownModel:
    """root: the folder of downloaded models."""
    path: Path | None = None
    if name in names.BUNDLED:
        source, path = "bundled", names.bundled_file(name)
        dims: Dims | None = read(names.bundled_file(name)).dims
    elif name in names.HUB_MODELS:
        source, dims = names.HUB_MODELS[name].repository, known_dims(name)
        with suppress(CheckpointError):  # its config and weights are in the hub's cache
            path = fetch_model(source, local_files_only=True)
    else:
        source, dims = "openai", known_dims(name)
        file = root / names.MODEL_URLS[name].rpartition("/")[2]
        path = file if file.is_file() else None
    parameters = window = None
    languages = names.HUB_MODELS[name].language if name in names.HUB_MODELS else "?"
    if dims is not None:
        parameters = sum(map(math.prod, expected_shapes(dims).values()))
        caches = dict(zip(PRESETS, allocate(dims, 1, torch.float16), strict=True))
        window = caches[PRESET].bytes_per_window
        if name not in names.HUB_MODELS:
            count = str(dims.num_languages) if dims.is_multilingual else "en"
            languages = count if dims.n_vocab in SIZES else "?"
    size = None if parameters is None else parameters * torch.float16.itemsize
    location = None if path is None else str(path)
    return KnownModel(name, source, languages, parameters, size, window, location)


def print_models(models: Sequence[KnownModel]) -> None:
    """Print a table, never cut at the terminal's width, and what its columns mean."""
    headings = ("name", "installed", "languages", "weights", "per window", "source")
    cells = []
    for m in models:
        sizes = ("-" if n is None else human_size(n) for n in (m.weights_bytes, m.window_bytes))
        cells.append((m.name, "yes" if m.path else "-", m.languages, *sizes, m.source))
    page = console()
    page.print(table(headings, cells, (*headings[:3], "source")))
    page.print(
        "languages: how many, or the code of the one it was trained for. weights, per window:\n"
        "in float16, computed from the dimensions; per window: the caches of one window with\n"
        f"preset {PRESET}. A Hugging Face id, folder or .pt file works too."
    )
