"""LoRA adapters in PEFT's format, merged into a checkpoint's weights when it is loaded.

W + s B A, with A [r, in], B [out, r], and s = alpha / r (LoRA, arXiv 2106.09685) or alpha / sqrt(r)
(rsLoRA, arXiv 2312.03732), for the weights W [out, in] of linear layers. Each is computed in
float64 and rounded once, to float32. Whatever else PEFT can do is refused: PEFT merges that itself.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import Fields, expand_user, inside, read_json, read_tensors
from slimwhisper.checkpoint.formats.hugging_face import hugging_face_name, openai_name
from slimwhisper.checkpoint.hub import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    fetch_adapter,
    looks_like_hub_id,
)
from slimwhisper.checkpoint.validate import EMBEDDING, check_numbers

_PREFIX = "base_model.model."
_KEY = re.compile(re.escape(_PREFIX) + r"(.+)\.lora_([AB])\.weight")
_AGAIN = "copy or download the adapter again"
_MERGE_FIRST = (
    "only LoRA and rsLoRA of linear layers are merged here; merge it with PEFT first "
    "(docs/checkpoints.md#adapters)"
)
# settings of other methods; so are those that begin or end as in `_is_other`
_OTHERS = (
    *("modules_to_save", "trainable_token_indices", "lora_bias", "target_parameters"),
    *("layer_replication", "alora_invocation_tokens"),
)
_INITIAL = ("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config")
_KEEPS_THE_BASE = (True, False, "gaussian", "eva", "orthogonal")  # values of init_lora_weights


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is added to a checkpoint's weights."""

    file: Path  # of the tensors
    scaling: float
    factors: Mapping[str, tuple[Tensor, Tensor]]  # OpenAI's weight: A [r, in], B [out, r]
    targets: tuple[str, ...]  # ends of the names of modules that must be there


def adapter_folder(adapter: str | PathLike[str], local_files_only: bool = False) -> Path:
    """A folder, or a hub id, of which the files are fetched. Raises CheckpointError."""
    label = os.fspath(adapter)
    path = expand_user(label)
    if label and path.is_dir():
        return path
    if path.is_file():
        raise problem(f"{label}: is a file; give the adapter's folder, with {ADAPTER_CONFIG}")
    if isinstance(adapter, str) and looks_like_hub_id(label):
        return fetch_adapter(label, local_files_only)
    raise problem(f"adapter {label!r}: no such folder; give a PEFT adapter's folder or hub id")


def read_adapter(folder: Path) -> Adapter:
    """The files of a folder. Raises CheckpointError."""
    config = inside(folder, ADAPTER_CONFIG)
    if not config.is_file():
        whole = (folder / "config.json").is_file()
        hint = "it is a whole model, give it as the model" if whole else _AGAIN
        raise problem(f"{folder}: no {ADAPTER_CONFIG}, so no adapter in PEFT's format; {hint}")
    rank, scaling, targets = _read_settings(Fields(config, read_json(config)))
    files = [inside(folder, name) for name in ADAPTER_WEIGHTS]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise problem(f"{folder}: no {' or '.join(ADAPTER_WEIGHTS)}; {_AGAIN}")
    return Adapter(file, scaling, _read_factors(file, rank), targets)


def _read_settings(fields: Fields) -> tuple[int, float, tuple[str, ...]]:
    """r, s and the targets; empty where a list does not say which modules these are."""
    given = fields.content
    if given.get("peft_type") != "LORA":
        raise problem(f"{fields.file}: peft_type is {given.get('peft_type')!r}; {_MERGE_FIRST}")
    for key, value in given.items():
        if value and _is_other(key, value):
            raise problem(f"{fields.file}: {key} is {f'{value!r}'[:80]}; {_MERGE_FIRST}")
    rank, alpha = fields.whole("r", 1, 1 << 20) or 8, fields.get("lora_alpha", (int, float), 8)
    if not -1e9 < alpha < 1e9:
        raise fields.wrong("lora_alpha", "not a number below 1e9")
    scaling = alpha / (sqrt(rank) if fields.get("use_rslora", bool, False) else rank)
    targets = fields.get("target_modules", (list, str), [])
    if isinstance(targets, str) or any(
        given.get(key) is not None for key in ("exclude_modules", "layers_to_transform")
    ):
        targets = []
    return rank, scaling, tuple(map(str, targets))


