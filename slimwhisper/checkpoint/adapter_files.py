"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors or .bin.

Formats and names are those of PEFT's `LoraConfig` and `get_peft_model_state_dict`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import inside, read_json, read_tensors
from slimwhisper.checkpoint.formats.hugging_face import looks_like_hub_id
from slimwhisper.checkpoint.formats.openai import expand_user
from slimwhisper.checkpoint.hub import ADAPTER_CONFIG, ADAPTER_WEIGHTS, fetch_adapter

_PREFIX = "base_model.model."
# kinds of LoRA that cannot be merged, or not from the files alone, are "use_..." and "..._config",
# apart from those that are like others once they are trained
_OTHER_KINDS = ("alora_invocation_tokens", "target_parameters", "layer_replication")
_LIKE_OTHERS = (
    *("use_rslora", "use_dora"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config"),
)
_MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initial values
_AGAIN = "copy or download the adapter again"


@dataclass(frozen=True, slots=True)
class Settings:
    """What adapter_config.json says of how the tensors are merged."""

    file: Path
    rank: int
    alpha: float
    root: bool  # use_rslora
    dora: bool
    ranks: Mapping[str, Any]  # rank_pattern: regular expression of module names -> r
    alphas: Mapping[str, Any]  # alpha_pattern
    targets: tuple[str, ...]  # names or ends of names of modules; empty: not known
    replaced: tuple[str, ...]  # modules_to_save
    keep_tied: bool  # ensure_weight_tying
    tokens: Mapping[str, Any]  # module: the rows that are replaced

    def of_module(self, module: str) -> tuple[int, float]:
        """r and alpha of a module, such as "model.decoder.layers.0.fc1"."""
        rank = self._pattern(self.ranks, module, self.rank)
        return int(rank), float(self._pattern(self.alphas, module, self.alpha))

    def _pattern(self, patterns: Mapping[str, Any], module: str, default: float) -> float:
        found = next((p for p in patterns if re.match(rf"(.*\.)?({p})$", module)), None)
        return default if found is None else patterns[found]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's files: settings, and tensors [...] by PEFT's name without its prefix."""

    file: Path  # of the tensors
    settings: Settings
    tensors: Mapping[str, Tensor]


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
    settings = _read_settings(config)
    files = [inside(folder, name) for name in ADAPTER_WEIGHTS]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise problem(f"{folder}: no {' or '.join(ADAPTER_WEIGHTS)}; {_AGAIN}")
    tensors = read_tensors(file)
    foreign = next((name for name in tensors if not name.startswith(_PREFIX)), None)
    if foreign is not None or not tensors:
        has = f"tensor {foreign}" if tensors else "no tensors"
        raise problem(f"{file}: has {has}, and PEFT's begin with {_PREFIX}; {_AGAIN}")
    return Adapter(file, settings, {n.removeprefix(_PREFIX): t for n, t in tensors.items()})


def _read_settings(file: Path) -> Settings:
    content = read_json(file)
    kind = content.get("peft_type")
    if kind != "LORA":
        raise problem(f"{file}: adapters of type {kind!r} cannot be merged; LoRA and DoRA can")
    for key, value in content.items():
        kind = key in _OTHER_KINDS or key.startswith("use_") or key.endswith("_config")
        if value and kind and key not in _LIKE_OTHERS:
            raise problem(
                f"{file}: LoRA with {key} cannot be merged; LoRA, rsLoRA and DoRA can: merge it "
                "with PEFT and give the whole model"
            )
    start = content.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_MOVES_THE_BASE):
        raise problem(
            f"{file}: init_lora_weights {start!r} changed the base weights too; convert the "
            "adapter with PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        )

    def get(key: str, kinds: tuple[type, ...], default: Any) -> Any:
        value = content.get(key)
        value = default if value is None else value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise problem(f"{file}: {key} is {value!r}, which it cannot be; {_AGAIN}")
        return value

    alpha = get("lora_alpha", (int, float), 8)
    if not _is_number(alpha):
        raise problem(f"{file}: lora_alpha is {alpha!r}, which it cannot be; {_AGAIN}")
    targets = get("target_modules", (list, str), [])
    if isinstance(targets, str) or content.get("exclude_modules"):
        targets = []
    if content.get("layers_to_transform") is not None:
        targets = []
    tokens = get("trainable_token_indices", (list, dict), {})
    ranks, alphas = get("rank_pattern", (dict,), {}), get("alpha_pattern", (dict,), {})
    for key, patterns in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
        for pattern, value in patterns.items():
            if not _is_number(value) or not _simple(pattern):
                raise problem(f"{file}: {key} {pattern!r}: {value!r} cannot be used; {_AGAIN}")
    return Settings(
        file=file,
        rank=get("r", (int,), 8),
        alpha=alpha,
        root=get("use_rslora", (bool,), False),
        dora=get("use_dora", (bool,), False),
        ranks=ranks,
        alphas=alphas,
        targets=tuple(map(str, targets)),
        replaced=tuple(map(str, get("modules_to_save", (list,), []))),
        keep_tied=get("ensure_weight_tying", (bool,), False),
        tokens=tokens if isinstance(tokens, dict) else {"embed_tokens": tokens},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and -1e9 < value < 1e9


def _simple(pattern: str) -> bool:
    """Whether a regular expression is one that no name keeps busy: few and no nested repeats."""
    if (
        len(pattern) > 500
        or len(re.findall(r"[*+{]", pattern)) > 3
        or re.search(r"\)[*+{]", pattern)
    ):
        return False
    try:
        return bool(re.compile(pattern))
    except (re.error, RecursionError, OverflowError):
        return False
