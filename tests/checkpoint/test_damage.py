"""Damaged, foreign and dangerous models and adapters: one line that names the file and the remedy.

What lies outside the folder is a sound file each time, so a loader that read it would succeed.
"""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slimwhisper.checkpoint.load import load_checkpoint
from tests.support.adapters import PREFIX, query_and_value_factors, save_adapter
from tests.support.checkpoints import (
    DIMS,
    assert_equal,
    hf_config,
    random_state,
    refusal,
    save_hf,
    save_openai,
)

Damage = Callable[[Path], None]
WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
ADAPTER, ADAPTER_PICKLE = "adapter_model.safetensors", "adapter_model.bin"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
BIAS, QUERY = "model.encoder.conv1.bias", "model.decoder.layers.0.self_attn.q_proj"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
PAGE = "<!DOCTYPE html><html><title>Sign in</title></html>"


class RunsCode:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("this must not be printed",)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of each kind, and a file, that load."""
    root, state = tmp_path_factory.mktemp("sound"), random_state(DIMS, seed=1)
    save_hf(root / "whole", DIMS, state)
    save_hf(root / "shards", DIMS, state, shards=2)
    save_hf(root / "pickle", DIMS, state, pickled=True)
    save_openai(root / "model.pt", DIMS, state)
    factors = query_and_value_factors(DIMS)
    save_adapter(root / "adapter", factors)
    save_adapter(root / "adapter-pickle", factors, pickled=True)
    return root


# ---- what is done to a folder


def write(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content) and None


def cut(name: str, keep: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def link_out(name: str) -> Damage:
    """The sound file lies outside the folder, and a link in its place."""

    def damage(folder: Path) -> None:
        outside = folder.parent / f"outside-{name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return damage


def link_to_itself(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    return damage


def index(change: Callable[[dict[str, str], Path], dict[str, str]]) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / f"{WEIGHTS}.index.json"
        found = json.loads(file.read_text())["weight_map"]
        file.write_text(json.dumps({"weight_map": change(found, folder)}))

    return damage


def shard_elsewhere(where: str) -> Damage:
    """The sound shard lies in another folder, and the index says so; `where`: with {} for it."""

    def change(found: dict[str, str], folder: Path) -> dict[str, str]:
        other = folder.parent / "other"
        other.mkdir()
        shutil.move(folder / SECOND, other / SECOND)
        return {n: where.format(other) + f if f == SECOND else f for n, f in found.items()}

    return index(change)


def tensors(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        save_file(change(dict(load_file(path))), path)

    return damage


def pickled(name: str, content: Any) -> Damage:
    return lambda folder: torch.save(content, folder / name)


def bomb(name: str) -> Damage:
    """An archive of 30 kB with 30 MB of zeros where PyTorch has its pickle."""

    def damage(folder: Path) -> None:
        path = folder / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(30_000_000))
            archive.writestr("archive/version", "3")
        assert path.stat().st_size < 1e5

    return damage


def config(**changes: Any) -> Damage:
    return write("config.json", json.dumps(hf_config(DIMS) | changes))


def adapter(remove: tuple[str, ...] = (), add: Any = None, **settings: Any) -> Damage:
    """The adapter with some tensors less, some more, and other settings."""

    def damage(folder: Path) -> None:
        kept = {n: t for n, t in query_and_value_factors(DIMS).items() if n not in remove}
        save_adapter(folder, kept | (add or {}), **settings)

    return damage


def of_another(**dims: int) -> Damage:
    return lambda folder: (
        save_adapter(folder, query_and_value_factors(replace(DIMS, **dims))) and None
    )


NAN, INFINITE = torch.full((8,), float("nan")), torch.full((8,), float("-inf"))
CODE = {"a": torch.ones(1), "b": RunsCode()}

# what: (a sound folder, the damage, parts of the message)
MODELS: dict[str, tuple[str, Damage, tuple[str, ...]]] = {
    "truncated": ("whole", cut(WEIGHTS, 0.7), (WEIGHTS, "again")),
    "truncated shard": ("shards", cut(SECOND, 0.9), (SECOND, "again")),
    "truncated pickle": ("pickle", cut(PICKLE, 0.5), (PICKLE, "again")),
    "no weights": ("whole", remove(WEIGHTS), ("no weights", PICKLE, "again")),
    "shard missing": ("shards", remove(SECOND), (SECOND, "missing", "again")),
    "shard elsewhere": ("shards", shard_elsewhere("../other/"), ("index.json", "../other/")),
    "shard at a path": ("shards", shard_elsewhere("{}/"), ("index.json", "other/", "again")),
    "shard by backslash": ("shards", shard_elsewhere("..\\other\\"), ("index.json", "other")),
    "weights link out": ("whole", link_out(WEIGHTS), (WEIGHTS, "link out", "copy")),
    "shard links out": ("shards", link_out(SECOND), (SECOND, "link out", "copy")),
    "pickle links out": ("pickle", link_out(PICKLE), (PICKLE, "link out", "copy")),
    "index links out": ("shards", link_out(f"{WEIGHTS}.index.json"), ("index.json", "link out")),
    "config links out": ("whole", link_out("config.json"), ("config.json", "link out")),
    "link to itself": ("whole", link_to_itself(WEIGHTS), (WEIGHTS,)),
    "NaN": ("whole", tensors(WEIGHTS, lambda t: t | {BIAS: NAN}), ("conv1.bias", "NaN", "again")),
    "runs code": ("pickle", pickled(PICKLE, CODE), (PICKLE, "could run code", "trust")),
    "old pickle runs code": (
        "pickle",
        lambda folder: (folder / PICKLE).write_bytes(pickle.dumps(CODE, protocol=2)) and None,
        (PICKLE,),
    ),
    "zip bomb": ("pickle", bomb(PICKLE), (PICKLE, "compressed", "torch.save")),
    "pickled list": ("pickle", pickled(PICKLE, [torch.ones(1)]), (PICKLE, "list", "again")),
    "nested": ("pickle", pickled(PICKLE, {"a": {"b": 1}}), (PICKLE, "no named tensor", "save")),
    "wrong shape": (
        "whole",
        tensors(WEIGHTS, lambda t: t | {BIAS: torch.ones(9)}),
        ("conv1.bias", "[9]", "[8]"),
    ),
    "tensor in two shards": (
        "shards",
        lambda folder: (
            [
                tensors(name, lambda t: t | {BIAS: torch.zeros(8)})(folder)
                for name in (FIRST, SECOND)
            ]
            and None
        ),
        (SECOND, BIAS, "second time", "save"),
    ),
    "shard lacks a tensor": (
        "shards",
        index(lambda found, _: found | {"model.x": FIRST}),
        (FIRST, "lacks tensor model.x", "again"),
    ),
    "empty": ("whole", write(WEIGHTS, ""), (WEIGHTS, "is empty", "again")),
    "empty pickle": ("pickle", write(PICKLE, ""), (PICKLE, "is empty", "again")),
    "web page": ("whole", write(WEIGHTS, PAGE), (WEIGHTS, "web page", "again")),
    "web page, pickle": ("pickle", write(PICKLE, PAGE), (PICKLE, "web page", "again")),
    "git-lfs pointer": ("whole", write(WEIGHTS, LFS), (WEIGHTS, "git lfs pull")),
    "git-lfs pointer, pickle": ("pickle", write(PICKLE, LFS), (PICKLE, "git lfs pull")),
    "no config": ("whole", remove("config.json"), ("config.json", "give")),
    "config is no JSON": ("whole", write("config.json", "{"), ("config.json", "again")),
    "config is a web page": ("whole", write("config.json", PAGE), ("config.json", "web page")),
    "config is a pointer": ("whole", write("config.json", LFS), ("config.json", "git lfs pull")),
    "another model": ("whole", config(model_type="wav2vec2"), ("config.json", "wav2vec2")),
    "huge width": ("whole", config(d_model=10**12), ("1000000000000",)),
    "endless layers": ("whole", config(decoder_layers=10**15), ("too few", "again")),
    "negative heads": ("whole", config(decoder_attention_heads=-4), ("config.json", "-4", "again")),
    "endless number": ("whole", write("config.json", "9" * 9000), ("config.json", "again")),
    "another vocabulary": ("whole", config(vocab_size=51_864), ("token_embedding", "51864")),
    "index is no JSON": ("shards", write(f"{WEIGHTS}.index.json", "?"), ("index.json", "again")),
}
A, B = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"
CONV = (("A", (2, 8, 3)), ("B", (8, 2, 1)))


def pair(module: str, out: int, into: int) -> dict[str, torch.Tensor]:
    """Factors of rank 2 for a module of this name and size."""
    return {
        f"{module}.lora_A.weight": torch.ones(2, into),
        f"{module}.lora_B.weight": torch.ones(out, 2),
    }


ADAPTERS: dict[str, tuple[str, Damage, tuple[str, ...]]] = {
    "truncated": ("adapter", cut(ADAPTER, 0.8), (ADAPTER, "again")),
    "truncated pickle": ("adapter-pickle", cut(ADAPTER_PICKLE, 0.8), (ADAPTER_PICKLE, "again")),
    "empty": ("adapter", write(ADAPTER, ""), (ADAPTER, "is empty", "again")),
    "web page": ("adapter", write(ADAPTER, PAGE), (ADAPTER, "web page", "again")),
    "git-lfs pointer": ("adapter", write(ADAPTER, LFS), (ADAPTER, "git lfs pull")),
    "runs code": ("adapter-pickle", pickled(ADAPTER_PICKLE, CODE), (ADAPTER_PICKLE, "run code")),
    "zip bomb": ("adapter-pickle", bomb(ADAPTER_PICKLE), (ADAPTER_PICKLE, "compressed")),
    "links out": ("adapter", link_out(ADAPTER), (ADAPTER, "link out", "copy")),
    "config links out": ("adapter", link_out("adapter_config.json"), ("link out", "copy")),
    "no weights": ("adapter", remove(ADAPTER), (ADAPTER, ADAPTER_PICKLE, "again")),
    "no config": ("adapter", remove("adapter_config.json"), ("adapter_config.json", "again")),
    "config is no JSON": ("adapter", write("adapter_config.json", "{"), ("config.json", "again")),
    "no tensors": ("adapter", tensors(ADAPTER, lambda _: {}), (ADAPTER, "no tensors", "again")),
    "NaN": ("adapter", adapter(add={B: NAN[:, None].expand(8, 2).clone()}), (B, "NaN", "again")),
    "wrong dtype": ("adapter", adapter(add={A: torch.ones(2, 8).int()}), (A, "int32")),
    "another type": ("adapter", adapter(peft_type="IA3"), ("IA3", "PEFT")),
    "another LoRA": ("adapter", adapter(use_qalora=True), ("use_qalora", "PEFT")),
    "one from tomorrow": ("adapter", adapter(new_config={"a": 1}), ("new_config", "PEFT")),
    "moves the base": ("adapter", adapter(init_lora_weights="pissa_niter_4"), ("pissa", "PEFT")),
    "rank is text": ("adapter", adapter(r="2"), ("config.json", "'2'", "again")),
    "alpha is endless": ("adapter", adapter(lora_alpha=10**400), ("lora_alpha", "again")),
    "another rank": ("adapter", adapter(r=4), (ADAPTER, "rank 2", "4", "again")),
    "a rank for some": ("adapter", adapter(rank_pattern={"(a+)+": 2}), ("rank_pattern", "PEFT")),
    "rank is zero": ("adapter", adapter(r=0), ("config.json", "r is 0")),
    "rank is endless": ("adapter", adapter(r=10**400, lora_alpha=1.5), ("config.json", "r is 1")),
    "factor missing": ("adapter", adapter(remove=(B,)), (QUERY, "lora_B.weight", "again")),
    "module missing": ("adapter", adapter(remove=(A, B)), (QUERY, "incomplete", "another model")),
    "more layers": ("adapter", of_another(n_text_layer=2), ("layers.1", "another model")),
    "fewer layers": ("adapter", of_another(n_text_layer=0), ("decoder.layers.0", "another model")),
    "another width": ("adapter", of_another(n_text_state=16), ("[16, 16]", "[8, 8]", "another")),
    "unknown tensor": ("adapter", adapter(add={f"{QUERY}.hada_w1": NAN}), ("hada_w1", "PEFT")),
    "magnitude": (
        "adapter",
        adapter(add={f"{QUERY}.lora_magnitude_vector": torch.ones(8)}),
        (QUERY, "magnitude", "PEFT"),
    ),
    "DoRA": ("adapter", adapter(use_dora=True), ("use_dora", "PEFT")),
    "whole matrix": (
        "adapter",
        adapter(add={"proj_out.weight": torch.ones(9, 8)}),
        ("proj_out", "PEFT"),
    ),
    "tied output": (
        "adapter",
        adapter(add=pair("proj_out", 51_865, 8)),
        ("proj_out", "PEFT"),
    ),
    "embedding": (
        "adapter",
        adapter(add=pair("model.decoder.embed_tokens", 51_865, 8)),
        ("embed_tokens", "PEFT"),
    ),
    "positions": (
        "adapter",
        adapter(add=pair("model.decoder.embed_positions", 448, 8)),
        ("no linear layer", "PEFT"),
    ),
    "convolution": (
        "adapter",
        adapter(add={f"model.encoder.conv2.lora_{x}.weight": torch.ones(s) for x, s in CONV}),
        ("conv2", "PEFT"),
    ),
    "one layer under two names": (
        "adapter",
        adapter(add=pair(QUERY.removeprefix("model."), 8, 8)),
        ("q_proj", "second time"),
    ),
    "a sum that is infinite": (
        "adapter",
        adapter(add={A: torch.full((2, 8), 3e38), B: torch.full((8, 2), 3e38)}),
        ("attn.query", "infinity"),
    ),
    "other names": (
        "adapter",
        tensors(ADAPTER, lambda t: {n.removeprefix(PREFIX): x for n, x in t.items()}),
        (ADAPTER, "has tensor model.", "PEFT"),
    ),
}


def test_these_are_sound(sound: Path) -> None:
    """And the same, whatever the format."""
    state = random_state(DIMS, seed=1)
    adapted = dict(load_checkpoint(sound / "whole", adapter=sound / "adapter").state)
    assert not torch.equal(
        adapted["decoder.blocks.0.attn.query.weight"], state["decoder.blocks.0.attn.query.weight"]
    )
    for folder in ("whole", "shards", "pickle", "model.pt"):
        assert_equal(load_checkpoint(sound / folder).state, state)
        for adapter in ("adapter", "adapter-pickle"):
            assert_equal(load_checkpoint(sound / folder, adapter=sound / adapter).state, adapted)


@pytest.mark.parametrize("kind", [*MODELS, *(f"adapter, {name}" for name in ADAPTERS)])
def test_damage(sound: Path, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    of_adapter = kind.startswith("adapter, ")
    name, damage, expected = (ADAPTERS if of_adapter else MODELS)[kind.removeprefix("adapter, ")]
    folder = tmp_path / "folder"
    shutil.copytree(sound / name, folder)
    damage(folder)
    if of_adapter:
        message = refusal(sound / "whole", adapter=folder)
    else:
        message = refusal(folder)
    assert str(folder) in message
    assert all(part in message for part in expected), message
    assert "must not be printed" not in capfd.readouterr().out


def test_zip_bomb_in_an_openai_file(tmp_path: Path) -> None:
    bomb("model.pt")(tmp_path)
    assert "compressed" in refusal(tmp_path / "model.pt")


def test_adapters_that_are_none(sound: Path, tmp_path: Path) -> None:
    for adapter, expected in (
        (sound / "whole", "whole model"),
        (sound / "model.pt", "give the adapter's folder"),
        (tmp_path / "nothing", "no such folder"),
        ("", "no such folder"),
    ):
        message = refusal(sound / "whole", adapter=adapter)
        assert str(adapter) in message and expected in message


def test_links_inside_a_folder_are_followed(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(sound / "whole", folder)
    shutil.move(folder / WEIGHTS, folder / "blob")
    (folder / WEIGHTS).symlink_to("blob")
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        assert_equal(load_checkpoint(path).state, random_state(DIMS, seed=1))
