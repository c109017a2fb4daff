"""What loads, and as what: formats, layouts and dtypes that people have, other contexts."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper
from safetensors.torch import save_file
from whisper.audio import log_mel_spectrogram

from slimwhisper.api import SlimWhisper
from slimwhisper.cache.base import PAGE
from slimwhisper.checkpoint.files import EMBEDDING, OUTPUT
from slimwhisper.commands.random_weights import random_checkpoint
from slimwhisper.disk import weights_digest
from slimwhisper.errors import OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.formats.names import available_models, bundled_file
from slimwhisper.guard import guarded_plan
from slimwhisper.model.model import Model
from slimwhisper.types import SAMPLE_RATE
from tests.support import checkpoints as c
from tests.support.checkpoints import DIMS, State, assert_equal, random_state, save_hf, tiny_dims
from tests.support.reference import whisper_logits, whisper_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_openai_file(tmp_path: Path, state: State, dtype: torch.dtype) -> None:
    cast = {name: tensor.to(dtype) for name, tensor in state.items()}
    path = c.save_openai(tmp_path / "a.pt", DIMS, cast)
    found = load_checkpoint(path)
    assert found.name == str(path)
    assert found.dims == DIMS
    assert_equal(found.state, state, dtype)
    # openai-whisper casts to float32 on loading
    reference = whisper.load_model(str(path), device="cpu")
    assert asdict(found.dims) == vars(reference.dims)
    assert_equal({n: t.float() for n, t in found.state.items()}, reference.state_dict())
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in cast.items()}
    assert_equal(load_checkpoint(c.save_openai(path, DIMS, parameters)).state, state, dtype)


def test_bundled_model(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, with a word about what it is, and not hidden by a folder of that name."""
    monkeypatch.setattr(torch.hub, "download_url_to_file", None)
    found = load_checkpoint("digits", local_files_only=True)
    assert (found.name, found.dims.n_vocab) == ("digits", 51_864)
    assert {t.dtype for t in found.state.values()} == {torch.float16}
    assert "zero to nine" in caplog.text and "--model turbo" in caplog.text
    rows = found.state["decoder.token_embedding.weight"]
    assert int((rows != 0).any(dim=1).sum()) < 1_600  # the rest packs to nothing
    assert {"digits", "distil-large-v3.5", *whisper.available_models()} <= {*available_models()}
    file = bundled_file("digits")
    assert file.stat().st_size < 30e6
    assert file.with_suffix(".md").exists()
    assert whisper.load_model(str(file), device="cpu").dims.n_vocab == 51_864


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
    kept = load_checkpoint(c.save_openai(tmp_path / "biased.pt", dims, plain | biases))
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


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("prefix", ["", "module.model.", "_orig_mod.", "model._orig_mod."])
def test_tied_output_under_its_own_name(
    folder: Path, state: State, dtype: torch.dtype | None, prefix: str
) -> None:
    """Alone, or beside the embedding, in any dtype; and names with other prefixes, in a folder
    whose JSON begins with the byte order mark of Windows' editors.
    """
    config = folder / "config.json"
    config.write_text(f"\ufeff{config.read_text()}", encoding="utf-8")
    tensors = {c.hf_name(n).removeprefix("model."): t for n, t in state.items()}
    tensors[OUTPUT] = tensors["decoder.embed_tokens.weight"].to(dtype or torch.float32, copy=True)
    if dtype is None:
        del tensors["decoder.embed_tokens.weight"]
    tensors = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    assert_equal(load_checkpoint(folder).state, state)


def test_shards_are_mapped_not_copied(tmp_path: Path, state: State) -> None:
    sharded = save_hf(tmp_path / "sharded", DIMS, state, shards=3)
    another = sharded / "model-00004-of-00003.safetensors"
    save_file({"x": torch.ones(1)}, another)  # not in the index
    found = load_checkpoint(sharded)
    places = [place for file in sharded.glob("*.safetensors") for place in c.mapped(file)]
    assert len({id(t) for t in found.state.values()}) == len(found.state)
    for name, tensor in found.state.items():
        assert any(tensor.data_ptr() in place for place in places), name


def test_mixed_dtypes(tmp_path: Path, state: State) -> None:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    mixed = {name: t.to(dtypes[i % 3]) for i, (name, t) in enumerate(state.items())}
    found = load_checkpoint(save_hf(tmp_path / "m", DIMS, mixed, shards=2))
    assert all(torch.equal(found.state[name], mixed[name]) for name in mixed)
    tokens, features = torch.tensor([[50_258, 3, 8]]), torch.randn(1, 1500, 8)
    state = {n: t.float() for n, t in mixed.items()}
    whole = Model(replace(found, state=state), CPU, torch.float32)
    model = Model(found, CPU, torch.float32)
    assert torch.equal(model.logits(tokens, features), whole.logits(tokens, features))


