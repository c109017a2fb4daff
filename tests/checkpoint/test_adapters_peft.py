"""PEFT as the oracle: what it merges is what we load, and its unmerged model gives our logits."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.checkpoint.validate import EMBEDDING, OUTPUT
from slimwhisper.errors import CheckpointError
from slimwhisper.model.model import Model
from tests.support import oracle
from tests.support.checkpoints import hf_name, random_state, save_hf, tiny_dims
from tests.support.hf_folders import whisper_table
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


PLAIN: dict[str, dict[str, Any]] = {
    "queries and values": {"target_modules": ["q_proj", "v_proj"]},
    "every linear map": {"target_modules": [*ATTENTION, "fc1", "fc2"], "r": 3, "lora_alpha": 7},
    "encoder only, an expression": {"target_modules": r".*encoder\.layers.*\.(q_proj|fc1)"},
    "one layer": {"target_modules": ["fc1"], "layers_to_transform": [1]},
    "rank-stabilized": {"target_modules": ["k_proj"], "r": 5, "use_rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": {"encoder_attn.q_proj": 2, r"layers\.1\.self_attn.v_proj": 6},
        "alpha_pattern": {"v_proj": 3, "^model.decoder.layers.0.self_attn.q_proj": 64},
    },
    "fan in, fan out": {"target_modules": ["fc1"], "fan_in_fan_out": True},
    "convolutions": {"target_modules": ["conv1", "conv2"]},
    "all biases": {"target_modules": ["q_proj"], "bias": "all"},
    "its own biases": {"target_modules": ["out_proj"], "bias": "lora_only"},
    "bias of B": {"target_modules": ["v_proj", "fc2"], "lora_bias": True},
    "DoRA": {"target_modules": ["q_proj", "fc2"], "use_dora": True},
    "DoRA of convolutions": {"target_modules": ["conv2"], "use_dora": True},
    "norms": {"target_modules": ["v_proj"], "modules_to_save": ["layer_norm"], "bias": "all"},
    "a module's children": {"target_modules": ["fc1"], "modules_to_save": ["encoder_attn"]},
    "Gaussian start": {"target_modules": ["q_proj"], "init_lora_weights": "gaussian"},
    "both matrices": {"target_modules": ["fc1"], "modules_to_save": ["embed_tokens", "proj_out"]},
}
# of the token embedding, where PEFT's merged model is not the one that was trained: it changes the
# output matrix with it, and says so
EMBEDDINGS: dict[str, dict[str, Any]] = {
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "embedding, DoRA": {"target_modules": ["embed_tokens"], "use_dora": True},
    "output": {"target_modules": ["proj_out"]},
    "embedding replaced": {"target_modules": ["fc1"], "modules_to_save": ["embed_tokens"]},
    "output replaced": {"target_modules": ["fc1"], "modules_to_save": ["proj_out"]},
    "both, tied": {
        "target_modules": ["fc1"],
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "adapted, tied": {"target_modules": ["embed_tokens", "fc1"], "ensure_weight_tying": True},
    "some tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [7, 700, 51_864]},
}


@pytest.mark.parametrize("name", PLAIN)
def test_weights_are_pefts(base: Path, tmp_path: Path, name: str) -> None:
    model = adapted(1, **PLAIN[name])
    found = load_checkpoint(base, adapter=saved(model, tmp_path / "adapter"))
    changed = [n for n in STATE if not torch.equal(found.state[n], STATE[n])]
    assert changed, "the adapter does something"
    assert_merged(found, merged(model))


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_logits_are_those_of_the_trained_model(base: Path, tmp_path: Path, name: str) -> None:
    model = adapted(2, **EMBEDDINGS[name])
    found = load_checkpoint(base, adapter=saved(model, tmp_path / "adapter"))
    assert_logits(found, model)


@pytest.mark.parametrize("name", ["every linear map", "DoRA", "all biases"])
def test_logits(base: Path, tmp_path: Path, name: str) -> None:
    model = adapted(3, **PLAIN[name])
    assert_logits(load_checkpoint(base, adapter=saved(model, tmp_path / "adapter")), model)


def test_several_in_order(base: Path, tmp_path: Path) -> None:
    """The second one's DoRA has the norms of what the first one left."""
    configs: Sequence[dict[str, Any]] = (PLAIN["every linear map"], PLAIN["DoRA"])
    model: Any = their_model(DIMS, STATE).double()
    folders = []
    for number, config in enumerate(configs):
        model = adapted(number, model, **config)
        folders.append(saved(model, tmp_path / f"{number}"))
        model = model.merge_and_unload()
    assert_merged(load_checkpoint(base, adapter=folders), model.state_dict())
    other = load_checkpoint(base, adapter=folders[::-1]).state
    name = "decoder.blocks.0.attn.query.weight"
    assert (other[name] - load_checkpoint(base, adapter=folders).state[name]).abs().max() > 1e-3


def test_vocabulary_that_grew(tmp_path: Path) -> None:
    """PEFT saves both matrices then; the adapter's tokenizer knows the new word."""
    small = replace(DIMS, n_vocab=51_864)
    state = random_state(small, seed=4)
    base = save_hf(tmp_path / "base", small, state)
    model = their_model(small, state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.resize_token_embeddings(51_865, mean_resizing=False)
    model = adapted(5, model, target_modules=["q_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    with pytest.raises(CheckpointError, match="no adapter's folder has their tokenizer"):
        load_checkpoint(base, adapter=tmp_path / "adapter")
    whisper_table(51_864, added=(" alpha",)).save(tmp_path / "adapter")
    found = load_checkpoint(base, adapter=tmp_path / "adapter")
    assert found.tokens.tokenizer().decode([51_864]) == " alpha"
    assert found.dims.n_vocab == len(found.state[EMBEDDING]) == 51_865
    assert OUTPUT not in found.state
    assert_logits(found, model)
