"""Hugging Face folders and the hub: what is fetched when, tied and renamed tensors, mapping."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import random_state, save_hf, save_openai, tiny_dims
from huggingface_hub import constants
from reference import whisper_logits, whisper_model
from safetensors.torch import load_file, save_file
from test_checkpoint import DIMS, Server, State, assert_equal, fill_hub_cache, refusal
from test_logits import cached_logits, features_like_encoder_output

from slimwhisper.checkpoint import Checkpoint, load_checkpoint
from slimwhisper.hub import looks_like_hub_id
from slimwhisper.model import Model

REPOSITORY = "someone/whisper-x"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
EMBEDDING = "model.decoder.embed_tokens.weight"


@pytest.fixture(scope="module")
def state() -> State:
    return random_state(DIMS, seed=4)


@pytest.fixture
def folder(tmp_path: Path, state: State) -> Path:
    return save_hf(tmp_path / "model", DIMS, state)


@pytest.fixture
def sharded(tmp_path: Path, state: State) -> Path:
    return save_hf(tmp_path / "sharded", DIMS, state, shards=3)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A loopback server that stands for the hub, and an empty cache."""
    server = Server()
    server.headers = {"X-Repo-Commit": COMMIT, "X-Error-Code": "EntryNotFound"}
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the hub's retries
    yield server
    server.close()


def publish(hub: Server, folder: Path) -> None:
    """Only config.json is served from "main": the rest has to be asked for by commit."""
    for file in folder.iterdir():
        revision = "main" if file.name == "config.json" else COMMIT
        hub.pages[f"/{REPOSITORY}/resolve/{revision}/{file.name}"] = file.read_bytes()


# ---- the hub


def test_sharded_model_is_fetched_at_one_revision(hub: Server, sharded: Path, state: State) -> None:
    publish(hub, sharded)
    assert_equal(load_checkpoint(REPOSITORY).state, state)
    hub.requests.clear()
    assert_equal(load_checkpoint(REPOSITORY).state, state)
    assert [Path(r).name for r in hub.requests] == ["config.json"], "the rest is in the cache"
    hub.close()
    assert_equal(load_checkpoint(REPOSITORY).state, state)
    assert_equal(load_checkpoint(REPOSITORY, local_files_only=True).state, state)


def test_shard_that_the_hub_lacks(hub: Server, sharded: Path) -> None:
    lost = "model-00002-of-00003.safetensors"
    (sharded / lost).unlink()
    publish(hub, sharded)
    message = refusal(REPOSITORY)
    assert REPOSITORY in message
    assert lost in message


def test_index_of_the_hub_that_reaches_outside(hub: Server, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "../../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    publish(hub, folder)
    message = refusal(REPOSITORY)
    assert "model.safetensors.index.json" in message
    assert "../../secret.safetensors" in message
    assert not any("secret" in request for request in hub.requests)


def test_cut_transfer_is_repeated_by_the_next_run(
    hub: Server, folder: Path, state: State, tmp_path: Path
) -> None:
    publish(hub, folder)
    hub.cut = True
    assert REPOSITORY in refusal(REPOSITORY)
    assert not list((tmp_path / "hub").rglob("model.safetensors"))
    hub.cut = False
    assert_equal(load_checkpoint(REPOSITORY).state, state)


def test_answer_that_is_not_the_hubs(hub: Server, folder: Path) -> None:
    hub.headers = {}
    publish(hub, folder)
    assert REPOSITORY in refusal(REPOSITORY)


def test_cache_that_cannot_be_written(
    hub: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert REPOSITORY in refusal(REPOSITORY)


@pytest.mark.parametrize("error", [KeyError("x\ny"), RuntimeError(""), OSError(28, "No space")])
def test_whatever_the_hub_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    assert REPOSITORY in refusal(REPOSITORY)


@pytest.mark.parametrize("name", ["some/mo--del", "some/model.", "some/x.git", f"a/{'b' * 200}"])
def test_id_that_the_hub_does_not_allow(hub: Server, name: str) -> None:
    assert name in refusal(name)


def test_path_object_is_no_hub_id(hub: Server) -> None:
    assert REPOSITORY in refusal(Path(REPOSITORY))
    assert hub.requests == []


def test_looks_like_hub_id() -> None:
    for name in (
        "openai/whisper-tiny",
        "a/b",
        "distil-whisper/distil-large-v3.5",
        "me/my_model.v2",
    ):
        assert looks_like_hub_id(name)
    for name in (
        "tiny",
        "/a",
        "a/",
        "a/b/c",
        "./a",
        "../a",
        "a/..",
        "~/a",
        "a/b.pt",
        "a/b\n",
        "a b/c",
    ):
        assert not looks_like_hub_id(name)


# ---- folders


def change(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    kept = load_file(path)
    save_file({**kept, **tensors}, path)


def test_tied_matrix_under_its_other_name_alone(folder: Path, state: State) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["proj_out.weight"] = tensors.pop(EMBEDDING)
    save_file(tensors, path)
    assert_equal(load_checkpoint(folder).state, state)


def test_output_matrix_of_another_dtype(folder: Path, state: State) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(folder, **{"proj_out.weight": tensors[EMBEDDING].half()})
    message = refusal(folder)
    assert str(folder) in message
    assert "proj_out.weight" in message


def test_two_names_for_one_tensor(folder: Path) -> None:
    change(folder, **{"encoder.conv1.bias": torch.ones(8)})
    message = refusal(folder)
    assert str(folder / "model.safetensors") in message
    assert "encoder.conv1.bias" in message


def test_foreign_names_cannot_write_to_the_terminal(folder: Path) -> None:
    change(folder, **{"a\n\x1b[31mb": torch.ones(1)})
    message = refusal(folder)
    assert message.isprintable()
    assert "a\\n\\x1b[31mb" in message


def test_long_values_are_shortened(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"d_model": [1] * 5000}))
    message = refusal(folder)
    assert message.startswith(str(folder))
    assert "copy it again" in message


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.complex64])
def test_dtypes_that_are_no_weights(folder: Path, dtype: torch.dtype) -> None:
    change(folder, **{"model.encoder.conv1.bias": torch.zeros(8).to(dtype)})
    message = refusal(folder)
    assert "encoder.conv1.bias" in message
    assert str(dtype) in message


