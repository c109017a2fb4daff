"""What is done to sound models and adapters, for loaders to refuse: each changes a folder.

What lies outside a folder is a sound file each time, so a loader that read it would succeed.
"""

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import DIMS, hf_config, random_state, save_hf, save_openai
from tests.support.foreign import ct2_variables, ggml_bytes, save_ct2, tokens_of

Damage = Callable[[Path], Any]
Case = tuple[str, Damage, Sequence[str]]  # a sound folder, the damage, parts of the message
WEIGHTS, PICKLE, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
OPENAI = "model.pt"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
PAGE = "<!DOCTYPE html><html><title>Sign in</title></html>"
NAN = torch.full((8,), float("nan"))


RAN: list[str] = []  # what a loader should not have called


class RunsCode:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return run, ("code of a model's file",)


def run(what: str) -> None:
    RAN.append(what)


CODE = {"a": torch.ones(1), "b": RunsCode(), "dims": asdict(DIMS), "model_state_dict": {}}


def save_sound(root: Path) -> Path:
    """Folders of each kind that load."""
    state, factors = random_state(DIMS, seed=1), query_and_value_factors(DIMS)
    save_hf(root / "whole", DIMS, state)
    save_hf(root / "shards", DIMS, state, shards=2)
    save_hf(root / "pickle", DIMS, state, pickled=True)
    save_adapter(root / "adapter", factors)
    save_adapter(root / "adapter-pickle", factors, pickled=True)
    for name, zipped in (("openai", True), ("openai-old", False)):
        (root / name).mkdir()
        content = {"dims": asdict(DIMS), "model_state_dict": state}
        torch.save(content, root / name / OPENAI, _use_new_zipfile_serialization=zipped)
    (root / "ggml").mkdir()
    (root / "ggml" / "ggml.bin").write_bytes(ggml_bytes(DIMS, state, file_type=0))
    save_ct2(root / "ct2", ct2_variables(DIMS, state), tokens_of(DIMS))
    return root


def write(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, keep: int) -> Damage:
    """Its first `keep` bytes; negative: all but the last."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def link_out(name: str, to: str = "") -> Damage:
    """The sound file lies outside the folder, and a link in its place. to: something else."""

    def damage(folder: Path) -> None:
        outside = folder.parent / f"outside-{name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(to or outside)

    return damage


def index(change: Callable[[dict[str, str]], dict[str, str]]) -> Damage:
    """The index's files by tensor changed."""

    def damage(folder: Path) -> None:
        found = json.loads((folder / INDEX).read_text())["weight_map"]
        (folder / INDEX).write_text(json.dumps({"weight_map": change(found)}))

    return damage


def shard_elsewhere(where: str) -> Damage:
    """The sound shard lies in another folder, and the index says so; `where`: with {} for it."""

    def damage(folder: Path) -> None:
        other = folder.parent / "other"
        other.mkdir()
        shutil.move(folder / SECOND, other / SECOND)
        at = where.format(other)
        index(lambda found: {n: at + f if f == SECOND else f for n, f in found.items()})(folder)

    return damage


def tensors(change: Callable[[dict[str, Any]], dict[str, Any]], *names: str) -> Damage:
    """The tensors of these safetensors files changed."""

    def damage(folder: Path) -> None:
        for name in names:
            save_file(change(dict(load_file(folder / name))), folder / name)

    return damage


def pickled(name: str, content: Any) -> Damage:
    return lambda folder: torch.save(content, folder / name)


def openai(change: Callable[[dict[Any, Any]], dict[Any, Any]]) -> Damage:
    """An OpenAI file with other tensors."""
    state = random_state(DIMS, seed=1)
    return lambda folder: save_openai(folder / OPENAI, DIMS, change(state))


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
