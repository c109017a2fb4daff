"""Adapters in PEFT's format, written without PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from slimwhisper.types import Dims

PREFIX = "base_model.model."
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
}


def query_and_value_factors(dims: Dims, seed: int = 0) -> dict[str, Tensor]:
    """A and B of rank 2 of query and value maps, float32, by PEFT's names without the prefix."""
    generator = torch.Generator().manual_seed(seed)
    width, tensors = dims.n_text_state, {}
    for side, layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        for kind in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
            for i in range(layers):
                for part in ("q_proj", "v_proj"):
                    module = f"model.{side}.layers.{i}.{kind}.{part}"
                    a = torch.randn(2, width, generator=generator)
                    b = torch.randn(width, 2, generator=generator)
                    tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    return tensors


def save_adapter(
    folder: Path, tensors: Mapping[str, Tensor], pickled: bool = False, **config: Any
) -> Path:
    """Write the two files; `config` changes `CONFIG`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    named = {PREFIX + name: tensor for name, tensor in tensors.items()}
    if pickled:
        torch.save(named, folder / "adapter_model.bin")
    else:
        save_file(named, folder / "adapter_model.safetensors")
    return folder
