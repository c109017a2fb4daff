"""PEFT as the oracle: what it merges is what we load, and its unmerged model gives our logits."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.model.model import Model
from tests.support import oracle
from tests.support.checkpoints import hf_name, random_state, refusal, save_hf, tiny_dims
from tests.support.oracle import their_logits, their_model

peft = oracle.peft()

DIMS = replace(tiny_dims(width=16, heads=2), n_audio_ctx=40)
STATE = random_state(DIMS, seed=3)
ATTENTION = ["q_proj", "k_proj", "v_proj", "out_proj"]
TEXT = [50_258, 50_259, 50_359, 50_363, 11, 700, 23, 9]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(tmp_path_factory.mktemp("base") / "model", DIMS, STATE)


def adapted(seed: int, model: Any = None, **config: Any) -> Any:
    """PEFT's model with an adapter of random numbers; `config`: of LoraConfig."""
    model = their_model(DIMS, STATE) if model is None else model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = peft.get_peft_model(model, peft.LoraConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in found.named_parameters():
            if tensor.requires_grad:
                noise = torch.randn(tensor.shape, generator=generator)
                scale = 0.2 if "magnitude" in name or "lora" not in name else 0.3
                tensor.add_(scale * noise)
    return found


def saved(model: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


def merged(model: Any) -> dict[str, torch.Tensor]:
    """transformers' names and float64 tensors of the merged model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return copy.deepcopy(model).double().merge_and_unload().state_dict()


def assert_merged(found: Checkpoint, theirs: dict[str, torch.Tensor]) -> None:
    """Theirs is float64 throughout, so ours differs by one rounding to float32."""
    for name, tensor in found.state.items():
        if name.endswith(".key.bias"):  # transformers has none
            continue
        error = (tensor.double() - theirs[hf_name(name)]).abs()
        assert (error <= 6e-8 * theirs[hf_name(name)].abs() + 1e-30).all(), name


def assert_logits(found: Checkpoint, model: Any) -> None:
    """Both in float64. The weights differ by half a float32 rounding, 6e-8, and there are some ten
    products in a row of them; 1e-5 of the largest logit is far above, and far below a mistake.
    """
    mel = torch.randn(80, 80, generator=torch.Generator().manual_seed(5))
    ours = Model(found, torch.device("cpu"), torch.float64)
    logits = ours.logits(torch.tensor([TEXT]), ours.encoder(mel[None]))[0]
    theirs = their_logits(model, mel, TEXT)
    assert (logits - theirs).abs().max() < 1e-5 * theirs.abs().max()
    assert theirs.std() > 0.5


MERGED: dict[str, dict[str, Any]] = {
    "queries and values": {"target_modules": ["q_proj", "v_proj"]},
    "every linear layer": {"target_modules": [*ATTENTION, "fc1", "fc2"], "r": 3, "lora_alpha": 7},
    "encoder only, an expression": {"target_modules": r".*encoder\.layers.*\.(q_proj|fc1)"},
    "one layer": {"target_modules": ["fc1"], "layers_to_transform": [1]},
    "rank-stabilized": {"target_modules": ["k_proj"], "r": 5, "use_rslora": True},
    "fan in, fan out": {"target_modules": ["fc1"], "fan_in_fan_out": True},
    "Gaussian start": {"target_modules": ["q_proj"], "init_lora_weights": "gaussian"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "alpha_pattern": {"target_modules": ["q_proj"], "alpha_pattern": {"q_proj": 3}},
    "bias": {"target_modules": ["q_proj"], "bias": "all"},
    "lora_bias": {"target_modules": ["v_proj", "fc2"], "lora_bias": True},
    "use_dora": {"target_modules": ["q_proj", "fc2"], "use_dora": True},
    "modules_to_save": {"target_modules": ["v_proj"], "modules_to_save": ["layer_norm"]},
    "trainable_token_indices": {"target_modules": ["q_proj"], "trainable_token_indices": [7]},
    "conv1": {"target_modules": ["conv1"]},
    "embed_tokens": {"target_modules": ["embed_tokens"]},
    "proj_out": {"target_modules": ["proj_out"]},
}


@pytest.mark.parametrize("name", MERGED)
def test_weights_and_logits_are_pefts(base: Path, tmp_path: Path, name: str) -> None:
    model = adapted(1, **MERGED[name])
    found = load_checkpoint(base, adapter=saved(model, tmp_path / "adapter"))
    changed = [n for n in STATE if not torch.equal(found.state[n], STATE[n])]
    assert changed, "the adapter does something"
    assert_merged(found, merged(model))
    assert_logits(found, model)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_can_be_merged_by_peft(base: Path, tmp_path: Path, name: str) -> None:
    """With the lines of docs/checkpoints.md."""
    model = adapted(2, **REFUSED[name])
    message = refusal(base, adapter=saved(model, tmp_path / "adapter"))
    assert name in message and "with PEFT first" in message
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.merge_and_unload().save_pretrained(tmp_path / "merged")
    assert_logits(
        load_checkpoint(tmp_path / "merged"),
        oracle.transformers().WhisperForConditionalGeneration.from_pretrained(tmp_path / "merged"),
    )


def test_several_in_order(base: Path, tmp_path: Path) -> None:
    model: Any = their_model(DIMS, STATE).double()
    folders = []
    for number, name in enumerate(("every linear layer", "rank-stabilized")):
        model = adapted(number, model, **MERGED[name])
        folders.append(saved(model, tmp_path / f"{number}"))
        model = model.merge_and_unload()
    assert_merged(load_checkpoint(base, adapter=folders), model.state_dict())
