"""Damaged, foreign and dangerous adapters: one line that names the file and the remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.adapters import PREFIX, query_and_value_factors, save_adapter
from tests.support.checkpoints import DIMS, refusal
from tests.support.damage import (
    CODE,
    NAN,
    Case,
    Damage,
    cut,
    link_out,
    pickled,
    refused,
    remove,
    tensors,
)

ADAPTER, PICKLE, CONFIG = "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"
QUERY = "model.decoder.layers.0.self_attn.q_proj"
A, B = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"


def adapter(*removed: str, add: Any = None, **settings: Any) -> Damage:
    """The adapter with some tensors less, some more, and other settings."""
    kept = {n: t for n, t in query_and_value_factors(DIMS).items() if n not in removed}
    return lambda folder: save_adapter(folder, kept | (add or {}), **settings)


def of_another(**dims: int) -> Damage:
    return lambda folder: save_adapter(folder, query_and_value_factors(replace(DIMS, **dims)))


def pair(module: str, out: int = 8, into: int = 8) -> dict[str, torch.Tensor]:
    """Factors of rank 2 for a module of this name and size."""
    a, b = torch.ones(2, into), torch.ones(out, 2)
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}


CONV = {
    "model.encoder.conv2.lora_A.weight": torch.ones(2, 8, 3),
    "model.encoder.conv2.lora_B.weight": torch.ones(8, 2, 1),
}

CASES: list[Case] = [
    ("adapter", damage, said)
    for damage, *said in (
        (link_out(ADAPTER), ADAPTER, "link out"),
        (link_out(CONFIG), CONFIG, "link out"),
        (remove(ADAPTER), ADAPTER, PICKLE, "again"),
        (remove(CONFIG), CONFIG, "again"),
        (cut(ADAPTER, -100), ADAPTER, "again"),
        # settings
        (adapter(peft_type="IA3"), "IA3", "PEFT"),
        (adapter(use_qalora=True), "use_qalora", "PEFT"),
        (adapter(use_dora=True), "use_dora", "PEFT"),
        (adapter(new_config={"a": 1}), "new_config", "PEFT"),
        (adapter(init_lora_weights="pissa_niter_4"), "pissa", "PEFT"),
        (adapter(rank_pattern={"(a+)+": 2}), "rank_pattern", "PEFT"),
        (adapter(r="2"), CONFIG, "'2'"),
        (adapter(r=0), CONFIG, "r is 0"),
        (adapter(r=10**400, lora_alpha=1.5), CONFIG, "r is 1"),
        (adapter(r=4), ADAPTER, "rank 2", "4"),
        (adapter(lora_alpha=10**400), "lora_alpha", "again"),
        # tensors
        (tensors(lambda _: {}, ADAPTER), ADAPTER, "no tensors"),
        (tensors(lambda t: {n.removeprefix(PREFIX): x for n, x in t.items()}, ADAPTER), "PEFT"),
        (adapter(add={B: NAN[:, None].expand(8, 2).clone()}), B, "NaN"),
        (adapter(add={A: torch.full((2, 8), 3e38), B: torch.full((8, 2), 3e38)}), "infinity"),
        (adapter(B), QUERY, "lora_B.weight"),
        (adapter(A, B), QUERY, "incomplete"),
        (adapter(add=pair(QUERY.removeprefix("model."))), "q_proj", "second"),
        (adapter(add={f"{QUERY}.hada_w1": NAN}), "hada_w1", "PEFT"),
        (adapter(add={"proj_out.weight": torch.ones(9, 8)}), "proj_out", "PEFT"),
        (adapter(add=pair("model.decoder.embed_tokens", 51_865)), "embed_tokens", "PEFT"),
        (adapter(add=pair("model.decoder.embed_positions", 448)), "no linear", "PEFT"),
        (adapter(add=CONV), "conv2", "PEFT"),
        # another model's
        (of_another(n_text_layer=2), "layers.1", "another model"),
        (of_another(n_text_layer=0), "decoder.layers.0", "another model"),
        (of_another(n_text_state=16), "[16, 16]", "[8, 8]", "another"),
    )
]
CASES.append(("adapter-pickle", pickled(PICKLE, CODE), (PICKLE, "run code")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[2]))
def test_damage(sound: Path, tmp_path: Path, case: Case) -> None:
    refused(sound, tmp_path, case)


def test_adapters_that_are_none(sound: Path, tmp_path: Path) -> None:
    for adapter, expected in (
        (sound / "whole", "whole model"),
        (sound / "openai" / "model.pt", "folder"),
        (tmp_path / "nothing", "no such folder"),
        ("", "no such folder"),
    ):
        message = refusal(sound / "whole", adapter=adapter)
        assert str(adapter) in message and expected in message