@pytest.mark.parametrize("forms", [("e", "x"), ("kv", "kv"), ("k", "v")])
def test_output_matrix_of_its_own(tmp_path: Path, forms: tuple[str, str], caplog: Any) -> None:
    dims = tiny_dims(heads=2, n_text_ctx=16)
    state = random_state(dims, seed=2)
    generator = torch.Generator().manual_seed(9)
    whole = state | {OUTPUT: torch.randn(state[EMBEDDING].shape, generator=generator)}
    found = load_checkpoint(save_hf(tmp_path / "m", dims, whole))
    assert "proj_out.weight differs" in caplog.text  # config.json does not say so
    assert_equal(found.state, whole)
    assert weights_digest(found.state) != weights_digest(state)
    reference = whisper_model(dims, state, torch.float64)
    text, features = [50_258, 3, 8, 50_257], torch.randn(1, 1500, 64, dtype=torch.float64)
    hidden: list[torch.Tensor] = []
    reference.decoder.ln.register_forward_hook(lambda *call: hidden.append(call[2]))
    tied = whisper_logits(reference, text, features[0])
    wanted = hidden[0][0] @ whole[OUTPUT].double().T
    assert (tied - wanted).abs().max() > 1
    model = Model(found, CPU, torch.float64, forms, guarded_plan)
    logits = model.logits(torch.tensor([text]), features)[0]
    assert (logits - wanted).abs().max() < 1e-10 * wanted.abs().max()


@pytest.mark.parametrize(
    ("n_audio_ctx", "n_text_ctx"),
    [(750, 32), pytest.param(10, 460, marks=pytest.mark.slow), (1, 8)],
)
def test_other_contexts(tmp_path: Path, n_audio_ctx: int, n_text_ctx: int) -> None:
    """Logits, also of the last position, and the bytes of a window."""
    dims = tiny_dims(width=16, heads=2, n_mels=128, n_text_ctx=n_text_ctx)
    dims = replace(dims, n_audio_ctx=n_audio_ctx)
    state = random_state(dims, seed=3)
    model = Model(load_checkpoint(save_hf(tmp_path / "m", dims, state)), CPU, torch.float64)
    features = torch.randn(1, n_audio_ctx, 16, dtype=torch.float64)
    text = torch.randint(0, 50_000, (n_text_ctx,), generator=torch.Generator().manual_seed(1))
    wanted = whisper_logits(whisper_model(dims, state, torch.float64), text.tolist(), features[0])
    assert (model.logits(text[None], features)[0] - wanted).abs().max() < 1e-10 * wanted.abs().max()
    tokens = -(-n_text_ctx // PAGE) * PAGE
    slim = n_audio_ctx * 16 + tokens * 16 * 2  # values: E once, X in both layers
    assert model.bytes_per_window() == slim * 8


def test_windows_of_other_lengths() -> None:
    """5 s of audio in windows of 2 s."""
    dims = replace(tiny_dims(heads=2, n_text_ctx=32), n_audio_ctx=100)
    rng = np.random.default_rng(0)
    sound = rng.standard_normal(5 * SAMPLE_RATE).astype(np.float32) * 0.1
    model = SlimWhisper(Model(random_checkpoint(dims), CPU, torch.float32))
    plain = {"language": "en", "temperature": 0.0, "no_speech_threshold": None, "sample_len": 4}
    result = model.transcribe(sound, without_timestamps=True, **plain)
    assert [s["seek"] for s in result["segments"]] == [0, 200, 400]
    assert [s["end"] for s in result["segments"]] == [2.0, 4.0, 5.0]
    words = model.transcribe(sound, word_timestamps=True, **plain)["segments"]
    ends = [word["end"] for segment in words for word in segment["words"]]
    assert ends and max(ends) <= 5.0
    code, probs = model.detect_language(sound)
    assert probs[code] == max(probs.values())
    mel = log_mel_spectrogram(torch.from_numpy(sound), 80)
    assert len(model.decode(mel[:, :200], without_timestamps=True, sample_len=4).tokens) == 4
    with pytest.raises(OptionError, match=r"\[80, 200\]"):
        model.decode(torch.zeros(80, 3000))
