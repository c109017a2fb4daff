"""Adapters merged at load, against formulas number by number; damaged ones are one line each."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slimwhisper.checkpoint.files import EMBEDDING
from slimwhisper.flags import load_weights
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.jobs.journal import identify_adapter
from slimwhisper.loading import load_model
from tests.support import damage as d
from tests.support.adapters import PREFIX, query_and_value_factors, save_adapter
from tests.support.checkpoints import DIMS, State, refusal, save_openai

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
        ({"lora_alpha": -1}, -1 / 2),
        ({"init_lora_weights": "gaussian", "target_modules": ".*(q|v)_proj"}, 3),
    ],
)
def test_formula(
    folder: Path, tmp_path: Path, state: State, settings: dict[str, Any], scaling: float
) -> None:
    factors = query_and_value_factors(DIMS)
    adapter = save_adapter(tmp_path / "a", factors, **settings)
    found = load_checkpoint(folder, adapter=adapter).state
    a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
    wanted = by_hand(state[f"{OURS}.weight"], a, b, scaling)
    assert found[f"{OURS}.weight"].dtype == torch.float32
    assert torch.equal(found[f"{OURS}.weight"], wanted.float())
    changed = {n for n in state if not torch.equal(found[n], state[n])}
    assert changed == {n for n in state if n.endswith(("attn.query.weight", "attn.value.weight"))}


def test_half_precision_is_kept_out_of_the_sum(tmp_path: Path, state: State) -> None:
    """A float16 model and a bfloat16 adapter: one rounding, to float32, and only where it is."""
    half = {name: tensor.half() for name, tensor in state.items()}
    path = save_openai(tmp_path / "m.pt", DIMS, half)
    factors = {n: t.bfloat16() for n, t in query_and_value_factors(DIMS).items()}
    found = load_checkpoint(path, adapter=save_adapter(tmp_path / "a", factors)).state
    a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
    assert torch.equal(found[f"{OURS}.weight"], by_hand(half[f"{OURS}.weight"], a, b, 3).float())
    assert found[f"{OURS}.bias"].dtype == found[EMBEDDING].dtype == torch.float16


def test_the_library_and_the_commands(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "a", query_and_value_factors(DIMS))
    wanted = load_checkpoint(folder, adapter=adapter).state
    arguments = argparse.Namespace(model=str(folder), model_dir=None, adapter=str(adapter))
    given = load_weights(arguments).state
    assert all(torch.equal(given[name], wanted[name]) for name in wanted)
    tokens, features = torch.tensor([[50_258, 3]]), torch.randn(1, 1500, 8)
    plain, adapted = (load_model(folder, "cpu", adapter=which) for which in (None, adapter))
    assert not torch.allclose(plain.logits(tokens, features), adapted.logits(tokens, features))


def test_identity(tmp_path: Path) -> None:
    """What a journal records: content, not the path; nothing without an adapter."""
    first, second = (
        str(save_adapter(tmp_path / name, query_and_value_factors(DIMS, seed=seed)))
        for seed, name in enumerate(("one", "two"))
    )
    assert identify_adapter(None) == identify_adapter("") == {}
    both = [*identify_adapter(first)["adapters"], *identify_adapter(second)["adapters"]]
    assert [entry.split()[0] for entry in both] == ["one", "two"]
    assert identify_adapter("me/whisper-lora") == {"adapters": ["me/whisper-lora"]}
    moved = save_adapter(tmp_path / "elsewhere" / "one", query_and_value_factors(DIMS))
    assert identify_adapter(str(moved))["adapters"] == both[:1]
    save_adapter(moved, query_and_value_factors(DIMS), lora_alpha=7)
    assert identify_adapter(str(moved))["adapters"] != both[:1]


ADAPTER, PICKLE, CONFIG = "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"
A, B = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"


def adapter(*removed: str, add: Any = None, **settings: Any) -> d.Damage:
    """The adapter with some tensors less, some more, and other settings."""
    kept = {n: t for n, t in query_and_value_factors(DIMS).items() if n not in removed}
    return lambda folder: save_adapter(folder, kept | (add or {}), **settings)


def of_another(**dims: int) -> d.Damage:
    return lambda folder: save_adapter(folder, query_and_value_factors(replace(DIMS, **dims)))


def pair(module: str, out: int = 8, into: int = 8) -> dict[str, torch.Tensor]:
    """Factors of rank 2 for a module of this name and size."""
    a, b = torch.ones(2, into), torch.ones(out, 2)
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}


CONV = {
    "model.encoder.conv2.lora_A.weight": torch.ones(2, 8, 3),
    "model.encoder.conv2.lora_B.weight": torch.ones(8, 2, 1),
}

CASES: list[d.Case] = [
    ("adapter", damage, said)
    for damage, *said in (
        (d.link_out(ADAPTER), ADAPTER, "outside its folder"),
        (d.remove(ADAPTER), ADAPTER, PICKLE, "again"),
        (d.remove(CONFIG), CONFIG, "again"),
        (d.cut(ADAPTER, -100), ADAPTER, "again"),
        # settings
        (adapter(peft_type="IA3"), "IA3", "PEFT"),
        (adapter(use_qalora=True), "use_qalora", "PEFT"),
        (adapter(init_lora_weights="pissa_niter_4"), "pissa", "PEFT"),
        (adapter(rank_pattern={"(a+)+": 2}), "rank_pattern", "PEFT"),
        (adapter(r=0), CONFIG, "r is 0"),
        (adapter(r=10**400, lora_alpha=1.5), CONFIG, "r is 1"),
        (adapter(r=4), ADAPTER, "rank 2", "4"),
        (adapter(lora_alpha=10**400), "lora_alpha", "again"),
        # tensors
        (d.tensors(lambda _: {}, ADAPTER), ADAPTER, "no tensors"),
        (d.tensors(lambda t: {n.removeprefix(PREFIX): x for n, x in t.items()}, ADAPTER), "PEFT"),
        (adapter(add={B: d.NAN[:, None].expand(8, 2).clone()}), B, "NaN"),
        (adapter(add={A: torch.full((2, 8), 3e38), B: torch.full((8, 2), 3e38)}), "infinity"),
        (adapter(B), QUERY, "lora_B.weight"),
        (adapter(add=pair(QUERY.removeprefix("model."))), "q_proj", "second"),
        (adapter(add={"proj_out.weight": torch.ones(9, 8)}), "proj_out", "PEFT"),
        (adapter(add=pair("model.decoder.embed_tokens", 51_865)), "embed_tokens", "PEFT"),
        (adapter(add=CONV), "conv2", "PEFT"),
        # another model's
        (of_another(n_text_layer=2), "layers.1", "another model"),
        (of_another(n_text_state=16), "[16, 16]", "[8, 8]", "another"),
    )
]
CASES.append(("adapter-pickle", d.pickled(PICKLE, d.CODE), (PICKLE, "run code")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[2]))
def test_damage(sound: Path, tmp_path: Path, case: d.Case) -> None:
    d.assert_refused(sound, tmp_path, case)


def test_adapters_that_are_none(sound: Path, tmp_path: Path) -> None:
    for adapter, expected in (
        (sound / "whole", "complete model"),
        (sound / "openai" / "model.pt", "folder"),
        (tmp_path / "nothing", "no such folder"),
        ("", "no such folder"),
        ([sound / "adapter"] * 2, "PEFT"),
    ):
        message = refusal(sound / "whole", adapter=adapter)
        assert str(adapter) in message and expected in message
