"""transformers and PEFT, with which some tests compare where they can be loaded."""

import importlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from slimwhisper.types import Dims
from tests.support.checkpoints import State, hf_config, hf_name


def oracle(name: str) -> Any:
    """The module "transformers" or "peft"; skips the test file without it."""
    try:
        module = importlib.import_module(name)
        if name == "transformers":  # loaded when it is first used, with torchaudio
            _ = module.WhisperForConditionalGeneration
    except Exception as error:  # a torchaudio of another torch makes it an OSError
        pytest.skip(f"{name} is needed to compare with: {error}", allow_module_level=True)
    return module


def their_model(transformers: Any, dims: Dims, state: State, **config: Any) -> Any:
    """transformers' model of these weights, float32; the embedding is the output matrix."""
    width = 4 * dims.n_text_state
    values = hf_config(dims) | {"encoder_ffn_dim": width, "decoder_ffn_dim": width} | config
    del values["architectures"]
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 50_257)
    whole = transformers.WhisperConfig(**values, **ids)
    model = transformers.WhisperForConditionalGeneration(whole).eval()
    found = model.load_state_dict({hf_name(n): t for n, t in state.items()}, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"proj_out.weight"}
    return model


@torch.no_grad()
def their_logits(model: Any, mel: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """mel [n_mels, frames] -> logits [T, V] in float64; the model becomes float64."""
    text = torch.tensor([list(tokens)])
    model = model.double()
    return model(input_features=mel[None].double(), decoder_input_ids=text).logits[0]
