"""Damaged, foreign and dangerous models: one line that names the file, or they load; nothing else.

What is dangerous has a row of its own; the rest is damage by chance, to any file of any kind.
"""

import argparse
import json
import pickle
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.checkpoint.files import EMBEDDING
from slimwhisper.errors import CheckpointError
from slimwhisper.flags import load_weights
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.jobs.journal import identify_adapter
from slimwhisper.loading import load_model
from tests.support import checkpoints as c
from tests.support import damage as d
from tests.support.adapters import PREFIX, query_and_value_factors, save_adapter
from tests.support.checkpoints import DIMS, State, assert_equal, hf_config, refusal, save_openai
from tests.support.damage import CODE, FIRST, INDEX, LFS, OPENAI, PAGE, PICKLE, SECOND, WEIGHTS
from tests.support.foreign import ct2_variables, ggml_bytes, save_ct2
from tests.support.fuzz import examples

CONFIG, GGML = "config.json", "ggml.bin"
STATE = c.random_state(DIMS, seed=1)
KINDS = ("whole", "shards", "pickle", "openai", "openai-old", "ggml", "ct2")
LINKS = (
    *(("whole", WEIGHTS), ("shards", SECOND), ("pickle", PICKLE), ("shards", INDEX)),
    *(("whole", CONFIG), ("ct2", "model.bin"), ("ct2", "vocabulary.json")),
)
CASES: list[d.Case] = [
    *((kind, d.link_out(name), (name, "outside")) for kind, name in LINKS),
    ("whole", d.link_out(WEIGHTS, to=WEIGHTS), (WEIGHTS,)),
    ("whole", d.remove(WEIGHTS), (PICKLE, "give a folder that has")),
    ("whole", d.remove(CONFIG), (CONFIG, "give", "--adapter")),
    ("whole", d.write(WEIGHTS, PAGE), (WEIGHTS, "web page")),
    ("ct2", d.write("model.bin", LFS), ("model.bin", "git lfs pull")),
    ("ct2", d.write("model.bin", "abcdef"), ("model.bin", "damaged CTranslate2")),
    ("pickle", d.pickled(PICKLE, CODE), (PICKLE, "could run code")),
    ("pickle", d.write(PICKLE, pickle.dumps(CODE, protocol=2)), (PICKLE,)),
    ("openai", d.write(OPENAI, pickle.dumps(CODE, protocol=2)), (OPENAI,)),
    ("openai", d.pickled(OPENAI, CODE), (OPENAI, "code")),
    ("pickle", d.bomb(PICKLE), (PICKLE, "compressed")),
    ("openai", d.bomb(OPENAI), (OPENAI, "compressed")),
    ("shards", d.remove(SECOND), (SECOND, "missing")),
    *(("shards", d.shard_elsewhere(at), (INDEX, "other")) for at in ("../other/", "{}/")),
    ("shards", d.index(lambda found: found | {"model.x": FIRST}), (FIRST, "model.x")),
    ("whole", d.config(model_type="wav2vec2"), (CONFIG, "model_type", "wav2vec2")),
    ("whole", d.config(activation_function="relu"), (CONFIG, "activation_function")),
    ("whole", d.config(quantization_config={"load_in_8bit": True}), ("load_in_8bit", "give")),
    ("whole", d.config(num_mel_bins=None), (CONFIG, "has no num_mel_bins")),
    ("whole", d.config(tie_word_embeddings=False), ("proj_out.weight",)),
    ("whole", d.config(decoder_layers=10**15), ("too few",)),  # must not build a list of them
    ("openai", d.openai(lambda s: s | {"a\n\x1b[31mb": torch.ones(1)}), ("a\\n\\x1b[31mb",)),
    ("openai", d.openai(lambda s: {f"x.{n}": t for n, t in s.items()}), ("is missing", " x.")),
    ("openai", d.pickled(OPENAI, {"dims": asdict(DIMS) | {3: 1}}), ("dims",)),
    ("whole", d.config(decoder_attention_heads=3), ("3 heads",)),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and adapters of every kind that load, each in a folder of its own."""
    return d.save_sound(tmp_path_factory.mktemp("sound"))


def test_these_are_sound(sound: Path, state: State) -> None:
    """And the same, whatever the format, also with an adapter."""
    adapted = dict(load_checkpoint(sound / "whole", adapter=sound / "adapter").state)
    query = "decoder.blocks.0.attn.query.weight"
    assert not torch.equal(adapted[query], state[query])
    for name in KINDS:
        found = load_checkpoint(path_in(sound / name))
        assert found.dims == DIMS
        assert_equal(found.state, state)
        for adapter in ("adapter", "adapter-pickle") if name in KINDS[:3] else ():
            assert_equal(load_checkpoint(sound / name, adapter=sound / adapter).state, adapted)


def path_in(folder: Path) -> Path:
    """What is loaded of a sound folder."""
    alone = (path for path in (folder / OPENAI, folder / GGML) if path.exists())
    return next(alone, folder)


@contextmanager
def copied(sound: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as root:
        yield Path(shutil.copytree(sound, Path(root) / "folder"))


def refused(folder: Path) -> str:
    """The message, of one line, that names a file; "" if it loads."""
    try:
        load_checkpoint(path_in(folder))
    except CheckpointError as error:
        message = str(error)
        assert str(folder) in message and message.isprintable() and len(message) < 700, message
        return message
    return ""


DAMAGE: st.SearchStrategy[Callable[[bytes, float], bytes]] = st.one_of(
    st.just(lambda data, at: data[: int(at * len(data))]),
    st.integers(1, 255).map(lambda bits: lambda data, at: with_bytes(data, at, [bits])),
    st.binary(min_size=4, max_size=8).map(lambda new: lambda data, at: with_bytes(data, at, new)),
    st.sampled_from(
        [b"", b"\0" * 4096, b"ID3\xff", b"{}", b"\x80", b"[" * 100_000, b"9" * 9000]
    ).map(lambda new: lambda *_: new),
)
# most of a file is tensors; its structure lies at its ends
PLACES = st.one_of(st.floats(0, 1), st.floats(0, 0.002), st.floats(0.998, 1))


def with_bytes(data: bytes, at: float, new: Any) -> bytes:
    """Data with others from a place on."""
    start = int(at * (len(data) - 1))
    return (data[:start] + bytes(new) + data[start + len(new) :])[: len(data)]


@examples(80)
@given(st.sampled_from(KINDS), st.integers(0, 9), DAMAGE, PLACES)
def test_any_byte(
    sound: Path, kind: str, number: int, damage: Callable[[bytes, float], bytes], at: float
) -> None:
    with copied(sound / kind) as folder:
        files = sorted(folder.iterdir())
        path = files[number % len(files)]
        before = path.read_bytes()
        path.write_bytes(damage(before, at))
        same_length = len(path.read_bytes()) == len(before)
        assert refused(folder) or same_length or path.suffix == ".json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
SIZES = [key for key, value in hf_config(DIMS).items() if isinstance(value, int)]
OPENAIS = [key for key in asdict(DIMS) if key != "n_text_state"]  # config.json has one width


@examples(60)
@given(st.sampled_from(list(zip(SIZES, OPENAIS, strict=True))), JSON, st.booleans())
def test_any_size(sound: Path, keys: tuple[str, str], value: Any, in_json: bool) -> None:
    with copied(sound / ("whole" if in_json else "openai")) as folder:
        if in_json:
            (folder / CONFIG).write_text(json.dumps(hf_config(DIMS) | {keys[0]: value}))
        else:
            dims = asdict(DIMS) | {keys[1]: value}
            torch.save({"dims": dims, "model_state_dict": STATE}, folder / OPENAI)
        same = value == hf_config(DIMS)[keys[0]] and not isinstance(value, bool)
        heads = keys[0].endswith("heads") and value in (1, 2, 4, 8)
        assert (not refused(folder)) is same or heads


@examples(40)
@given(st.one_of(JSON, st.dictionaries(st.sampled_from([*STATE, "x"]), JSON | st.just(FIRST))))
def test_any_index(sound: Path, files: Any) -> None:
    with copied(sound / "shards") as folder:
        (folder / INDEX).write_text(json.dumps({"weight_map": files}))
        assert refused(folder)


@pytest.mark.slow
@examples(40)
@given(st.integers(1, 11), st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 3000)))
def test_any_number_of_ggmls_header(sound: Path, place: int, value: int) -> None:
    with copied(sound / "ggml") as folder:
        data = bytearray((folder / GGML).read_bytes())
        data[4 * place : 4 * place + 4] = struct.pack("<i", value)
        (folder / GGML).write_bytes(data)
        assert refused(folder) or value in (0, 1, 2, 4, 8, *struct.unpack_from("<12i", data))


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda t: None,
    "longer": lambda t: torch.cat([t, t[:1]]),
    "another rank": lambda t: t[..., None].clone(),
    "NaN": lambda t: t.index_fill(0, torch.tensor([len(t) - 1]), torch.nan),
    "infinity": lambda t: t.index_fill(0, torch.tensor([0]), -torch.inf),
    # in OpenAI's files only
    "int8": lambda t: t.to(torch.int8),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
    "text": lambda t: "text",
}


@examples(60)
@given(st.sampled_from(KINDS), st.sampled_from(list(STATE)), st.sampled_from(list(TENSORS)))
def test_any_tensor(sound: Path, kind: str, name: str, change: str) -> None:
    """The message names it; CTranslate2's names are others."""
    if kind not in ("openai", "openai-old") and change in list(TENSORS)[5:]:
        change = "NaN"
    found = TENSORS[change](STATE[name])
    state = {n: t for n, t in (STATE | {name: found}).items() if t is not None}
    with tempfile.TemporaryDirectory() as root:
        folder, said = Path(root), name
        if kind.startswith("openai"):
            c.save_openai(folder / OPENAI, DIMS, state)
        elif kind == "ggml":
            (folder / GGML).write_bytes(ggml_bytes(DIMS, state, file_type=0))
        elif kind == "ct2":
            variables = ct2_variables(DIMS, STATE)
            names = [n for n, t in variables.items() if t.is_floating_point() and t.ndim]
            said = names[list(STATE).index(name) % len(names)]
            other = TENSORS[change](variables.pop(said))
            save_ct2(folder, variables | ({} if other is None else {said: other}), [])
            shutil.copy(sound / "ct2" / "vocabulary.json", folder)
            said = str(folder)
        else:
            c.save_hf(folder, DIMS, state, 1 + (kind == "shards"), kind == "pickle")
        message = refused(folder)
        assert said in message or said.split(".", 1)[1] in message


def test_links_inside_a_folder_are_followed(folder: Path, tmp_path: Path, state: State) -> None:
    shutil.move(folder / WEIGHTS, folder / "blob")
    (folder / WEIGHTS).symlink_to("blob")
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        assert_equal(load_checkpoint(path).state, state)
    assert CONFIG in refusal(folder / WEIGHTS), "the folder is asked for"


@pytest.mark.parametrize("denied", ["is_file", "open"])
def test_what_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch, denied: str) -> None:
    """The folder, or the weights, of which safetensors says that they do not exist."""
    call, denial = getattr(Path, denied), PermissionError(13, "Permission denied")

    def denying(path: Path, *args: Any, **how: Any) -> Any:
        if denied == "is_file" or path.name == WEIGHTS:
            raise denial
        return call(path, *args, **how)

    monkeypatch.setattr(Path, denied, denying)
    monkeypatch.setattr("safetensors.torch.load_file", Mock(side_effect=FileNotFoundError(WEIGHTS)))
    message = refusal(folder)
    assert str(folder) in message and "ermission denied" in message


