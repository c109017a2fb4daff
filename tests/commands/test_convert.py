"""`slimwhisper convert`: both ways and back, refusals, and nothing lost."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper
from safetensors.torch import load_file, save_file

from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.commands.conversion import convert as command
from slimwhisper.commands.conversion import hf_folder
from slimwhisper.commands.conversion.convert import convert
from slimwhisper.commands.conversion.hf_folder import hugging_face_name
from slimwhisper.commands.conversion.tokenizer_files import merge_of, tokenizer_files
from slimwhisper.errors import CheckpointError, OptionError, OutputError, SlimWhisperError
from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import (
    DIMS,
    assert_equal,
    hf_name,
    random_state,
    save_hf,
    save_openai,
    tiny_dims,
)
from tests.support.command import Run
from tests.support.foreign import ggml_bytes

STATE = random_state(DIMS, seed=5)
ENGLISH = tiny_dims(width=8, multilingual=False, audio_layers=1, text_layers=1)
LARGE = tiny_dims(width=8, n_mels=128, audio_layers=1, text_layers=1)
FILES = {
    *("config.json", "generation_config.json", "preprocessor_config.json", "model.safetensors"),
    *("vocab.json", "merges.txt", "added_tokens.json", "normalizer.json"),
    *("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json"),
}


@pytest.fixture(scope="module", autouse=True)
def tables_made_once() -> Iterator[None]:
    """The tokenizer's files, a second's work, once for each vocabulary."""
    made: dict[int, dict[str, str]] = {}

    def once(tokenizer: Any, n_text_ctx: int) -> dict[str, str]:
        size = tokenizer.encoding.n_vocab
        if size not in made:
            made[size] = tokenizer_files(tokenizer, n_text_ctx)
        return made[size]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_folder, "tokenizer_files", once)
        yield


@pytest.fixture(scope="module")
def openai_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_openai(tmp_path_factory.mktemp("openai") / "tiny.pt", DIMS, STATE)


@pytest.fixture(scope="module")
def folder(openai_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint as a folder."""
    return convert(str(openai_file), tmp_path_factory.mktemp("converted") / "tiny").path


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def refused(kind: type[SlimWhisperError], *arguments: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        convert(*map(str, arguments), **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    return message


def test_a_folder_has_what_transformers_reads(folder: Path) -> None:
    assert {file.name for file in folder.iterdir()} == FILES
    config, generation = read(folder / "config.json"), read(folder / "generation_config.json")
    assert (config["vocab_size"], config["d_model"]) == (51_865, 8)
    assert config["torch_dtype"] == "float32" and config["tie_word_embeddings"] is True
    # of openai/whisper-small's file on the hub, read there
    assert generation["begin_suppress_tokens"] == [220, 50257]
    assert generation["suppress_tokens"][:5] == [1, 2, 7, 8, 9]
    assert generation["suppress_tokens"][-6:] == [50258, 50358, 50359, 50360, 50361, 50362]
    assert len(generation["suppress_tokens"]) == 88
    assert generation["task_to_id"] == {"transcribe": 50359, "translate": 50358}
    assert generation["no_timestamps_token_id"] == 50363
    assert generation["max_initial_timestamp_index"] == 50
    assert generation["max_length"] == 448
    assert generation["lang_to_id"]["<|en|>"] == 50259 and len(generation["lang_to_id"]) == 99
    assert "alignment_heads" not in generation  # unknown for weights without a name
    features = read(folder / "preprocessor_config.json")
    assert (features["feature_size"], features["n_samples"]) == (80, 480_000)
    assert (features["chunk_length"], features["nb_max_frames"]) == (30, 3000)


@pytest.mark.parametrize("dims", [ENGLISH, DIMS, LARGE], ids=["51864", "51865", "51866"])
def test_round_trip(tmp_path: Path, dims: Any) -> None:
    state = random_state(dims, seed=6)
    source = save_openai(tmp_path / "in.pt", dims, state)
    there = convert(str(source), tmp_path / "folder")
    assert_equal({n: t for n, t in load_checkpoint(there.path).state.items()}, state)
    back = convert(str(there.path), tmp_path / "back.pt")
    assert back.left_behind == ()
    found = torch.load(back.path, weights_only=True)
    assert found["dims"] == torch.load(source, weights_only=True)["dims"]
    assert_equal(found["model_state_dict"], state)
    theirs = whisper.load_model(str(back.path), device="cpu").state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in state.items())


def test_tokenizer_of_three_vocabularies(tmp_path: Path, folder: Path) -> None:
    """Every token's text, and its id where a file names it, are openai-whisper's."""
    for dims, place in ((DIMS, folder), (LARGE, tmp_path / "large"), (ENGLISH, tmp_path / "en")):
        if place != folder:
            source = save_openai(tmp_path / "in.pt", dims, random_state(dims, seed=0))
            convert(str(source), place)
        multilingual = dims is not ENGLISH
        tokenizer = whisper.tokenizer.get_tokenizer(
            multilingual, num_languages=100 if dims is LARGE else 99
        )
        vocabulary, added = read(place / "vocab.json"), read(place / "added_tokens.json")
        assert sorted([*vocabulary.values(), *added.values()]) == list(range(dims.n_vocab))
        special = dict(tokenizer.special_tokens)
        assert vocabulary.pop("<|endoftext|>") == special.pop("<|endoftext|>")
        assert added == special
        letters = {v: k for k, v in _bytes_of_letters().items()}
        for i in range(0, tokenizer.eot, 7):
            text = tokenizer.encoding.decode_single_token_bytes(i)
            assert vocabulary["".join(letters[byte] for byte in text)] == i
        fast = read(place / "tokenizer.json")
        assert fast["model"]["vocab"] == read(place / "vocab.json")
        assert {t["content"]: t["id"] for t in fast["added_tokens"]} == {
            **special,
            "<|endoftext|>": tokenizer.eot,
        }
        timestamps = [t["content"] for t in fast["added_tokens"] if not t["special"]]
        assert timestamps == [f"<|{i * 0.02:.2f}|>" for i in range(1501)]


def _bytes_of_letters() -> dict[str, int]:
    """GPT-2's letters of the 256 bytes, by the rule of its own encoder."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(others)}


def test_merges_encode_as_tiktoken_does(folder: Path) -> None:
    """A plain loop over merges.txt, on words of several scripts."""
    tokenizer = whisper.tokenizer.get_tokenizer(True, num_languages=99)
    letters = {byte: letter for letter, byte in _bytes_of_letters().items()}
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    assert lines[0].startswith("#version") and lines[-1] == ""
    order = {tuple(line.split(" ")): i for i, line in enumerate(lines[1:-1])}
    vocabulary = read(folder / "vocab.json")
    for word in (
        " transcription",
        " Grüße",
        "こんにちは世界",
        " Привет",
        "مرحبا",
        " สวัสดี",
        "🎉👩‍👧",
    ):
        parts = [letters[byte] for byte in word.encode()]
        while True:
            pairs = [(order.get(p, len(order)), i) for i, p in enumerate(pairwise(parts))]
            rank, i = min(pairs, default=(len(order), 0))
            if rank == len(order):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        assert [vocabulary[part] for part in parts] == tokenizer.encoding._encode_single_piece(word)


def test_merge_of() -> None:
    ranks = {token: i for i, token in enumerate((b"a", b"b", b"c", b"bc", b"ab", b"abc"))}
    assert merge_of(b"abc", ranks) == (b"a", b"bc")  # "bc" is merged before "ab"
    assert merge_of(b"ab", ranks) == (b"a", b"b")
    assert merge_of(b"a", ranks) is None
    assert merge_of(b"abc", {b"abc": 0, b"ab": 1}) is None


def test_names_are_both_tables(folder: Path) -> None:
    assert {name: hugging_face_name(name) for name in STATE} == {n: hf_name(n) for n in STATE}
    assert set(load_file(folder / "model.safetensors")) == {hf_name(name) for name in STATE}


def test_shards(openai_file: Path, tmp_path: Path) -> None:
    made = convert(str(openai_file), tmp_path / "m", shard_bytes=1_000_000).path
    index = read(made / "model.safetensors.index.json")
    assert len(set(index["weight_map"].values())) == 2
    assert_equal(load_checkpoint(made).state, STATE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype(openai_file: Path, tmp_path: Path, dtype: str) -> None:
    made = convert(str(openai_file), tmp_path / "m", dtype=dtype).path
    kind = getattr(torch, dtype)
    expected = {name: tensor.to(kind) for name, tensor in STATE.items()}
    assert_equal(load_checkpoint(made).state, expected, kind)
    assert read(made / "config.json")["torch_dtype"] == dtype


def test_dtypes_are_kept_and_overflow_is_refused(tmp_path: Path) -> None:
    mixed = {n: t.half() if t.dim() == 2 else t for n, t in STATE.items()}
    mixed["decoder.ln.bias"] = torch.full((8,), 1e6)
    source = save_openai(tmp_path / "in.pt", DIMS, mixed)
    made = convert(str(source), tmp_path / "m").path
    found = load_checkpoint(made).state
    assert all(found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in mixed.items())
    assert read(made / "config.json")["torch_dtype"] == "float32"
    message = refused(CheckpointError, source, tmp_path / "half.pt", dtype="float16")
    assert "decoder.ln.bias has numbers beyond float16" in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.pt", "m"]


def test_biases_of_keys_are_left_out(tmp_path: Path) -> None:
    """Neither openai-whisper nor transformers has them, and they change nothing."""
    name = "decoder.blocks.0.attn.key.bias"
    source = save_openai(tmp_path / "in.pt", DIMS, {**STATE, name: torch.ones(8)})
    assert_equal(load_checkpoint(convert(str(source), tmp_path / "out.pt").path).state, STATE)


def test_a_view_of_a_large_tensor_is_not_saved_whole(tmp_path: Path) -> None:
    big = torch.zeros(3_000_000)
    state = {**STATE, "decoder.ln.bias": big[:8]}
    source = save_openai(tmp_path / "in.pt", DIMS, state)
    made = convert(str(source), tmp_path / "out.pt").path
    assert made.stat().st_size < source.stat().st_size - 10_000_000


def test_ggml_and_names_are_inputs_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ggml.bin"
    path.write_bytes(ggml_bytes(DIMS, STATE, file_type=0))
    assert_equal(load_checkpoint(convert(str(path), tmp_path / "out.pt").path).state, STATE)
    run = Run(capsys, "convert", "digits", str(tmp_path / "digits.pt"), "--dtype", "bfloat16")
    assert run.status == 0
    assert "digits.pt: 167 tensors, bfloat16, 17.7 MB; read back and equal" in run.out


def test_quantised_weights_are_refused_by_name(tmp_path: Path) -> None:
    data = bytearray(ggml_bytes(DIMS, STATE))
    data[44] = 8
    (tmp_path / "ggml-q5.bin").write_bytes(data)
    assert "q5_0" in refused(CheckpointError, tmp_path / "ggml-q5.bin", tmp_path / "out.pt")


def test_an_existing_output_is_kept(
    openai_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.pt"
    out.write_text("mine")
    run = Run(capsys, "convert", str(openai_file), str(out))
    assert run.status == 1 and run.err.count("\n") == 1
    assert "exists; give another place, or --overwrite" in run.err
    assert out.read_text() == "mine"
    assert Run(capsys, "convert", str(openai_file), str(out), "--overwrite").status == 0
    assert_equal(load_checkpoint(out).state, STATE)


def test_a_folder_is_overwritten_only_if_it_is_a_models(openai_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    out.mkdir()
    convert(str(openai_file), out)  # an empty folder is free
    inode = out.stat().st_ino
    assert "exists" in refused(OutputError, openai_file, out)
    (out / "NOTES.md").write_text("mine")
    assert "also holds NOTES.md" in refused(OutputError, openai_file, out, overwrite=True)
    (out / "NOTES.md").rename(tmp_path / "NOTES.md")
    convert(str(openai_file), out, overwrite=True)
    assert out.stat().st_ino != inode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["NOTES.md", "m"]


def test_outputs_that_are_something_else(openai_file: Path, tmp_path: Path) -> None:
    (tmp_path / "dir.pt").mkdir()
    assert "is no file" in refused(OutputError, openai_file, tmp_path / "dir.pt", overwrite=True)
    (tmp_path / "file").write_text("")
    assert "is no folder" in refused(OutputError, openai_file, tmp_path / "file", overwrite=True)
    (tmp_path / "link.pt").symlink_to(tmp_path / "file")
    assert "is a link" in refused(OutputError, openai_file, tmp_path / "link.pt", overwrite=True)
    assert "NAME.pt or a folder" in refused(OptionError, openai_file, tmp_path / "x.safetensors")
    assert "is the model itself" in refused(OptionError, openai_file, openai_file, overwrite=True)
    message = refused(OutputError, openai_file, tmp_path / "file" / "x.pt")
    assert "x.pt: cannot be written: Not a directory" in message or "exists" in message


def test_failures_leave_nothing(
    openai_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, weights that do not read back, and a rename that fails."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        message = refused(OutputError, openai_file, tmp_path / "out.pt")
        assert "No space left on device; free the space" in message
    with monkeypatch.context() as patch:
        patch.setattr(command, "_equal", lambda a, b: False)
        message = refused(OutputError, openai_file, tmp_path / "out.pt")
        assert "does not read back" in message
    assert list(tmp_path.iterdir()) == []

    old = convert(str(openai_file), tmp_path / "m").path
    before = {p.name: p.read_bytes() for p in old.iterdir()}
    rename = Path.replace

    def fails_once(self: Path, target: Path) -> Path:
        if Path(target) == old and self.name != "old":
            raise OSError(5, os.strerror(5))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails_once)
        message = refused(OutputError, openai_file, old, overwrite=True)
        assert "Input/output error" in message
    assert {p.name: p.read_bytes() for p in old.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def edit(source: Path, target: Path, file: str, **changes: Any) -> Path:
    """A copy of a folder whose JSON file has these keys changed."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    (target / file).write_text(json.dumps(read(source / file) | changes), encoding="utf-8")
    return target


def test_settings_that_stay_behind_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = edit(
        *(folder, tmp_path / "m", "generation_config.json"),
        language="<|de|>",
        alignment_heads=[[0, 0]],
        suppress_tokens=[1],
        forced_decoder_ids=[[1, None], [2, 50359]],  # as in old files, and the default
        begin_suppress_tokens=[50257, 220],
    )
    run = Run(capsys, "convert", str(other), str(tmp_path / "out.pt"))
    assert run.status == 0
    assert run.err.count("\n") == 1
    assert "no place for alignment_heads, language, suppress_tokens; they stay behind" in run.err


def test_alignment_heads_go_along(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """OpenAI's names have known heads; a folder holds them."""
    known = replace(load_checkpoint(folder), alignment_heads={0: [0]})

    def load(name: Any, **_: Any) -> Checkpoint:
        return known if name == "tiny" else load_checkpoint(name)

    monkeypatch.setattr(command, "load_checkpoint", load)
    made = convert("tiny", tmp_path / "out").path
    assert read(made / "generation_config.json")["alignment_heads"] == [[0, 0]]


def test_a_tokenizer_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    fast = read(folder / "tokenizer.json")
    swapped = fast["model"]["vocab"] | {"a": fast["model"]["vocab"]["b"], "b": 64}
    changes = {"model": fast["model"] | {"vocab": swapped}}
    other = edit(folder, tmp_path / "m", "tokenizer.json", **changes)
    message = refused(CheckpointError, other, tmp_path / "out.pt")
    assert "its tokenizer is not OpenAI's" in message and str(other) in message
    (other / "tokenizer.json").unlink()  # the older files are OpenAI's
    convert(str(other), tmp_path / "out.pt")
    (other / "vocab.json").write_text(json.dumps({"a": 0}))
    assert "not OpenAI's" in refused(CheckpointError, other, tmp_path / "out2.pt")
    (other / "tokenizer.json").write_text("{")
    assert "cannot be read as JSON" in refused(CheckpointError, other, tmp_path / "out2.pt")
    (other / "tokenizer.json").write_text("{}")
    assert "its tokenizer cannot be read" in refused(CheckpointError, other, tmp_path / "out2.pt")


def test_a_folder_without_tokenizer_converts(tmp_path: Path) -> None:
    source = save_hf(tmp_path / "m", DIMS, STATE)
    assert_equal(load_checkpoint(convert(str(source), tmp_path / "out.pt").path).state, STATE)


def test_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    """A folder has room for it, a .pt file has not."""
    head = torch.ones(DIMS.n_vocab, 8)
    source = save_hf(tmp_path / "m", DIMS, STATE)
    weights = load_file(source / "model.safetensors") | {"proj_out.weight": head}
    save_file(weights, source / "model.safetensors")
    message = refused(CheckpointError, source, tmp_path / "out.pt")
    assert "proj_out.weight, is not the token embedding" in message
    made = convert(str(source), tmp_path / "half", dtype="float16").path
    assert read(made / "config.json")["tie_word_embeddings"] is False
    assert torch.equal(load_file(made / "model.safetensors")["proj_out.weight"], head.half())


def test_folder_to_folder_keeps_tokenizer_and_settings(folder: Path, tmp_path: Path) -> None:
    """With an adapter merged, and its dtype changed."""
    other = edit(folder, tmp_path / "m", "generation_config.json", language="<|de|>")
    lora = save_adapter(tmp_path / "lora", query_and_value_factors(DIMS))
    made = convert(str(other), tmp_path / "out", adapter=str(lora), dtype="bfloat16").path
    for name in FILES - {"config.json", "model.safetensors"}:
        assert (made / name).read_bytes() == (other / name).read_bytes()
    expected = load_checkpoint(other, adapter=str(lora)).state
    changed = "decoder.blocks.0.attn.query.weight"
    assert not torch.equal(expected[changed], STATE[changed])
    kind = torch.bfloat16
    assert_equal(load_checkpoint(made).state, {n: t.to(kind) for n, t in expected.items()}, kind)
    assert read(made / "config.json")["torch_dtype"] == "bfloat16"
