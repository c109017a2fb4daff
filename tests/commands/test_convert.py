"""`slimwhisper convert`: both ways and back, refusals, and nothing lost, at its place neither; and
what `transformers` makes of it, which tests skip without.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import whisper
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from whisper.decoding import DecodingTask

import slimwhisper
from slimwhisper.commands import convert as command
from slimwhisper.commands.convert import convert, tokenizer_files
from slimwhisper.errors import CheckpointError, OptionError, OutputError, SlimWhisperError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.types import Dims
from tests.support import checkpoints as c
from tests.support.adapters import query_and_value_factors, save_adapter
from tests.support.checkpoints import DIMS, assert_equal, random_state, save_hf, save_openai
from tests.support.command import RunCLI
from tests.support.foreign import tokenizer_of
from tests.support.oracle import transformers
from tests.support.paths import SAMPLES

ENGLISH = c.tiny_dims(width=8, multilingual=False, audio_layers=1, text_layers=1)
LARGE = c.tiny_dims(width=8, n_mels=128, audio_layers=1, text_layers=1)
FILES = {
    *("config.json", "generation_config.json", "preprocessor_config.json", "model.safetensors"),
    *("vocab.json", "merges.txt", "added_tokens.json", "normalizer.json"),
    *("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json"),
}
STATE = random_state(DIMS, seed=5)


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def refused(kind: type[SlimWhisperError], *arguments: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        convert(*map(str, arguments), **options)
    return str(caught.value)


@pytest.fixture(scope="module", autouse=True)
def tables_made_once() -> Iterator[None]:
    """The tokenizer's files, a second's work, once for each vocabulary."""
    with patch.object(command, "tokenizer_files", cache(tokenizer_files)):
        yield


@pytest.fixture(scope="module")
def openai_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_openai(tmp_path_factory.mktemp("openai") / "tiny.pt", DIMS, STATE)


@pytest.fixture(scope="module")
def folder(openai_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`openai_file` as a Hugging Face folder."""
    return convert(str(openai_file), tmp_path_factory.mktemp("converted") / "tiny").path


def test_a_folder_has_what_transformers_reads(openai_file: Path, folder: Path) -> None:
    assert {file.name for file in folder.iterdir()} == FILES
    assert set(load_file(folder / "model.safetensors")) == {c.hf_name(name) for name in STATE}
    config, generation = read(folder / "config.json"), read(folder / "generation_config.json")
    assert (config["vocab_size"], config["d_model"]) == (51_865, 8)
    assert config["torch_dtype"] == "float32" and config["tie_word_embeddings"] is True
    assert generation["begin_suppress_tokens"] == [220, 50257]
    task = DecodingTask(
        whisper.load_model(str(openai_file)), whisper.DecodingOptions(language="en")
    )
    assert tuple(generation["suppress_tokens"]) == task._get_suppress_tokens()
    assert generation["task_to_id"] == {"transcribe": 50359, "translate": 50358}
    assert generation["lang_to_id"]["<|en|>"] == 50259 and len(generation["lang_to_id"]) == 99
    assert "alignment_heads" not in generation  # unknown for weights without a name
    features = read(folder / "preprocessor_config.json")
    assert (features["feature_size"], features["nb_max_frames"]) == (80, 3000)