@examples(40)
@given(st.text(min_size=1) | st.sampled_from(["./no/such", "-a/b", "~no-such-user/x", "x" * 5000]))
def test_unknown_name_or_path(name: str) -> None:
    assert refusal(name, local_files_only=True)


# Adapters merged at load, against formulas number by number; damaged ones are one line each


QUERY, OURS = "model.decoder.layers.0.self_attn.q_proj", "decoder.blocks.0.attn.query"


def by_hand(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """The formula, one number at a time: weight [out, in], a [r, in], b [out, r], float64."""
    merged = np.array(weight.tolist())
    for i in range(len(merged)):
        for j in range(merged.shape[1]):
            merged[i, j] += scaling * sum(float(b[i, k]) * float(a[k, j]) for k in range(len(a)))
    return torch.from_numpy(merged)


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({}, 6 / 2),
        ({"lora_alpha": -1}, -1 / 2),
        ({"init_lora_weights": "gaussian", "target_modules": ".*(q|v)_proj"}, 3),
    ],
)
def test_formula(
    folder: Path, tmp_path: Path, state: State, settings: dict[str, Any], scaling: float
) -> None:
    factors = query_and_value_factors(DIMS)
    adapter = save_adapter(tmp_path / "a", factors, **settings)
    found = load_checkpoint(folder, adapter=adapter).state
    a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
    wanted = by_hand(state[f"{OURS}.weight"], a, b, scaling)
    assert found[f"{OURS}.weight"].dtype == torch.float32
    assert torch.equal(found[f"{OURS}.weight"], wanted.float())
    changed = {n for n in state if not torch.equal(found[n], state[n])}
    assert changed == {n for n in state if n.endswith(("attn.query.weight", "attn.value.weight"))}