def test_folder_that_may_not_be_looked_into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", deny)
    message = refusal(folder)
    assert str(folder) in message
    assert "Permission denied" in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_file_that_may_not_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    target = "safetensors.torch.load_file" if name.startswith("model") else "pathlib.Path.read_text"
    monkeypatch.setattr(target, deny)
    message = refusal(folder)
    assert str(folder / name) in message
    assert "permission denied" in message


def test_home_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "~no-such-user/x" in refusal("~no-such-user/x")
    assert "~no-such-user/x" in refusal("tiny", download_root="~no-such-user/x")


def test_shards_are_mapped_not_copied(sharded: Path) -> None:
    found = load_checkpoint(sharded)
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".safetensors") and str(sharded) in line:
            start, _, end = line.split()[0].partition("-")
            mapped.append((int(start, 16), int(end, 16)))
    assert len({id(t) for t in found.state.values()}) == len(found.state)
    for name, tensor in found.state.items():
        assert any(start <= tensor.data_ptr() < end for start, end in mapped), name


def test_cached_links_are_followed(hub: Server, folder: Path, state: State, tmp_path: Path) -> None:
    snapshot = fill_hub_cache(tmp_path / "hub", REPOSITORY, folder)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    for file in list(snapshot.iterdir()):
        shutil.move(file, blobs / f"{file.name}-hash")
        file.symlink_to(Path("../../blobs") / f"{file.name}-hash")
    assert_equal(load_checkpoint(REPOSITORY, local_files_only=True).state, state)
    (blobs / "model.safetensors-hash").unlink()
    assert "model.safetensors" in refusal(REPOSITORY, local_files_only=True)
    assert hub.requests == []


# ---- key biases, which some converters write, and which cancel


def test_key_bias_changes_no_logit(tmp_path: Path) -> None:
    dims = tiny_dims(heads=2, n_text_ctx=16)
    plain = random_state(dims, seed=5)
    generator = torch.Generator().manual_seed(6)
    biases = {
        name.removesuffix("weight") + "bias": torch.randn(64, generator=generator)
        for name in plain
        if name.endswith(".key.weight")
    }
    found = load_checkpoint(save_hf(tmp_path / "biased", dims, plain | biases))
    assert_equal(found.state, plain | biases)
    reference = whisper_model(dims, plain, torch.float64)
    for i, block in enumerate(reference.decoder.blocks):
        for name in ("attn", "cross_attn"):
            bias = biases[f"decoder.blocks.{i}.{name}.key.bias"].double()
            getattr(block, name).key.bias = torch.nn.Parameter(bias)
    text = torch.randint(0, 50_000, (12,), generator=generator).tolist()
    features = features_like_encoder_output(1, 100, 64).double()
    wanted = whisper_logits(reference, text, features[0])
    for forms in (("kv", "kv"), ("e", "x")):
        model = Model(found, torch.device("cpu"), torch.float64, forms)
        (logits,) = cached_logits(model, features, [text])
        assert (logits - wanted).abs().max() < 1e-11 * wanted.abs().max()


def test_both_formats_load_the_same(tmp_path: Path, state: State, folder: Path) -> None:
    openai = load_checkpoint(save_openai(tmp_path / "x.pt", DIMS, state))
    converted = load_checkpoint(folder)
    assert isinstance(openai, Checkpoint)
    assert openai.dims == converted.dims
    assert_equal(converted.state, dict(openai.state))
