"""transformers as the oracle: what `save_pretrained` wrote gives the same logits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.checkpoint.validate import OUTPUT
from slimwhisper.model.model import Model
from slimwhisper.types import Dims
from tests.support import oracle
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.oracle import their_logits, their_model

transformers = oracle.transformers()

DIMS = replace(tiny_dims(width=16, heads=2), n_audio_ctx=40)
TEXT = [50_258, 50_259, 50_359, 50_363, 11, 700, 23, 9]


def untied(model: Any, noise: bool) -> None:
    """Give the model a matrix for the logits that is no longer the embedding."""
    matrix = model.get_input_embeddings().weight.detach().clone()
    generator = torch.Generator().manual_seed(1)
    matrix += noise * torch.randn(matrix.shape, generator=generator)
    model.proj_out.weight = torch.nn.Parameter(matrix)


CASES: dict[str, tuple[Dims, dict[str, Any]]] = {
    "plain": (DIMS, {}),
    "shards": (DIMS, {"max_shard_size": "200KB"}),
    "half": (DIMS, {"dtype": torch.float16}),
    "bfloat16": (DIMS, {"dtype": torch.bfloat16}),
    "untied": (DIMS, {"untie": True}),
    "untied in name only": (DIMS, {"untie": False}),
    "untied in shards": (DIMS, {"untie": True, "max_shard_size": "2MB"}),
    "other heads and layers": (replace(DIMS, n_audio_head=4, n_audio_layer=3, n_text_layer=1), {}),
    "long text": (replace(DIMS, n_text_ctx=700), {}),
    "half a window": (replace(DIMS, n_audio_ctx=750), {}),
    "more mel bands": (replace(DIMS, n_mels=128, n_vocab=51_866), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_transformers(tmp_path: Path, name: str) -> None:
    """In float64: sums in another order, 1e-10 of the largest logit. And in float32, where a sum of
    some hundred numbers differs by 1e-6, ten of them in a row: 1e-4.
    """
    dims, how = CASES[name]
    model = their_model(dims, random_state(dims, seed=3))
    how = dict(how)
    if "untie" in how:
        model.config.tie_word_embeddings = False
        untied(model, how["untie"])
    expected = bool(how.pop("untie", False))
    model = model.to(how.pop("dtype", torch.float32))
    model.save_pretrained(tmp_path / "m", **how)
    found = load_checkpoint(tmp_path / "m")
    assert found.dims == dims
    assert (OUTPUT in found.state) == expected
    text = [*TEXT, *range(1000, 1000 + max(0, dims.n_text_ctx - 448))]
    frames = dims.window_frames
    mel = torch.randn(dims.n_mels, frames, generator=torch.Generator().manual_seed(5))
    wanted = their_logits(model, mel, text)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        ours = Model(found, torch.device("cpu"), dtype)
        logits = ours.logits(torch.tensor([text]), ours.encoder(mel[None]))[0]
        assert (logits - wanted).abs().max() < tolerance * wanted.abs().max()


def test_both_read_the_same_output_matrix(tmp_path: Path) -> None:
    """config.json says tied, and the file has two matrices: both of us use the two."""
    model = their_model(DIMS, random_state(DIMS, seed=3))
    model.config.tie_word_embeddings = False
    untied(model, True)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"x": 0'))
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(theirs.proj_out.weight, load_checkpoint(tmp_path).state[OUTPUT])
    assert torch.equal(theirs.proj_out.weight, model.proj_out.weight)