def test_half_precision_is_kept_out_of_the_sum(tmp_path: Path, state: State) -> None:
    """A float16 model and a bfloat16 adapter: one rounding, to float32, and only where it is."""
    half = {name: tensor.half() for name, tensor in state.items()}
    path = save_openai(tmp_path / "m.pt", DIMS, half)
    factors = {n: t.bfloat16() for n, t in query_and_value_factors(DIMS).items()}
    found = load_checkpoint(path, adapter=save_adapter(tmp_path / "a", factors)).state
    a, b = factors[f"{QUERY}.lora_A.weight"], factors[f"{QUERY}.lora_B.weight"]
    assert torch.equal(found[f"{OURS}.weight"], by_hand(half[f"{OURS}.weight"], a, b, 3).float())
    assert found[f"{OURS}.bias"].dtype == found[EMBEDDING].dtype == torch.float16


def test_the_library_and_the_commands(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "a", query_and_value_factors(DIMS))
    wanted = load_checkpoint(folder, adapter=adapter).state
    arguments = argparse.Namespace(model=str(folder), model_dir=None, adapter=str(adapter))
    given = load_weights(arguments).state
    assert all(torch.equal(given[name], wanted[name]) for name in wanted)
    tokens, features = torch.tensor([[50_258, 3]]), torch.randn(1, 1500, 8)
    plain, adapted = (load_model(folder, "cpu", adapter=which) for which in (None, adapter))
    assert not torch.allclose(plain.logits(tokens, features), adapted.logits(tokens, features))