def _is_other(key: str, value: Any) -> bool:
    """Whether a setting stands for something else than LoRA or rsLoRA of a layer's weight."""
    if key == "bias":
        return bool(value != "none")
    if key == "init_lora_weights":
        return value not in _KEEPS_THE_BASE
    if key in _INITIAL or key in ("use_rslora", "layers_pattern"):
        return False
    return key in _OTHERS or key.startswith("use_") or key.endswith(("_config", "_pattern"))


def _read_factors(file: Path, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_tensors(file).items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise problem(f"{file}: has tensor {name[:200]}; {_MERGE_FIRST}")
        check_numbers(f"{file}", name, tensor)
        parts = found.setdefault(openai_name(f"{match[1]}.weight"), {})
        if match[2] in parts:
            raise problem(f"{file}: has {name} a second time, under another name; {_AGAIN}")
        parts[match[2]] = tensor
    if not found:
        raise problem(f"{file}: has no tensors; {_AGAIN}")
    for weight, parts in found.items():
        if len(parts) < 2:
            missing = "B" if "A" in parts else "A"
            raise problem(f"{file}: misses lora_{missing}.weight of {_module(weight)}; {_AGAIN}")
        a, b = parts["A"], parts["B"]
        if a.ndim != 2 or b.ndim != 2:
            raise problem(f"{file}: {_module(weight)} is no linear layer; {_MERGE_FIRST}")
        if not a.shape[0] == b.shape[1] == rank:
            raise problem(
                f"{file}: {_module(weight)} has rank {a.shape[0]}, {ADAPTER_CONFIG} says {rank}; "
                "copy both files again"
            )
    return {weight: (parts["A"], parts["B"]) for weight, parts in found.items()}


def _module(weight: str) -> str:
    """transformers' name of the module with this weight."""
    return hugging_face_name(weight).removesuffix(".weight")


def merge_adapters(state: Mapping[str, Tensor], adapters: Sequence[Adapter]) -> dict[str, Tensor]:
    """Merge adapters in order; what changes becomes float32, or stays float64.

    state: OpenAI's name -> tensor, matrices [out, in]; it stays as it is. Raises CheckpointError
    for factors that are missing, that do not fit, or whose sum is not finite.
    """
    linear = {n for n, t in state.items() if t.ndim == 2 and n.endswith(".weight")} - {EMBEDDING}
    for adapter in adapters:
        if unknown := adapter.factors.keys() - linear:
            raise problem(
                f"{adapter.file}: the model has no linear layer {_module(min(unknown))}; it is an "
                "adapter of another model, or one to merge with PEFT first"
            )
        ends = tuple(f".{target}.weight" for target in adapter.targets)
        for weight in sorted(linear - adapter.factors.keys()):
            if f".{hugging_face_name(weight)}".endswith(ends):
                raise problem(
                    f"{adapter.file}: misses {_module(weight)}, one of the target_modules in "
                    f"{ADAPTER_CONFIG}; it is incomplete, or an adapter of another model"
                )
    merged = dict(state)
    for weight in set().union(*(adapter.factors for adapter in adapters)):
        total = state[weight].double()  # one weight at a time
        for adapter in adapters:
            if weight in adapter.factors:
                a, b = adapter.factors[weight]
                if (b.shape[0], a.shape[1]) != total.shape:
                    raise problem(
                        f"{adapter.file}: {_module(weight)} is {[b.shape[0], a.shape[1]]}, in the "
                        f"model {list(total.shape)}; it is an adapter of another model"
                    )
                total = total + (b.double() @ a.double()) * adapter.scaling
        merged[weight] = total if state[weight].dtype == torch.float64 else total.float()
        check_numbers(f"{adapters[-1].file}", weight, merged[weight])
    return merged
