"""Hugging Face folders: tied and renamed tensors, shards, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slimwhisper.checkpoint.load import load_checkpoint
from tests.support.checkpoints import (
    DIMS,
    State,
    assert_equal,
    hf_config,
    hf_name,
    refusal,
    save_hf,
)

EMBEDDING = "model.decoder.embed_tokens.weight"


def change(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    kept = load_file(path)
    save_file({**kept, **tensors}, path)


@pytest.mark.parametrize("shards", [1, 3])
def test_folder(tmp_path: Path, state: State, shards: int) -> None:
    folder = save_hf(tmp_path / "m", DIMS, state, shards=shards)
    found = load_checkpoint(str(folder))
    assert found.dims == DIMS
    assert_equal(found.state, state)


def test_names_without_prefix_and_tied_output(folder: Path, state: State) -> None:
    tensors = {hf_name(n).removeprefix("model."): t for n, t in state.items()}
    tensors["proj_out.weight"] = state["decoder.token_embedding.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    assert_equal(load_checkpoint(folder).state, state)


def test_tied_matrix_under_its_other_name_alone(folder: Path, state: State) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["proj_out.weight"] = tensors.pop(EMBEDDING)
    save_file(tensors, path)
    assert_equal(load_checkpoint(folder).state, state)


def test_shards_are_mapped_not_copied(tmp_path: Path, state: State) -> None:
    sharded = save_hf(tmp_path / "sharded", DIMS, state, shards=3)
    found = load_checkpoint(sharded)
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".safetensors") and str(sharded) in line:
            start, _, end = line.split()[0].partition("-")
            mapped.append((int(start, 16), int(end, 16)))
    assert len({id(t) for t in found.state.values()}) == len(found.state)
    for name, tensor in found.state.items():
        assert any(start <= tensor.data_ptr() < end for start, end in mapped), name


def test_safetensors_file_alone(folder: Path) -> None:
    message = refusal(folder / "model.safetensors")
    assert "folder" in message
    assert "config.json" in message


@pytest.mark.parametrize("keep", [0, 5, 500, -1, -10_000])
def test_truncated_safetensors(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    message = refusal(folder)
    assert str(path) in message
    assert "again" in message


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"whisper"', "\xff", "[" * 100_000])
def test_damaged_config(folder: Path, text: str) -> None:
    path = folder / "config.json"
    path.write_bytes(text.encode("latin1"))
    assert str(path) in refusal(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "wav2vec2"),
        ("model_type", None),
        ("d_model", "8"),
        ("d_model", None),
        ("decoder_layers", 1.5),
        ("encoder_layers", True),
        ("encoder_attention_heads", 0),
        ("vocab_size", -1),
        ("activation_function", "relu"),
        ("scale_embedding", True),
    ],
)
def test_config_of_another_model(folder: Path, key: str, value: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(hf_config(DIMS) | {key: value}))
    message = refusal(folder)
    assert str(path) in message
    assert key in message
    assert repr(value) in message


def test_long_values_are_shortened(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"d_model": [1] * 5000}))
    message = refusal(folder)
    assert message.startswith(str(folder))
    assert "d_model" in message and "again" in message


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": {}},
        {"weight_map": [1]},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": "../other/model.safetensors"}},
        {"weight_map": {"a": "/etc/passwd"}},
        {"weight_map": {"a": ".."}},
        {"weight_map": {"a": ""}},
    ],
)
def test_bad_index(folder: Path, index: object) -> None:
    shutil.copytree(folder, folder.parent / "other")
    (folder / "model.safetensors").unlink()
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    assert str(path) in refusal(folder)


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
