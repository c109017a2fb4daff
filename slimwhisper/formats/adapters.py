"""Merges a LoRA adapter in PEFT's format into a checkpoint's weights when it is loaded.

W + s B A, with A [r, in], B [out, r], and s = alpha / r (LoRA, arXiv 2106.09685), for the weights
W [out, in] of linear layers. Each is computed in float64 and rounded once, to float32. PEFT's other
methods are refused: PEFT can merge them itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import (
    EMBEDDING,
    JSONFields,
    check_numbers,
    inside,
    load_error,
    read_tensors,
)
from slimwhisper.checkpoint.hugging_face import hugging_face_name, openai_name
from slimwhisper.formats.downloads import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_folder

_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_AGAIN = "copy or download the adapter again"
_ANOTHER = "it is for another model"
_MERGE_FIRST = (
    "only one LoRA of linear layers is merged here; merge it with PEFT first "
    "(merge_and_unload: docs/guides/models.md#add-an-adapter)"
)
# settings of other methods; `_is_unsupported` refuses more of them, by prefix and suffix
_UNSUPPORTED = (
    *("modules_to_save", "trainable_token_indices", "lora_bias", "target_parameters"),
    *("layer_replication", "alora_invocation_tokens"),
)
_INITIALISATIONS = ("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config")
_UNCHANGED_BASE = (True, False, "gaussian", "eva", "orthogonal")  # values of init_lora_weights


@dataclass(frozen=True, slots=True)
class Adapter:
    """The low-rank factors that are added to a checkpoint's weights."""

    file: Path  # of the tensors
    scaling: float
    factors: Mapping[str, tuple[Tensor, Tensor]]  # OpenAI's weight: A [r, in], B [out, r]
    targets: tuple[str, ...]  # suffixes of the names of modules that must have factors


def read_adapter(adapter: str | PathLike[str], local_files_only: bool) -> Adapter:
    """Read an adapter from its folder, or from the hub. Raises CheckpointError."""
    if not isinstance(adapter, str | PathLike):
        raise load_error(f"adapter {adapter!r}: is not one folder or hub id; {_MERGE_FIRST}")
    folder = adapter_folder(adapter, local_files_only)
    config = inside(folder, ADAPTER_CONFIG)
    if not config.is_file():
        whole = (folder / "config.json").is_file()
        hint = "it is a complete model: give it as the model" if whole else _AGAIN
        raise load_error(f"{folder}: not an adapter in PEFT's format: no {ADAPTER_CONFIG}; {hint}")
    rank, scaling, targets = _read_settings(JSONFields(config))
    files = [inside(folder, name) for name in ADAPTER_WEIGHTS]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise load_error(f"{folder}: no {' or '.join(ADAPTER_WEIGHTS)}; {_AGAIN}")
    return Adapter(file, scaling, _read_factors(file, rank), targets)


def _read_settings(fields: JSONFields) -> tuple[int, float, tuple[str, ...]]:
    """r, s and the targets; no targets where the settings are not a plain list of modules."""
    settings = fields.content
    if (kind := settings.get("peft_type")) != "LORA":
        raise load_error(f"{fields.file}: peft_type is {kind!r}; {_MERGE_FIRST}")
    for key, value in settings.items():
        if value and _is_unsupported(key, value):
            raise load_error(f"{fields.file}: {key} is {f'{value!r}'[:80]}; {_MERGE_FIRST}")
    rank, alpha = fields.whole("r", 1, 1 << 20) or 8, fields.get("lora_alpha", (int, float), 8)
    if not -1e9 < alpha < 1e9:
        raise fields.invalid("lora_alpha", "not a number between -1e9 and 1e9")
    targets = fields.get("target_modules", (list, str), [])
    chosen = ("exclude_modules", "layers_to_transform")
    if isinstance(targets, str) or any(settings.get(key) is not None for key in chosen):
        targets = []
    return rank, alpha / rank, tuple(map(str, targets))


def _is_unsupported(key: str, value: Any) -> bool:
    """Whether a setting belongs to another method than LoRA of a layer's weight."""
    if key == "bias":
        return bool(value != "none")
    if key == "init_lora_weights":
        return value not in _UNCHANGED_BASE
    if key in _INITIALISATIONS or key == "layers_pattern":
        return False
    return key in _UNSUPPORTED or key.startswith("use_") or key.endswith(("_config", "_pattern"))


def _read_factors(file: Path, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    factors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_tensors(file).items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise load_error(f"{file}: has tensor {name[:200]}; {_MERGE_FIRST}")
        check_numbers(f"{file}", name, tensor)
        parts = factors.setdefault(openai_name(f"{match[1]}.weight"), {})
        if match[2] in parts:
            raise load_error(f"{file}: has {name} twice, under two names; {_AGAIN}")
        parts[match[2]] = tensor
    if not factors:
        raise load_error(f"{file}: has no tensors; {_AGAIN}")
    for weight, parts in factors.items():
        if len(parts) < 2:
            missing = "B" if "A" in parts else "A"
            raise load_error(f"{file}: {_module(weight)} has no lora_{missing}.weight; {_AGAIN}")
        a, b = parts["A"], parts["B"]
        if a.ndim != 2 or b.ndim != 2:
            raise load_error(f"{file}: {_module(weight)} is not a linear layer; {_MERGE_FIRST}")
        if not a.shape[0] == b.shape[1] == rank:
            rule = f"{ADAPTER_CONFIG} says {rank}; {_AGAIN}"
            raise load_error(f"{file}: {_module(weight)} has rank {a.shape[0]}, but {rule}")
    return {weight: (parts["A"], parts["B"]) for weight, parts in factors.items()}


def _module(weight: str) -> str:
    """transformers' name of the module with this weight."""
    return hugging_face_name(weight).removesuffix(".weight")


def merge_adapter(state: Mapping[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """Merge an adapter; changed weights become float32, or stay float64.

    state: OpenAI's name -> tensor, matrices [out, in]; not modified. Raises CheckpointError for
    factors that are missing or do not fit, or if a merged weight is not finite.
    """
    file = adapter.file
    linear = {n for n, t in state.items() if t.ndim == 2 and n.endswith(".weight")} - {EMBEDDING}
    if unknown := adapter.factors.keys() - linear:
        reason = f"no linear layer {_module(min(unknown))} for it"
        raise load_error(f"{file}: the model has {reason}; {_ANOTHER}, or {_MERGE_FIRST}")
    ends = tuple(f".{target}.weight" for target in adapter.targets)
    for weight in sorted(linear - adapter.factors.keys()):
        if f".{hugging_face_name(weight)}".endswith(ends):
            what = f"no factors for {_module(weight)}, one of the target_modules"
            raise load_error(f"{file}: has {what}; it is incomplete, or {_ANOTHER}")
    merged = dict(state)
    for weight, (a, b) in adapter.factors.items():
        old = state[weight].double()  # one weight at a time
        if (b.shape[0], a.shape[1]) != old.shape:
            shapes = f"{[b.shape[0], a.shape[1]]}, not {list(old.shape)} as in the model"
            raise load_error(f"{file}: {_module(weight)} is {shapes}; {_ANOTHER}")
        total = old + (b.double() @ a.double()) * adapter.scaling
        merged[weight] = total if state[weight].dtype == torch.float64 else total.float()
        check_numbers(f"{file}", weight, merged[weight])
    return merged
