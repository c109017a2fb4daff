"""Damaged, foreign and dangerous folders of models: one line that names the file and the remedy."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from slimwhisper.checkpoint.load import load_checkpoint
from tests.support.checkpoints import DIMS, State, assert_equal, refusal
from tests.support.damage import (
    CODE,
    FIRST,
    INDEX,
    LFS,
    NAN,
    PAGE,
    PICKLE,
    SECOND,
    WEIGHTS,
    Case,
    bomb,
    config,
    cut,
    index,
    link_out,
    link_to_itself,
    pickled,
    refused,
    remove,
    shard_elsewhere,
    tensors,
    write,
)

BIAS, CONFIG = "model.encoder.conv1.bias", "config.json"

FOLDERS: dict[str, Case] = {
    "truncated shard": ("shards", cut(SECOND, -1000), (SECOND, "again")),
    "truncated pickle": ("pickle", cut(PICKLE, -100_000), (PICKLE, "again")),
    "no weights": ("whole", remove(WEIGHTS), ("no weights", PICKLE, "again")),
    "shard missing": ("shards", remove(SECOND), (SECOND, "missing")),
    "shard elsewhere": ("shards", shard_elsewhere("../other/"), (INDEX, "../other/")),
    "shard at a path": ("shards", shard_elsewhere("{}/"), (INDEX, "other/")),
    "shard by backslash": ("shards", shard_elsewhere("..\\other\\"), (INDEX, "other")),
    "weights link out": ("whole", link_out(WEIGHTS), (WEIGHTS, "link out")),
    "shard links out": ("shards", link_out(SECOND), (SECOND, "link out")),
    "pickle links out": ("pickle", link_out(PICKLE), (PICKLE, "link out")),
    "index links out": ("shards", link_out(INDEX), (INDEX, "link out")),
    "config links out": ("whole", link_out(CONFIG), (CONFIG, "link out")),
    "link to itself": ("whole", link_to_itself(WEIGHTS), (WEIGHTS,)),
    "NaN": ("whole", tensors(lambda t: t | {BIAS: NAN}, WEIGHTS), ("conv1.bias", "NaN")),
    "runs code": ("pickle", pickled(PICKLE, CODE), (PICKLE, "could run code")),
    "old pickle runs code": ("pickle", write(PICKLE, pickle.dumps(CODE, protocol=2)), (PICKLE,)),
    "zip bomb": ("pickle", bomb(PICKLE), (PICKLE, "compressed")),
    "pickled list": ("pickle", pickled(PICKLE, [torch.ones(1)]), (PICKLE, "list")),
    "nested": ("pickle", pickled(PICKLE, {"a": {"b": 1}}), (PICKLE, "no named tensor")),
    "wrong shape": (
        "whole",
        tensors(lambda t: t | {BIAS: torch.ones(9)}, WEIGHTS),
        ("conv1.bias", "[9]", "[8]"),
    ),
    "tensor in two shards": (
        "shards",
        tensors(lambda t: t | {BIAS: torch.zeros(8)}, FIRST, SECOND),
        (SECOND, BIAS, "second time"),
    ),
    "tensor of two names": (
        "whole",
        tensors(lambda t: t | {BIAS.removeprefix("model."): torch.ones(8)}, WEIGHTS),
        (WEIGHTS, "encoder.conv1.bias"),
    ),
    "name that writes to the terminal": (
        "whole",
        tensors(lambda t: t | {"a\n\x1b[31mb": torch.ones(1)}, WEIGHTS),
        ("a\\n\\x1b[31mb",),
    ),
    "shard lacks a tensor": (
        "shards",
        index(lambda found: found | {"model.x": FIRST}),
        (FIRST, "lacks tensor model.x"),
    ),
    "empty": ("whole", write(WEIGHTS, ""), (WEIGHTS, "is empty")),
    "empty pickle": ("pickle", write(PICKLE, ""), (PICKLE, "is empty")),
    "web page": ("whole", write(WEIGHTS, PAGE), (WEIGHTS, "web page")),
    "web page, pickle": ("pickle", write(PICKLE, PAGE), (PICKLE, "web page")),
    "git-lfs pointer": ("whole", write(WEIGHTS, LFS), (WEIGHTS, "git lfs pull")),
    "git-lfs pointer, pickle": ("pickle", write(PICKLE, LFS), (PICKLE, "git lfs pull")),
    "no config": ("whole", remove(CONFIG), (CONFIG, "give")),
    "config is a web page": ("whole", write(CONFIG, PAGE), (CONFIG, "web page")),
    "config is a pointer": ("whole", write(CONFIG, LFS), (CONFIG, "git lfs pull")),
    "huge width": ("whole", config(d_model=10**12), ("1000000000000",)),
    "endless layers": ("whole", config(decoder_layers=10**15), ("too few",)),
    "endless list": ("whole", config(d_model=[1] * 5000), (CONFIG, "d_model")),
    "another vocabulary": ("whole", config(vocab_size=51_864), ("token_embedding", "51864")),
    "index is no JSON": ("shards", write(INDEX, "?"), (INDEX, "again")),
    **{
        f"cut at {keep}": ("whole", cut(WEIGHTS, keep), (WEIGHTS, "again"))
        for keep in (0, 5, 500, -1, -10_000)
    },
    **{
        f"config {text[:9]!r}": ("whole", write(CONFIG, text), (CONFIG,))
        for text in ("", "{", "[1]", "null", '"whisper"', b"\xff", "[" * 100_000, "9" * 9000)
    },
    **{
        f"config of {key}={value!r}": ("whole", config(**{key: value}), (CONFIG, key, repr(value)))
        for key, value in (
            ("model_type", "wav2vec2"),
            ("model_type", None),
            ("d_model", "8"),
            ("d_model", None),
            ("decoder_layers", 1.5),
            ("encoder_layers", True),
            ("encoder_attention_heads", 0),
            ("decoder_attention_heads", -4),
            ("vocab_size", -1),
            ("activation_function", "relu"),
            ("scale_embedding", True),
        )
    },
    **{
        f"index of {weight_map}": (
            "shards",
            write(INDEX, json.dumps({"weight_map": weight_map})),
            (INDEX,),
        )
        for weight_map in (None, {}, [1], {"a": 3}, {"a": "/etc/passwd"}, {"a": ".."}, {"a": ""})
    },
    "index of nothing": ("shards", write(INDEX, "{}"), (INDEX,)),
}


def test_these_are_sound(sound: Path, state: State) -> None:
    """And the same, whatever the format, also with an adapter."""
    adapted = dict(load_checkpoint(sound / "whole", adapter=sound / "adapter").state)
    query = "decoder.blocks.0.attn.query.weight"
    assert not torch.equal(adapted[query], state[query])
    for name in ("whole", "shards", "pickle", "openai/model.pt", "openai-old/model.pt"):
        found = load_checkpoint(str(sound / name))
        assert (found.name, found.dims) == (str(sound / name), DIMS)
        assert_equal(found.state, state)
        for adapter in ("adapter", "adapter-pickle"):
            assert_equal(load_checkpoint(sound / name, adapter=sound / adapter).state, adapted)


@pytest.mark.parametrize("kind", FOLDERS)
def test_damage(sound: Path, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused(sound, tmp_path, FOLDERS[kind])
    assert "must not be printed" not in capfd.readouterr().out


def test_links_inside_a_folder_are_followed(folder: Path, tmp_path: Path, state: State) -> None:
    shutil.move(folder / WEIGHTS, folder / "blob")
    (folder / WEIGHTS).symlink_to("blob")
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        assert_equal(load_checkpoint(path).state, state)


def test_safetensors_file_alone(folder: Path) -> None:
    assert CONFIG in refusal(folder / WEIGHTS)


@pytest.mark.parametrize(
    ("denied", "name"),
    [
        ("pathlib.Path.is_file", ""),
        ("pathlib.Path.read_text", CONFIG),
        ("safetensors.torch.load_file", WEIGHTS),
    ],
)
def test_what_may_not_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, denied: str, name: str
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(denied, deny)
    message = refusal(folder)
    assert str(folder / name) in message and "ermission denied" in message