def test_identity(tmp_path: Path) -> None:
    """What a journal records: content, not the path; nothing without an adapter."""
    first, second = (
        str(save_adapter(tmp_path / name, query_and_value_factors(DIMS, seed=seed)))
        for seed, name in enumerate(("one", "two"))
    )
    assert identify_adapter(None) == identify_adapter("") == {}
    both = [*identify_adapter(first)["adapters"], *identify_adapter(second)["adapters"]]
    assert [entry.split()[0] for entry in both] == ["one", "two"]
    assert identify_adapter("me/whisper-lora") == {"adapters": ["me/whisper-lora"]}
    moved = save_adapter(tmp_path / "elsewhere" / "one", query_and_value_factors(DIMS))
    assert identify_adapter(str(moved))["adapters"] == both[:1]
    save_adapter(moved, query_and_value_factors(DIMS), lora_alpha=7)
    assert identify_adapter(str(moved))["adapters"] != both[:1]


ADAPTER, ADAPTER_PICKLE, ADAPTER_CONFIG = (
    "adapter_model.safetensors",
    "adapter_model.bin",
    "adapter_config.json",
)
A, B = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"


def adapter(*removed: str, add: Any = None, **settings: Any) -> d.Damage:
    """The adapter with some tensors less, some more, and other settings."""
    kept = {n: t for n, t in query_and_value_factors(DIMS).items() if n not in removed}
    return lambda folder: save_adapter(folder, kept | (add or {}), **settings)


