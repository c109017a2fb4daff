"""Damaged, foreign and dangerous models: one line that names the file and the remedy."""

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

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
    OPENAI,
    PAGE,
    PICKLE,
    SECOND,
    WEIGHTS,
    Case,
    assert_refused,
    bomb,
    config,
    cut,
    index,
    link_out,
    link_to_itself,
    openai,
    pickled,
    remove,
    shard_elsewhere,
    tensors,
    write,
)

BIAS, CONFIG = "model.encoder.conv1.bias", "config.json"
LN, KEY_BIAS = "decoder.ln.weight", "decoder.blocks.0.attn.key.bias"
WHOLE = asdict(DIMS)


def letter() -> bytes:
    """A zip archive that is no checkpoint."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("letter.txt", "dear reader")
    return buffer.getvalue()


def without(*names: str) -> Callable[[State], State]:
    return lambda state: {name: tensor for name, tensor in state.items() if name not in names}


def more(name: Any, tensor: Any) -> Callable[[State], State]:
    return lambda state: state | {name: tensor}


def hf(change: Callable[[State], State], *said: str, files: tuple[str, ...] = (WEIGHTS,)) -> Case:
    """Other tensors in a Hugging Face folder."""
    return "whole" if files == (WEIGHTS,) else "shards", tensors(change, *files), said


# -- files: a sound folder, what is done to it, and what the message says --------------------------

LINKS = (("whole", WEIGHTS), ("shards", SECOND), ("pickle", PICKLE), ("shards", INDEX))
FILES: list[Case] = [
    *((kind, link_out(name), (name, "outside")) for kind, name in (*LINKS, ("whole", CONFIG))),
    ("whole", link_to_itself(WEIGHTS), (WEIGHTS,)),
    ("whole", remove(WEIGHTS), ("no weights", PICKLE, "again")),
    ("whole", write(WEIGHTS, ""), (WEIGHTS, "is empty")),
    ("whole", write(WEIGHTS, PAGE), (WEIGHTS, "web page")),
    ("pickle", write(PICKLE, LFS), (PICKLE, "git lfs pull")),
    *(("whole", cut(WEIGHTS, keep), (WEIGHTS, "again")) for keep in (5, 500, -1, -10_000)),
    ("pickle", cut(PICKLE, -100_000), (PICKLE, "again")),
    ("pickle", pickled(PICKLE, CODE), (PICKLE, "could run code")),
    ("pickle", write(PICKLE, pickle.dumps(CODE, protocol=2)), (PICKLE,)),
    ("pickle", bomb(PICKLE), (PICKLE, "compressed")),
    ("pickle", pickled(PICKLE, [torch.ones(1)]), (PICKLE, "list")),
    ("pickle", pickled(PICKLE, {"a": {"b": 1}}), (PICKLE, "named tensor")),
    # shards
    ("shards", remove(SECOND), (SECOND, "missing")),
    *(
        ("shards", shard_elsewhere(where), (INDEX, "other"))
        for where in ("../other/", "{}/", "..\\other\\")
    ),
    ("shards", index(lambda found: found | {"model.x": FIRST}), (FIRST, "model.x")),
    ("shards", write(INDEX, "?"), (INDEX, "again")),
    *(
        ("shards", write(INDEX, json.dumps({"weight_map": given})), (INDEX,))
        for given in (None, {}, [1], {"a": 3}, {"a": "/etc/passwd"}, {"a": ".."}, {"a": ""})
    ),
    # OpenAI's
    *(("openai", cut(OPENAI, keep), ("again",)) for keep in (0, 3, 100, 5_000, -1, -100_000)),
    *(("openai-old", cut(OPENAI, keep), (OPENAI,)) for keep in (0, 3, 100, 5_000, -1, -100_000)),
    ("openai", pickled(OPENAI, CODE), ("code",)),
    ("openai", write(OPENAI, pickle.dumps(CODE, protocol=2)), (OPENAI,)),
    ("openai", bomb(OPENAI), ("compressed",)),
    *(
        ("openai", write(OPENAI, content), (OPENAI,))
        for content in (letter(), b"\0" * 4096, b"ID3" + b"\xff" * 500, b"<html>", b"{}", b"\x80")
    ),
]

# -- config.json, and `dims` -----------------------------------------------------------------------

SETTINGS: list[Case] = [
    ("whole", remove(CONFIG), (CONFIG, "give")),
    *(
        ("whole", write(CONFIG, text), (CONFIG,))
        for text in ("", "{", "[1]", "null", '"whisper"', b"\xff", "[" * 100_000, "9" * 9000, PAGE)
    ),
    *(
        ("whole", config(**{key: value}), (CONFIG, key, repr(value)))
        for key, value in (
            ("model_type", "wav2vec2"),
            ("model_type", None),
            ("d_model", "8"),
            ("d_model", None),
            ("decoder_layers", 1.5),
            ("encoder_layers", True),
            ("encoder_attention_heads", 0),
            ("activation_function", "relu"),
            ("scale_embedding", True),
        )
    ),
    ("whole", config(d_model=10**12), ("1000000000000",)),
    ("whole", config(d_model=[1] * 5000), (CONFIG, "d_model")),
    ("whole", config(decoder_layers=10**15), ("too few",)),
    ("whole", config(vocab_size=51_864), ("token_embedding", "51864")),
    ("whole", config(tie_word_embeddings=False), ("proj_out.weight",)),
    *(
        ("openai", pickled(OPENAI, content), ("dims",))
        for content in (
            {"weight": torch.zeros(2)},
            [1, 2],
            {"dims": WHOLE},
            {"dims": 3, "model_state_dict": {}},
            {"dims": WHOLE, "model_state_dict": torch.zeros(3)},
            {"dims": WHOLE | {"n_mels": 80.5}, "model_state_dict": {}},
            {"dims": WHOLE | {"n_mels": True}, "model_state_dict": {}},
            {"dims": WHOLE | {3: 1}, "model_state_dict": {}},
            {"dims": {"n_mels": 80}, "model_state_dict": {}},
        )
    ),
    *(
        ("openai", openai(dict, replace(DIMS, **changes)), said)
        for changes, *said in (
            ({"n_vocab": 32_000}, "32000", "51865"),
            ({"n_mels": 64}, "64", "80"),
            ({"n_mels": 128}, "encoder.conv1.weight", "128", "80"),
            ({"n_audio_ctx": 750}, "encoder.positional_embedding", "750", "1500"),
            ({"n_audio_ctx": 1501}, "1501", "1500"),
            ({"n_text_ctx": 449}, "decoder.positional_embedding", "449", "448"),
            ({"n_text_ctx": 4097}, "4097", "4096"),
            ({"n_text_ctx": 7}, "7", "4096"),
            ({"n_audio_head": 3}, "8", "3 heads"),
            ({"n_text_head": 0}, "dims"),
            ({"n_text_layer": -1}, "dims"),
            ({"n_text_layer": 2}, "decoder.blocks.1"),
            ({"n_text_layer": 10**6}, "too few", "layers"),  # must not build a list of them
            ({"n_text_state": 16}, "16", "8"),
        )
    ),
]

# -- tensors ---------------------------------------------------------------------------------------

TENSORS: list[Case] = [
    hf(more(BIAS, NAN), "conv1.bias", "NaN"),
    hf(more(BIAS, torch.ones(9)), "conv1.bias", "[9]", "[8]"),
    hf(more(BIAS.removeprefix("model."), torch.ones(8)), WEIGHTS, "encoder.conv1.bias"),
    hf(more("a\n\x1b[31mb", torch.ones(1)), "a\\n\\x1b[31mb"),
    hf(more(BIAS, torch.zeros(8)), SECOND, BIAS, "also in", files=(FIRST, SECOND)),
    *(
        ("openai", openai(change), said)
        for change, *said in (
            (without(LN), LN),
            (without(LN, "decoder.ln.bias", "encoder.ln_post.bias"), "2 more"),
            (more("lora_A", torch.ones(1)), "lora_A"),
            (more(3, torch.ones(1)), "3"),
            (more(LN, "text"), LN),
            (more(LN, torch.ones(8, 1)), LN),
            (more(LN, torch.ones(8, dtype=torch.int8)), LN, "int8"),
            (more(LN, torch.ones(8).to(torch.float8_e4m3fn)), LN, "float8"),
            (more(LN, torch.ones(8).to_sparse()), LN, "sparse"),
            (more(LN, torch.ones(8, device="meta")), LN),
            (more(LN, torch.tensor([1.0] * 7 + [float("-inf")])), LN, "infinity"),
            (more(KEY_BIAS, torch.full((8,), torch.nan)), KEY_BIAS, "infinity"),
            (more(KEY_BIAS, torch.ones(7)), KEY_BIAS, "7", "8"),
        )
    ),
]


@pytest.mark.parametrize("case", [*FILES, *SETTINGS, *TENSORS], ids=lambda case: str(case[2][0]))
def test_damage(sound: Path, tmp_path: Path, case: Case) -> None:
    assert_refused(sound, tmp_path, case)


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


def test_links_inside_a_folder_are_followed(folder: Path, tmp_path: Path, state: State) -> None:
    shutil.move(folder / WEIGHTS, folder / "blob")
    (folder / WEIGHTS).symlink_to("blob")
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        assert_equal(load_checkpoint(path).state, state)
    assert CONFIG in refusal(folder / WEIGHTS), "the folder is asked for"


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tinny", ["did you mean", "tiny", "large-v3-turbo", "distil-large-v3.5"]),
        ("zzzz", ["tiny.en", "distil-small.en"]),
        ("", ["tiny"]),
        ("no/such/folder/x.pt", ["no/such/folder/x.pt", "file"]),
        (Path("no-such"), ["no-such"]),
        ("./no/such", ["./no/such"]),
        ("-a/b", ["-a/b"]),
        ("x" * 5000, ["x"]),
        ("bad\nname", ["bad"]),
        ("~no-such-user/x", ["~no-such-user/x"]),
    ],
)
def test_unknown_name_or_path(name: str | Path, expected: list[str]) -> None:
    message = refusal(name)
    assert all(part in message for part in expected), message
