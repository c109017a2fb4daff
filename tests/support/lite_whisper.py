"""Folders as LiteASR's authors save them, of small random models with factored encoders.

state = factored_state(DIMS, seed=1)
folder = save_lite(tmp_path / "lite", DIMS, state)
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.types import Dims
from tests.support.checkpoints import State, hf_config, random_state, save_hf

KEYS = {  # part of a tensor's name: key in a layer's ranks
    "attn.query": "q_proj",
    "attn.key": "k_proj",
    "attn.value": "v_proj",
    "attn.out": "out_proj",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
}
RANKS = {"q_proj": 3, "k_proj": 4, "v_proj": 5, "out_proj": 6, "fc1": 7, "fc2": 9}
# code of the model's own, which transformers would run and slimwhisper must not
MODELLING = "raise SystemExit('code of the model was run')\n"


def factored_state(dims: Dims, seed: int) -> State:
    """A random model whose encoder layers have factors of `RANKS`; the last one's attention output
    and second MLP matrix are whole, as some are that would gain nothing.
    """
    state = random_state(dims, seed)
    generator = torch.Generator().manual_seed(seed)
    for layer in range(dims.n_audio_layer):
        for part, key in KEYS.items():
            if layer == dims.n_audio_layer - 1 and key in ("out_proj", "fc2"):
                continue
            name, rank = f"encoder.blocks.{layer}.{part}", RANKS[key]
            weight = state.pop(f"{name}.weight")
            outputs, inputs = weight.shape
            # of the size of the weight that they replace: uneven, as principal components are
            sizes = torch.logspace(0, -1, rank)
            first = torch.randn(inputs, rank, generator=generator) * sizes
            second = torch.randn(rank, outputs, generator=generator)
            gain = weight.norm() / (first @ second).norm()
            state |= {f"{name}.weight1": first * gain, f"{name}.weight2": second}
            state[f"{name}.bias"] = torch.randn(outputs, generator=generator) * 0.1  # also keys'
    return state


def products(state: State) -> State:
    """The weights of the same model without factors, in float64."""
    whole: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("weight1"):
            second = state[name.replace("weight1", "weight2")]
            rows = [
                sum((a * b for a, b in zip(row, second.double(), strict=True)), torch.zeros(()))
                for row in tensor.double()
            ]
            whole[name.removesuffix("1")] = torch.stack(rows, dim=1)
        elif not name.endswith("weight2"):
            whole[name] = tensor.double()
    return whole


def lite_config(dims: Dims, state: State) -> dict[str, Any]:
    """config.json, with the ranks that the factors have."""
    ranks = [
        {
            key: state[name].shape[1]
            for part, key in KEYS.items()
            if (name := f"encoder.blocks.{layer}.{part}.weight1") in state
        }
        for layer in range(dims.n_audio_layer)
    ]
    return hf_config(dims) | {
        "architectures": ["LiteWhisperForConditionalGeneration"],
        "auto_map": {"AutoModel": "modeling_lite_whisper.LiteWhisperForConditionalGeneration"},
        "low_rank_config": ranks,
        "model_type": "lite-whisper",
    }


def save_lite(folder: Path, dims: Dims, state: State, **config: Any) -> Path:
    """Write a folder: no tokenizer, and the embedding twice. `config` changes config.json."""
    output = state["decoder.token_embedding.weight"].clone()
    save_hf(folder, dims, state | {"proj_out.weight": output})
    content = json.dumps(lite_config(dims, state) | config, indent=2)
    (folder / "config.json").write_text(content)
    (folder / "modeling_lite_whisper.py").write_text(MODELLING)
    return folder
