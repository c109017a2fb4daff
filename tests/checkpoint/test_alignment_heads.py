"""Which heads word timestamps are read from."""

from pathlib import Path

import pytest
import torch
import whisper

from slimwhisper.checkpoint.settings import default_heads, parse_head_dump
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.formats.names import ALIGNMENT_DUMPS
from slimwhisper.formats.settings import parse_head_pairs
from slimwhisper.model.model import Model
from slimwhisper.types import Dims
from tests.support.checkpoints import random_state, save_hf, save_openai, tiny_dims


def dims_of(layers: int, heads: int) -> Dims:
    return Dims(80, 1500, heads * 64, heads, layers, 51_865, 448, heads * 64, heads, layers)


def as_whisper(dims: Dims, dump: bytes | None) -> dict[int, list[int]]:
    """The heads that openai-whisper's model holds."""
    heads, layers = dims.n_text_head, dims.n_text_layer
    small = whisper.model.ModelDimensions(80, 4, 8, 1, 1, 10, 4, 4 * heads, heads, layers)
    model = whisper.model.Whisper(small)
    if dump is not None:
        model.set_alignment_heads(dump)
    found: dict[int, list[int]] = {}
    for layer, head in model.alignment_heads.coalesce().indices().T.tolist():
        found.setdefault(layer, []).append(head)
    return found


def plain(heads) -> dict[int, list[int]]:
    return {layer: list(own) for layer, own in heads.items()}


@pytest.mark.parametrize("name", ["tiny", "base.en", "large-v3", "turbo"])
def test_official_heads(name: str) -> None:
    dims = OFFICIAL_DIMS[name]
    heads = parse_head_dump(ALIGNMENT_DUMPS[name], dims)
    assert plain(heads) == as_whisper(dims, whisper._ALIGNMENT_HEADS[name])


def test_unknown_weights_use_the_upper_half() -> None:
    dims = dims_of(5, 2)
    assert plain(default_heads(dims)) == as_whisper(dims, None) == {2: [0, 1], 3: [0, 1], 4: [0, 1]}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([[3, 5], [1, 2], [3, 0]], {1: [2], 3: [0, 5]}),
        (None, None),
        ([], None),
        ([[4, 0]], None),
        ([[float("inf"), 0]], None),
        (3, None),
    ],
)
def test_heads_of_a_folder(pairs: object, expected: dict[int, list[int]] | None) -> None:
    assert parse_head_pairs(pairs, dims_of(4, 6)) == expected


def test_checkpoints_bring_their_heads(tmp_path: Path) -> None:
    dims = tiny_dims(width=64, heads=2, multilingual=False)
    state = random_state(dims, seed=0)
    folder = save_hf(tmp_path / "model", dims, state)
    (folder / "generation_config.json").write_text('{"alignment_heads": [[0, 1]]}')
    file = save_openai(tmp_path / "model.pt", dims, state)
    for path, expected in ((folder, {0: [1]}), (file, plain(default_heads(dims)))):
        model = Model(load_checkpoint(path), torch.device("cpu"), torch.float32)
        assert plain(model.alignment_heads) == expected
