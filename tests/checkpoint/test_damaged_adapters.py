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
    LFS,
    NAN,
    PAGE,
    Case,
    Damage,
    bomb,
    cut,
    link_out,
    pickled,
    refused,
    remove,
    tensors,
    write,
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
ENDLESS = {A: torch.full((2, 8), 3e38), B: torch.full((8, 2), 3e38)}

FILES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "truncated": (cut(ADAPTER, -100), (ADAPTER, "again")),
    "empty": (write(ADAPTER, ""), (ADAPTER, "is empty")),
    "web page": (write(ADAPTER, PAGE), (ADAPTER, "web page")),
    "git-lfs pointer": (write(ADAPTER, LFS), (ADAPTER, "git lfs pull")),
    "links out": (link_out(ADAPTER), (ADAPTER, "link out")),
    "config links out": (link_out(CONFIG), (CONFIG, "link out")),
    "no weights": (remove(ADAPTER), (ADAPTER, PICKLE, "again")),
    "no config": (remove(CONFIG), (CONFIG, "again")),
    "config is no JSON": (write(CONFIG, "{"), (CONFIG, "again")),
    "no tensors": (tensors(lambda _: {}, ADAPTER), (ADAPTER, "no tensors")),
    "NaN": (adapter(add={B: NAN[:, None].expand(8, 2).clone()}), (B, "NaN")),
    "wrong dtype": (adapter(add={A: torch.ones(2, 8).int()}), (A, "int32")),
    "another type": (adapter(peft_type="IA3"), ("IA3", "PEFT")),
    "another LoRA": (adapter(use_qalora=True), ("use_qalora", "PEFT")),
    "one from tomorrow": (adapter(new_config={"a": 1}), ("new_config", "PEFT")),
    "moves the base": (adapter(init_lora_weights="pissa_niter_4"), ("pissa", "PEFT")),
    "rank is text": (adapter(r="2"), (CONFIG, "'2'")),
    "alpha is endless": (adapter(lora_alpha=10**400), ("lora_alpha", "again")),
    "another rank": (adapter(r=4), (ADAPTER, "rank 2", "4")),
    "a rank for some": (adapter(rank_pattern={"(a+)+": 2}), ("rank_pattern", "PEFT")),
    "rank is zero": (adapter(r=0), (CONFIG, "r is 0")),
    "rank is endless": (adapter(r=10**400, lora_alpha=1.5), (CONFIG, "r is 1")),
    "factor missing": (adapter(B), (QUERY, "lora_B.weight")),
    "module missing": (adapter(A, B), (QUERY, "incomplete")),
    "more layers": (of_another(n_text_layer=2), ("layers.1", "another model")),
    "fewer layers": (of_another(n_text_layer=0), ("decoder.layers.0", "another model")),
    "another width": (of_another(n_text_state=16), ("[16, 16]", "[8, 8]", "another")),
    "unknown tensor": (adapter(add={f"{QUERY}.hada_w1": NAN}), ("hada_w1", "PEFT")),
    "magnitude": (adapter(add={f"{QUERY}.lora_magnitude_vector": NAN}), (QUERY, "magnitude")),
    "DoRA": (adapter(use_dora=True), ("use_dora", "PEFT")),
    "whole matrix": (adapter(add={"proj_out.weight": torch.ones(9, 8)}), ("proj_out", "PEFT")),
    "tied output": (adapter(add=pair("proj_out", 51_865)), ("proj_out", "PEFT")),
    "embedding": (
        adapter(add=pair("model.decoder.embed_tokens", 51_865)),
        ("embed_tokens", "PEFT"),
    ),
    "positions": (adapter(add=pair("model.decoder.embed_positions", 448)), ("no linear", "PEFT")),
    "convolution": (adapter(add=CONV), ("conv2", "PEFT")),
    "one of two names": (adapter(add=pair(QUERY.removeprefix("model."))), ("q_proj", "second")),
    "a sum that is infinite": (adapter(add=ENDLESS), ("attn.query", "infinity")),
    "other names": (
        tensors(lambda t: {n.removeprefix(PREFIX): x for n, x in t.items()}, ADAPTER),
        (ADAPTER, "has tensor model.", "PEFT"),
    ),
}
PICKLES: dict[str, Case] = {
    "truncated": ("adapter-pickle", cut(PICKLE, -1000), (PICKLE, "again")),
    "runs code": ("adapter-pickle", pickled(PICKLE, CODE), (PICKLE, "run code")),
    "zip bomb": ("adapter-pickle", bomb(PICKLE), (PICKLE, "compressed")),
}


@pytest.mark.parametrize("kind", FILES)
def test_damage(sound: Path, tmp_path: Path, kind: str) -> None:
    refused(sound, tmp_path, ("adapter", *FILES[kind]))


@pytest.mark.parametrize("kind", PICKLES)
def test_pickles(sound: Path, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused(sound, tmp_path, PICKLES[kind])
    assert "must not be printed" not in capfd.readouterr().out


def test_adapters_that_are_none(sound: Path, tmp_path: Path) -> None:
    for adapter, expected in (
        (sound / "whole", "whole model"),
        (sound / "openai" / "model.pt", "folder"),
        (tmp_path / "nothing", "no such folder"),
        ("", "no such folder"),
    ):
        message = refusal(sound / "whole", adapter=adapter)
        assert str(adapter) in message and expected in message