def test_without_openai_whisper(openai_file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Its list of spellings, which only scores need, is left out."""
    monkeypatch.setattr(command, "files", Mock(side_effect=ModuleNotFoundError))
    monkeypatch.setattr(command, "tokenizer_files", tokenizer_files)
    monkeypatch.setattr(command, "merge_of", Mock(return_value=None))  # a second's work
    convert(str(openai_file), str(tmp_path / "model"))
    assert {p.name for p in (tmp_path / "model").iterdir()} == FILES - {"normalizer.json"}


@pytest.mark.parametrize(
    "dims", [pytest.param(ENGLISH, marks=pytest.mark.slow), LARGE], ids=["51864", "51866"]
)
def test_round_trip(tmp_path: Path, dims: Dims) -> None:
    """With OpenAI's tokenizer: special tokens and their ids, and words of several scripts, by
    `tokenizers` with the new file and with the two older ones.
    """
    state = random_state(dims, seed=6)
    source = save_openai(tmp_path / "in.pt", dims, state)
    there = convert(str(source), tmp_path / "folder")
    assert_equal(load_checkpoint(there.path).state, state)
    check_tokenizer(there.path, dims)
    back = convert(str(there.path), tmp_path / "back.pt")
    assert back.dropped == ()
    found = torch.load(back.path, weights_only=True)
    assert found["dims"] == torch.load(source, weights_only=True)["dims"]
    assert_equal(found["model_state_dict"], state)
    theirs = whisper.load_model(str(back.path), device="cpu").state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in state.items())


def check_tokenizer(made: Path, dims: Dims) -> None:
    theirs = tokenizer_of(dims)
    new = Tokenizer.from_file(str(made / "tokenizer.json"))
    old = ByteLevelBPETokenizer.from_file(str(made / "vocab.json"), str(made / "merges.txt"))
    for word in (" transcription", " Grüße", "こんにちは世界", " Привет", " สวัสดี", "🎉👩‍👧"):
        for ours in (new, old):
            assert ours.encode(word, add_special_tokens=False).ids == theirs.encode(word)
    assert new.get_vocab_size() == dims.n_vocab
    special = dict(theirs.special_tokens)
    assert {token: new.token_to_id(token) for token in special} == special
    assert read(made / "vocab.json")["<|endoftext|>"] == special.pop("<|endoftext|>")
    assert read(made / "added_tokens.json") == special
    added = read(made / "tokenizer.json")["added_tokens"]
    timestamps = [token["content"] for token in added if not token["special"]]
    assert timestamps == [f"<|{i * 0.02:.2f}|>" for i in range(1501)]


def test_shards(openai_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SHARD_BYTES", 1_000_000)
    made = convert(str(openai_file), tmp_path / "m").path
    index = read(made / "model.safetensors.index.json")
    assert len(set(index["weight_map"].values())) == 2
    assert_equal(load_checkpoint(made).state, STATE)


def test_what_tensors_are_written(tmp_path: Path) -> None:
    """In their own dtypes, or in one that holds their numbers; without biases of keys, which change
    nothing, and without the rest of what they are views of.
    """
    mixed = {n: t.half() if t.dim() == 2 else t for n, t in STATE.items()}
    mixed["decoder.ln.bias"] = torch.full((3_000_000,), 1e6)[:8]
    bias = {"decoder.blocks.0.attn.key.bias": torch.ones(8)}
    source = save_openai(tmp_path / "in.pt", DIMS, mixed | bias)
    made = convert(str(source), tmp_path / "m").path
    found = load_checkpoint(made).state
    assert found.keys() == mixed.keys()
    assert all(found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in mixed.items())
    assert read(made / "config.json")["torch_dtype"] == "float32"
    whole = convert(str(source), tmp_path / "out.pt").path
    assert whole.stat().st_size < source.stat().st_size - 10_000_000
    half = convert(str(source), tmp_path / "bf", dtype="bfloat16").path
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in mixed.items()}
    assert_equal(load_checkpoint(half).state, expected, torch.bfloat16)
    assert read(half / "config.json")["torch_dtype"] == "bfloat16"
    message = refused(CheckpointError, source, tmp_path / "half.pt", dtype="float16")
    assert "decoder.ln.bias has numbers beyond" in message
    assert not (tmp_path / "half.pt").exists()


def edit(source: Path, target: Path, file: str, **changes: Any) -> Path:
    """A copy of a folder whose JSON file has these keys changed."""
    shutil.copytree(source, target)
    (target / file).write_text(json.dumps(read(source / file) | changes), encoding="utf-8")
    return target


def test_settings_that_stay_behind_are_named(folder: Path, tmp_path: Path, run_cli: RunCLI) -> None:
    other = edit(
        *(folder, tmp_path / "m", "generation_config.json"),
        language="<|de|>",
        alignment_heads=[[0, 0]],
        suppress_tokens=[1],
        forced_decoder_ids=[[1, None], [2, 50359]],  # as in old files, and the default
        begin_suppress_tokens=[50257, 220],
    )
    run = run_cli("convert", str(other), str(tmp_path / "out.pt"))
    assert run.status == 0
    assert run.err.count("\n") == 1
    assert "openai-whisper does not read its alignment_heads, suppress_tokens, language" in run.err
    assert "call set_alignment_heads" in run.err
    whisper.load_model(str(tmp_path / "out.pt"), device="cpu")
    back = convert(str(tmp_path / "out.pt"), tmp_path / "back").path  # slimwhisper reads all
    for found in map(load_checkpoint, (other, tmp_path / "out.pt", back)):
        assert (found.alignment_heads, found.settings.language) == ({0: [0]}, "de")
        assert (found.tokens.suppressed, found.tokens.suppressed_first) == ((1,), None)
    content = torch.load(tmp_path / "out.pt", weights_only=True)
    for changed, words in (([], "is no dictionary"), ({"language": 5}, "language is 5")):
        torch.save(content | {"generation_config": changed}, tmp_path / "bad.pt")
        assert words in c.refusal(tmp_path / "bad.pt")


def test_alignment_heads_go_along(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """OpenAI's names have known heads; a folder holds them."""
    own = {"tiny": replace(load_checkpoint(folder), alignment_heads={0: [0]}, folder=None)}
    monkeypatch.setattr(command, "load_checkpoint", lambda n, **_: own.get(n) or load_checkpoint(n))
    made = convert("tiny", tmp_path / "out").path
    assert read(made / "generation_config.json")["alignment_heads"] == [[0, 0]]


def swapped_letters(folder: Path) -> dict[str, int]:
    """OpenAI's text tokens, but for two letters."""
    table = read(folder / "vocab.json")
    return table | {"a": table["b"], "b": table["a"]}


def test_a_tokenizer_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    fast, swapped = read(folder / "tokenizer.json"), swapped_letters(folder)
    changes = {"model": fast["model"] | {"vocab": swapped}}
    other = edit(folder, tmp_path / "m", "tokenizer.json", **changes)
    message = refused(CheckpointError, other, tmp_path / "out.pt")
    assert "its tokenizer is not OpenAI's" in message and str(other) in message
    (other / "tokenizer.json").unlink()  # the older files are OpenAI's
    convert(str(other), tmp_path / "out.pt")
    (other / "vocab.json").write_text(json.dumps(swapped))
    assert "not OpenAI's" in refused(CheckpointError, other, tmp_path / "out2.pt")


def test_a_folder_without_tokenizer_converts(folder: Path, tmp_path: Path) -> None:
    """A folder made of it gets OpenAI's; one with tokens of its own gets nothing of them."""
    source = save_hf(tmp_path / "m", DIMS, STATE)
    made = convert(str(source), tmp_path / "whole").path
    assert (made / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert not (made / "generation_config.json").exists()
    swapped = swapped_letters(folder)
    (source / "vocab.json").write_text(json.dumps(swapped))
    for name in ("merges.txt", "added_tokens.json", "special_tokens_map.json"):
        shutil.copy(folder / name, source)
    own = convert(str(source), tmp_path / "own").path
    assert read(own / "vocab.json") == swapped and not (own / "tokenizer.json").exists()
    (source / "vocab.json").unlink()
    assert_equal(load_checkpoint(convert(str(source), tmp_path / "out.pt").path).state, STATE)


def test_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    """A folder has room for it, a .pt file has not."""
    head = torch.ones(DIMS.n_vocab, 8)
    source = save_hf(tmp_path / "m", DIMS, STATE)
    weights = load_file(source / "model.safetensors") | {"proj_out.weight": head}
    save_file(weights, source / "model.safetensors")
    assert "proj_out.weight" in refused(CheckpointError, source, tmp_path / "out.pt")
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


def test_an_existing_output_is_kept(openai_file: Path, tmp_path: Path, run_cli: RunCLI) -> None:
    out = tmp_path / "out.pt"
    out.write_text("mine")
    run = run_cli("convert", str(openai_file), str(out))
    assert run.status == 1 and "--overwrite" in run.err
    assert out.read_text() == "mine"
    assert run_cli("convert", str(openai_file), str(out), "--overwrite").status == 0
    assert_equal(load_checkpoint(out).state, STATE)


def test_a_folder_is_overwritten_only_if_it_is_a_models(openai_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    out.mkdir()
    convert(str(openai_file), out)  # an empty folder is free
    inode = out.stat().st_ino
    assert "exists" in refused(OutputError, openai_file, out)
    (out / "NOTES.md").write_text("mine")
    assert "NOTES.md" in refused(OutputError, openai_file, out, overwrite=True)
    (out / "NOTES.md").rename(tmp_path / "NOTES.md")
    convert(str(openai_file), out, overwrite=True)
    assert out.stat().st_ino != inode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["NOTES.md", "m"]


def test_outputs_that_are_something_else(openai_file: Path, tmp_path: Path) -> None:
    (tmp_path / "dir.pt").mkdir()
    assert "is not a file" in refused(OutputError, openai_file, tmp_path / "dir.pt", overwrite=True)
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(OutputError, openai_file, tmp_path / "file", overwrite=True)
    (tmp_path / "link.pt").symlink_to(tmp_path / "file")
    assert "is a link" in refused(OutputError, openai_file, tmp_path / "link.pt", overwrite=True)
    for name in ("x.safetensors", "x.ggml"):
        assert "NAME.pt or a folder" in refused(OptionError, openai_file, tmp_path / name)
    assert "is the model itself" in refused(OptionError, openai_file, openai_file, overwrite=True)
    message = refused(OutputError, openai_file, tmp_path / "file" / "x.pt")
    assert "x.pt: cannot be written: Not a directory" in message or "exists" in message


def test_failures_leave_nothing(openai_file: Path, tmp_path: Path) -> None:
    """A full disk, weights that do not read back, and a rename that fails."""

    with patch.object(torch, "save", side_effect=OSError(28, "No space left on device")):
        assert "No space left" in refused(OutputError, openai_file, tmp_path / "out.pt")
    with patch("huggingface_hub.save_torch_state_dict", side_effect=SafetensorError):
        assert "cannot be written" in refused(OutputError, openai_file, tmp_path / "out")
    with patch.object(command, "_equal", return_value=False):
        assert "does not read back" in refused(OutputError, openai_file, tmp_path / "out.pt")
    assert list(tmp_path.iterdir()) == []

    old = convert(str(openai_file), tmp_path / "m").path
    before = {p.name: p.read_bytes() for p in old.iterdir()}
    rename = Path.replace

    def fails_once(self: Path, target: Path) -> Path:
        if Path(target) == old and self.name != "old":
            raise OSError(5, os.strerror(5))
        return rename(self, target)

    with patch.object(Path, "replace", fails_once):
        assert "Input/output" in refused(OutputError, openai_file, old, overwrite=True)
    assert {p.name: p.read_bytes() for p in old.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


# In `transformers`: the same tokens, texts and ids

TEXTS = (
    *("Hello, world! It's 3.14 o'clock...\n\n  don't   you think? ", "Grüße aus „München“"),
    *("こんにちは、世界。今日は良い天気ですね", "Привет, мир! Как дела?", "مرحبا بالعالم ١٢٣"),
    *("你好，世界！", "안녕하세요 세계", "สวัสดีชาวโลก", "नमस्ते दुनिया"),
    "🎉👩‍👩‍👧‍👦\tnaïve\u00a0café \x07",
)


def random_texts() -> list[str]:
    """Letters of many scripts, digits, marks and spaces."""
    rng = Random(0)
    blocks = ((32, 127), (160, 0x530), (0x5D0, 0x700), (0x900, 0xA00), (0x3040, 0x9FFF), (32, 33))
    return ["".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(40)) for _ in range(200)]


@pytest.mark.slow  # transformers takes 10 s to import
@pytest.mark.parametrize("dims", [ENGLISH, DIMS, LARGE], ids=lambda dims: str(dims.n_vocab))
def test_the_tokenizer_is_openais(tmp_path: Path, dims: Dims) -> None:
    """Every single token, texts of several languages, and random texts; special tokens by name."""
    library = transformers()
    source = save_openai(tmp_path / "in.pt", dims, random_state(dims, seed=1))
    made = convert(str(source), tmp_path / "m").path
    theirs, ours = library.WhisperProcessor.from_pretrained(made).tokenizer, tokenizer_of(dims)
    assert len(theirs) == dims.n_vocab
    for i in range(ours.eot):
        assert theirs.decode([i]) == ours.encoding.decode([i]), i
    for token, i in ours.special_tokens.items():
        assert theirs.convert_tokens_to_ids(token) == i
    for text in (*TEXTS, *random_texts()):
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids, text
        assert theirs.decode(ids) == text
    state = library.WhisperForConditionalGeneration.from_pretrained(made).state_dict()
    expected = random_state(dims, seed=1)["decoder.token_embedding.weight"]
    assert torch.equal(state["proj_out.weight"], expected)


@pytest.mark.slow
@pytest.mark.parametrize("timestamps", [True, False])
def test_digits_says_the_same_words(tmp_path: Path, timestamps: bool) -> None:
    """Greedy windows in float32, with the folder's own settings: the same tokens, and the text."""
    library = transformers()
    made = convert("digits", tmp_path / "digits").path
    theirs = library.WhisperForConditionalGeneration.from_pretrained(made, dtype=torch.float32)
    processor = library.WhisperProcessor.from_pretrained(made)
    ours = slimwhisper.load_model("digits", "cpu", dtype="float32")
    options = slimwhisper.DecodingOptions(
        language="en", temperature=0, without_timestamps=not timestamps
    )
    for name in ("phone-number.wav", "countdown.flac", "parcel.ogg"):
        audio = slimwhisper.pad_or_trim(slimwhisper.load_audio(str(SAMPLES / name)))
        made_of = processor(audio, sampling_rate=16_000, return_tensors="pt").input_features
        found = theirs.generate(made_of, return_timestamps=timestamps)[0].tolist()
        expected = slimwhisper.decode(ours, made_of[0], options)
        assert found == expected.tokens and len(found) > 8, name
        assert processor.decode(found, skip_special_tokens=True).strip() == expected.text
