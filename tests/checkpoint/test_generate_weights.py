"""Weights in every form, and adapters: greedy windows say what transformers' `generate` says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import slimwhisper
from slimwhisper.audio.mel import first_window
from tests.support.hf_folders import hf_folder, trained_table
from tests.support.oracle import first_window_of, transformers
from tests.support.sounds import noise_bursts

# slow: importing transformers takes longer than the tests. Warnings: PEFT's, about tied weights.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TOKENS = 16  # of a window
PLAIN: dict[str, Any] = {"suppress_tokens": [], "begin_suppress_tokens": []}
EN = {"language": "en", "task": "transcribe"}
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def theirs() -> Any:
    return transformers()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folder(tmp_path / "model", trained_table(added=(" alpha",)), generation=PLAIN)


def reference(theirs: Any, folder: Path) -> Any:
    model = theirs.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def windows(model: Any, decode: Callable[[Any, torch.Tensor], list[int]]) -> list[list[int]]:
    return [decode(model, first_window(noise_bursts(5, seed=seed), 80)) for seed in range(2)]


def generated(model: Any, mel: torch.Tensor) -> list[int]:
    asked = {"return_timestamps": False, "max_new_tokens": TOKENS + 1, **EN}
    return first_window_of(model, mel, TOKENS, **asked).tokens


def ours(model: slimwhisper.SlimWhisper, mel: torch.Tensor) -> list[int]:
    found = model.decode(mel, without_timestamps=True, sample_len=TOKENS, **EN)
    assert not isinstance(found, list)
    return found.tokens


def assert_same(folder: Path, model: Any, adapter: Any = None) -> list[list[int]]:
    """Our tokens of two windows are those of transformers' model; returns them."""
    expected = windows(model, generated)
    loaded = slimwhisper.load_model(folder, device="cpu", dtype="float32", adapter=adapter)
    assert windows(loaded, ours) == expected
    assert all(len(set(tokens)) > 2 for tokens in expected)
    return expected


def shards(folder: Path, model: Any) -> None:
    model.save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 2


def pickled(folder: Path, model: Any) -> None:
    torch.save(load_file(folder / FILE), folder / "pytorch_model.bin")


def pickled_shards(folder: Path, model: Any) -> None:
    state = load_file(folder / FILE)
    files = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(state)}
    for file in set(files.values()):
        torch.save({n: t for n, t in state.items() if files[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def half(folder: Path, model: Any) -> None:
    model.half().save_pretrained(folder)


def mixed(folder: Path, model: Any) -> None:
    kinds = (torch.float16, torch.bfloat16, torch.float32)
    state = load_file(folder / FILE)
    halved = {name: t.to(kinds[i % 3]) for i, (name, t) in enumerate(state.items())}
    save_file(halved, folder / FILE, {"format": "pt"})


def untied(folder: Path, model: Any) -> None:
    rows = model.get_input_embeddings().weight.detach()
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(9))
    model.config.tie_word_embeddings = False
    model.proj_out.weight = torch.nn.Parameter(rows + 0.7 * noise)
    model.save_pretrained(folder)


@pytest.mark.parametrize("write", [shards, pickled, pickled_shards, half, mixed, untied])
def test_weights_in_other_forms(theirs: Any, folder: Path, write: Any) -> None:
    model = reference(theirs, folder)
    kept = {file: file.read_bytes() for file in folder.iterdir() if file.suffix == ".json"}
    before = windows(model, generated)
    write(folder, model)
    for file, content in kept.items():  # settings, which saving writes anew
        if file.name != "config.json":
            file.write_bytes(content)
    if write in (shards, pickled, pickled_shards):
        (folder / FILE).unlink(missing_ok=True)
    found = assert_same(folder, reference(theirs, folder))
    if write is not half and write is not mixed:
        assert (found != before) == (write is untied)


ADAPTERS: dict[str, list[dict[str, Any]]] = {
    "LoRA": [{"target_modules": ["q_proj", "v_proj"]}],
    "rsLoRA": [{"target_modules": ["q_proj", "fc1"], "use_rslora": True}],
    "two in order": [{"target_modules": ["q_proj"]}, {"target_modules": ["q_proj", "fc2"]}],
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(theirs: Any, folder: Path, tmp_path: Path, name: str) -> None:
    peft = pytest.importorskip("peft", reason="needs peft: pip install peft")
    model = reference(theirs, folder)
    before = windows(model, generated)
    saved: list[Path] = []
    for config in ADAPTERS[name]:
        if saved:
            model = model.merge_and_unload()
        model = peft.get_peft_model(model, peft.LoraConfig(**config)).eval()
        generator = torch.Generator().manual_seed(len(saved))
        with torch.no_grad():
            for tensor in filter(lambda t: t.requires_grad, model.parameters()):
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
        saved.append(tmp_path / f"adapter{len(saved)}")
        model.save_pretrained(saved[-1])
    assert assert_same(folder, model, saved) != before