def of_another(**dims: int) -> d.Damage:
    return lambda folder: save_adapter(folder, query_and_value_factors(replace(DIMS, **dims)))


def pair(module: str, out: int = 8, into: int = 8) -> dict[str, torch.Tensor]:
    """Factors of rank 2 for a module of this name and size."""
    a, b = torch.ones(2, into), torch.ones(out, 2)
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}


CONV = {
    "model.encoder.conv2.lora_A.weight": torch.ones(2, 8, 3),
    "model.encoder.conv2.lora_B.weight": torch.ones(8, 2, 1),
}

ADAPTER_CASES: list[d.Case] = [
    ("adapter", damage, said)
    for damage, *said in (
        (d.link_out(ADAPTER), ADAPTER, "outside its folder"),
        (d.remove(ADAPTER), ADAPTER, ADAPTER_PICKLE, "again"),
        (d.remove(ADAPTER_CONFIG), ADAPTER_CONFIG, "again"),
        (d.cut(ADAPTER, -100), ADAPTER, "again"),
        # settings
        (adapter(peft_type="IA3"), "IA3", "PEFT"),
        (adapter(use_qalora=True), "use_qalora", "PEFT"),
        (adapter(init_lora_weights="pissa_niter_4"), "pissa", "PEFT"),
        (adapter(rank_pattern={"(a+)+": 2}), "rank_pattern", "PEFT"),
        (adapter(r=0), ADAPTER_CONFIG, "r is 0"),
        (adapter(r=10**400, lora_alpha=1.5), ADAPTER_CONFIG, "r is 1"),
        (adapter(r=4), ADAPTER, "rank 2", "4"),
        (adapter(lora_alpha=10**400), "lora_alpha", "again"),
        # tensors
        (d.tensors(lambda _: {}, ADAPTER), ADAPTER, "no tensors"),
        (d.tensors(lambda t: {n.removeprefix(PREFIX): x for n, x in t.items()}, ADAPTER), "PEFT"),
        (adapter(add={B: d.NAN[:, None].expand(8, 2).clone()}), B, "NaN"),
        (adapter(add={A: torch.full((2, 8), 3e38), B: torch.full((8, 2), 3e38)}), "infinity"),
        (adapter(B), QUERY, "lora_B.weight"),
        (adapter(add=pair(QUERY.removeprefix("model."))), "q_proj", "second"),
        (adapter(add={"proj_out.weight": torch.ones(9, 8)}), "proj_out", "PEFT"),
        (adapter(add=pair("model.decoder.embed_tokens", 51_865)), "embed_tokens", "PEFT"),
        (adapter(add=CONV), "conv2", "PEFT"),
        # another model's
        (of_another(n_text_layer=2), "layers.1", "another model"),
        (of_another(n_text_state=16), "[16, 16]", "[8, 8]", "another"),
    )
]
ADAPTER_CASES.append(
    ("adapter-pickle", d.pickled(ADAPTER_PICKLE, d.CODE), (ADAPTER_PICKLE, "run code"))
)


@pytest.mark.parametrize("case", [*CASES, *ADAPTER_CASES], ids=lambda case: str(case[2]))
def test_danger(sound: Path, tmp_path: Path, case: d.Case) -> None:
    """One line with all that is expected of it, without control characters."""
    name, damage, expected = case
    folder = shutil.copytree(sound / name, tmp_path / "folder")
    damage(folder)
    if name.startswith("adapter"):
        message = refusal(sound / "whole", adapter=folder)
    else:
        message = refusal(path_in(folder))
    assert all(part in message for part in (str(folder), *expected)), message
    assert message.isprintable() and not d.RAN


def test_adapters_that_are_none(sound: Path, tmp_path: Path) -> None:
    for adapter, expected in (
        (sound / "whole", "complete model"),
        (sound / "openai" / "model.pt", "folder"),
        (tmp_path / "nothing", "no such folder"),
        ("", "no such folder"),
        ([sound / "adapter"] * 2, "PEFT"),
    ):
        message = refusal(sound / "whole", adapter=adapter)
        assert str(adapter) in message and expected in message
