"""What loads, and as what: both formats, names, dtypes, agreement with openai-whisper."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import whisper
from whisper.model import ModelDimensions, Whisper

from slimwhisper.checkpoint.bundled import bundled_file
from slimwhisper.checkpoint.load import Checkpoint, available_models, load_checkpoint
from slimwhisper.checkpoint.validate import expected_shapes
from slimwhisper.model.model import Model
from slimwhisper.types import Dims
from tests.support.checkpoints import (
    DIMS,
    State,
    assert_equal,
    random_state,
    save_hf,
    save_openai,
    tiny_dims,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_openai_file(tmp_path: Path, state: State, dtype: torch.dtype) -> None:
    cast = {name: tensor.to(dtype) for name, tensor in state.items()}
    path = save_openai(tmp_path / "a.pt", DIMS, cast)
    found = load_checkpoint(path)
    assert isinstance(found, Checkpoint)
    assert found.name == str(path)
    assert found.dims == DIMS
    assert_equal(found.state, state, dtype)
    # openai-whisper casts to float32 on loading
    reference = whisper.load_model(str(path), device="cpu")
    assert asdict(found.dims) == vars(reference.dims)
    assert_equal({n: t.float() for n, t in found.state.items()}, reference.state_dict())


def test_openai_file_of_parameters(tmp_path: Path, state: State) -> None:
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    assert_equal(load_checkpoint(save_openai(tmp_path / "p.pt", DIMS, parameters)).state, state)


def test_bundled_model(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, with a word about what it is, and not hidden by a folder of that name."""
    monkeypatch.setattr(torch.hub, "download_url_to_file", None)
    found = load_checkpoint("digits", local_files_only=True)
    assert (found.name, found.dims.n_vocab) == ("digits", 51_864)
    assert {t.dtype for t in found.state.values()} == {torch.float16}
    assert "zero to nine" in caplog.text and "--model turbo" in caplog.text
    rows = found.state["decoder.token_embedding.weight"]
    assert int((rows != 0).any(dim=1).sum()) < 1_600  # the rest packs to nothing
    file = bundled_file("digits")
    assert file.stat().st_size < 30e6
    assert file.with_suffix(".md").exists()
    assert whisper.load_model(str(file), device="cpu").dims.n_vocab == 51_864


@pytest.mark.parametrize("dims", [DIMS, tiny_dims(multilingual=False, width=16, n_mels=128)])
def test_expected_shapes_are_whispers(dims: Dims) -> None:
    model = Whisper(ModelDimensions(**asdict(dims)))
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    assert expected_shapes(dims) == shapes


def test_available_models() -> None:
    names = available_models()
    assert {"digits", "tiny.en", "large-v3", "turbo", "distil-large-v3.5"} <= set(names)
    assert set(whisper.available_models()) <= set(names)


def test_key_bias_is_kept_and_changes_no_logit(tmp_path: Path) -> None:
    """Some converters write it; it cancels."""
    dims = tiny_dims(heads=2, n_text_ctx=16)
    plain = random_state(dims, seed=5)
    generator = torch.Generator().manual_seed(6)
    biases = {
        name.removesuffix("weight") + "bias": torch.randn(64, generator=generator)
        for name in plain
        if name.endswith(".key.weight")
    }
    kept = load_checkpoint(save_openai(tmp_path / "biased.pt", dims, plain | biases))
    assert_equal(kept.state, plain | biases)
    found = load_checkpoint(save_hf(tmp_path / "biased", dims, plain | biases))
    assert_equal(found.state, plain | biases)
    tokens = torch.randint(0, 50_000, (1, 12), generator=generator)
    features = torch.randn(1, 1500, 64, generator=generator).double()
    for forms in (("kv", "kv"), ("e", "x")):
        logits, wanted = (
            Model(replace(found, state=state), CPU, torch.float64, forms).logits(tokens, features)
            for state in (plain | biases, plain)
        )
        assert (logits - wanted).abs().max() < 1e-11 * wanted.abs().max()
