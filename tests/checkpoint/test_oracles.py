"""transformers and PEFT as the oracles: what they save and merge has our weights and logits."""

import copy
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper.checkpoint.files import OUTPUT
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.model.model import Model
from slimwhisper.types import Dims
from tests.support import oracle
from tests.support.checkpoints import hf_name, random_state, refusal, save_hf, tiny_dims
from tests.support.oracle import their_logits, their_model

transformers = oracle.transformers()

pytestmark = pytest.mark.filterwarnings("ignore")  # other projects' warnings

DIMS = replace(tiny_dims(width=16, heads=2), n_audio_ctx=40)
STATE = random_state(DIMS, seed=3)
TEXT = [50_258, 50_259, 50_359, 50_363, 11, 700, 23, 9]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(tmp_path_factory.mktemp("base") / "model", DIMS, STATE)


def adapted(seed: int, **config: Any) -> Any:
    """PEFT's model with an adapter of random numbers; `config`: of LoraConfig."""
    peft = oracle.peft()
    found = peft.get_peft_model(their_model(DIMS, STATE), peft.LoraConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in found.named_parameters():
            if tensor.requires_grad:
                noise = torch.randn(tensor.shape, generator=generator)
                scale = 0.2 if "magnitude" in name or "lora" not in name else 0.3
                tensor.add_(scale * noise)
    return found


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def assert_merged(found: Checkpoint, model: Any) -> None:
    """PEFT merges in float64 throughout, so ours differs by one rounding to float32."""
    theirs = copy.deepcopy(model).double().merge_and_unload().state_dict()
    for name, tensor in found.state.items():
        if name.endswith(".key.bias"):  # transformers has none
            continue
        error = (tensor.double() - theirs[hf_name(name)]).abs()
        assert (error <= 6e-8 * theirs[hf_name(name)].abs() + 1e-30).all(), name


def assert_logits(found: Checkpoint, model: Any, exact: bool = False) -> None:
    """In float64. Merged weights differ by half a float32 rounding, 6e-8, and there are some ten
    products in a row of them; 1e-5 of the largest logit is far above, and far below a mistake.
    exact: the weights are the same, so only sums are in another order, 1e-10; in float32, where a
    sum of some hundred numbers differs by 1e-6, 1e-4.
    """
    dims = found.dims
    text = [*TEXT, *range(1000, 1000 + max(0, dims.n_text_ctx - 448))]
    generator = torch.Generator().manual_seed(5)
    mel = torch.randn(dims.n_mels, dims.window_frames, generator=generator)
    theirs = their_logits(model, mel, text)
    assert theirs.std() > 0.5
    for dtype, tolerance in ((torch.float64, 1e-10 if exact else 1e-5), (torch.float32, 1e-4)):
        ours = Model(found, torch.device("cpu"), dtype)
        logits = ours.logits(torch.tensor([text]), ours.encoder(mel[None]))[0]
        assert (logits - theirs).abs().max() < tolerance * theirs.abs().max()


ADAPTERS = tomllib.loads(Path(__file__).with_name("adapters.toml").read_text())


@pytest.mark.parametrize("name", ADAPTERS["merged"])
def test_weights_and_logits_are_pefts(base: Path, tmp_path: Path, name: str) -> None:
    model = adapted(1, **ADAPTERS["merged"][name])
    found = load_checkpoint(base, adapter=saved(model, tmp_path / "adapter"))
    changed = [n for n in STATE if not torch.equal(found.state[n], STATE[n])]
    assert changed, "the adapter does something"
    assert_merged(found, model)
    assert_logits(found, model)


@pytest.mark.parametrize("name", ADAPTERS["refused"])
def test_what_is_refused_can_be_merged_by_peft(base: Path, tmp_path: Path, name: str) -> None:
    """With the lines of docs/guides/models.md."""
    model = adapted(2, **ADAPTERS["refused"][name])
    message = refusal(base, adapter=saved(model, tmp_path / "adapter"))
    assert name in message and "with PEFT first" in message
    merged = tmp_path / "merged"
    model.merge_and_unload().save_pretrained(merged)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(merged)
    assert_logits(load_checkpoint(merged), theirs)


def untied(model: Any, noise: bool) -> None:
    """Give the model a matrix for the logits that is no longer the embedding."""
    model.config.tie_word_embeddings = False
    matrix = model.get_input_embeddings().weight.detach().clone()
    generator = torch.Generator().manual_seed(1)
    matrix += noise * torch.randn(matrix.shape, generator=generator)
    model.proj_out.weight = torch.nn.Parameter(matrix)


CASES: dict[str, tuple[Dims, dict[str, Any]]] = {
    "plain": (DIMS, {}),
    "shards": (DIMS, {"max_shard_size": "200KB"}),
    "bfloat16": (DIMS, {"dtype": torch.bfloat16}),
    "untied": (DIMS, {"untie": True}),
    "untied in name only": (DIMS, {"untie": False}),
    "other heads and layers": (replace(DIMS, n_audio_head=4, n_audio_layer=3, n_text_layer=1), {}),
    "long text": (replace(DIMS, n_text_ctx=700), {}),
    "half a window": (replace(DIMS, n_audio_ctx=750), {}),
    "more mel bands": (replace(DIMS, n_mels=128, n_vocab=51_866), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_transformers(tmp_path: Path, name: str) -> None:
    dims, how = CASES[name]
    model = their_model(dims, random_state(dims, seed=3))
    how = dict(how)
    if "untie" in how:
        untied(model, how["untie"])
    expected = bool(how.pop("untie", False))
    model = model.to(how.pop("dtype", torch.float32))
    model.save_pretrained(tmp_path / "m", **how)
    found = load_checkpoint(tmp_path / "m")
    assert (found.dims, OUTPUT in found.state) == (dims, expected)
    assert_logits(found, model, exact=True)


def test_both_read_the_same_output_matrix(tmp_path: Path) -> None:
    """config.json says tied, and the file has two matrices: both of us use the two."""
    model = their_model(DIMS, random_state(DIMS, seed=3))
    untied(model, True)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"x": 0'))
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(theirs.proj_out.weight, load_checkpoint(tmp_path).state[OUTPUT])
    assert torch.equal(theirs.proj_out.weight, model.proj_out.weight)
