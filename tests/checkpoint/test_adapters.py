"""Adapters merged at load, against the formulas written out number by number; no PEFT needed."""

import argparse
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slimwhisper.api import load_model
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.checkpoint.validate import EMBEDDING
from slimwhisper.digests import weights_digest
from slimwhisper.flags import load_weights
from slimwhisper.jobs.journal.identity import identify_adapters
from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import DIMS, State, save_openai

QUERY, OURS = "model.decoder.layers.0.self_attn.q_proj", "decoder.blocks.0.attn.query"


def by_hand(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """The formula, one number at a time: weight [out, in], a [r, in], b [out, r], float64."""
    merged = np.array(weight.tolist())
    for i in range(len(merged)):
        for j in range(merged.shape[1]):
            merged[i, j] += scaling * sum(float(b[i, k]) * float(a[k, j]) for k in range(len(a)))
    return torch.from_numpy(merged)


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({}, 6 / 2),
        ({"lora_alpha": 3.5}, 3.5 / 2),
        ({"use_rslora": True}, 6 / sqrt(2)),
        ({"use_rslora": True, "lora_alpha": -1}, -1 / sqrt(2)),
        ({"fan_in_fan_out": True}, 3),  # Whisper has nothing for which this holds
        (
            {"init_lora_weights": "gaussian", "target_modules": ".*(q|v)_proj", "rank_pattern": {}},
            3,
        ),
    ],
)
@pytest.mark.parametrize("pickled", [False, True])
def test_formula(
    folder: Path,
    tmp_path: Path,
    state: State,
    settings: dict[str, Any],
    scaling: float,
    pickled: bool,
) -> None:
    factors = query_and_value_factors(DIMS)
    adapter = save_adapter(tmp_path / "a", factors, pickled, **settings)
    found = load_checkpoint(folder, adapter=adapter).state
    a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
    wanted = by_hand(state[f"{OURS}.weight"], a, b, scaling)
    assert found[f"{OURS}.weight"].dtype == torch.float32
    assert torch.equal(found[f"{OURS}.weight"], wanted.float())
    changed = {n for n in state if not torch.equal(found[n], state[n])}
    parts = ("attn.query.weight", "attn.value.weight")
    assert changed == {n for n in state if n.endswith(parts)}
    assert len(changed) == 6


def test_half_precision_is_kept_out_of_the_sum(tmp_path: Path, state: State) -> None:
    """A float16 model and a bfloat16 adapter: one rounding, to float32, and only where it is."""
    half = {name: tensor.half() for name, tensor in state.items()}
    path = save_openai(tmp_path / "m.pt", DIMS, half)
    factors = {n: t.bfloat16() for n, t in query_and_value_factors(DIMS).items()}
    found = load_checkpoint(path, adapter=save_adapter(tmp_path / "a", factors)).state
    a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
    assert torch.equal(found[f"{OURS}.weight"], by_hand(half[f"{OURS}.weight"], a, b, 3).float())
    assert found[f"{OURS}.bias"].dtype == found[EMBEDDING].dtype == torch.float16


def test_several_are_added_with_one_rounding(folder: Path, tmp_path: Path, state: State) -> None:
    folders, wanted = [], state[f"{OURS}.weight"]
    for seed in range(3):
        factors = query_and_value_factors(DIMS, rank=2 + seed, seed=seed)
        folders.append(save_adapter(tmp_path / f"{seed}", factors, r=2 + seed))
        a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
        wanted = by_hand(wanted, a, b, 6 / (2 + seed))
    found = load_checkpoint(folder, adapter=folders)
    assert torch.equal(found.state[f"{OURS}.weight"], wanted.float())
    digests = {weights_digest(load_checkpoint(folder, adapter=folders[:n]).state) for n in range(4)}
    assert len(digests) == 4


def test_the_library_and_the_commands(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "a", query_and_value_factors(DIMS))
    wanted = load_checkpoint(folder, adapter=adapter).state
    arguments = argparse.Namespace(model=str(folder), model_dir=None, adapter=[str(adapter)])
    given = load_weights(arguments).state
    assert all(torch.equal(given[name], wanted[name]) for name in wanted)
    tokens, features = torch.tensor([[50_258, 3]]), torch.randn(1, 1500, 8)
    plain, adapted = (load_model(folder, "cpu", adapter=which) for which in (None, [adapter]))
    assert not torch.allclose(plain.logits(tokens, features), adapted.logits(tokens, features))


def test_identity(tmp_path: Path) -> None:
    """What a journal records: order, content, not the path; nothing without an adapter."""
    first, second = (
        str(save_adapter(tmp_path / name, query_and_value_factors(DIMS, seed=seed)))
        for seed, name in enumerate(("one", "two"))
    )
    assert identify_adapters(None) == identify_adapters([]) == {}
    both = identify_adapters([first, second])["adapters"]
    assert identify_adapters([second, first])["adapters"] == both[::-1]
    assert [entry.split()[0] for entry in both] == ["one", "two"]
    assert identify_adapters(["me/whisper-lora"]) == {"adapters": ["me/whisper-lora"]}
    moved = save_adapter(tmp_path / "elsewhere" / "one", query_and_value_factors(DIMS))
    assert identify_adapters([str(moved)])["adapters"] == both[:1]
    save_adapter(moved, query_and_value_factors(DIMS), lora_alpha=7)
    assert identify_adapters([str(moved)])["adapters"] != both[:1]
