"""Models of faster-whisper and whisper.cpp: read exactly, or refused by name in one line."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from slimwhisper.formats.load import load_checkpoint
from slimwhisper.tokens.vocabulary import get_vocabulary, is_openai_table
from slimwhisper.types import Dims
from tests.support import damage as d
from tests.support import foreign, oracle
from tests.support.checkpoints import assert_equal, fill_cache, random_state, refusal, tiny_dims
from tests.support.foreign import ct2_variables, ggml_bytes, ggml_tensor, save_ct2, tokens_of
from tests.support.hf_folders import dims_of, trained_table, weights_of

DIMS = tiny_dims(width=8, heads=2, audio_layers=2, text_layers=3)
STATE = random_state(DIMS, seed=3)
ENGLISH = tiny_dims(width=8, multilingual=False, text_layers=1)
LARGE = tiny_dims(width=8, n_mels=128, text_layers=1)


@pytest.fixture(scope="module")
def tokens() -> list[str]:
    return named(nospeech="<|nocaptions|>")(tokens_of(DIMS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ctranslate2_is_read_exactly(tmp_path: Path, tokens: list[str], dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in STATE.items()}
    found = load_checkpoint(save_ct2(tmp_path / "m", ct2_variables(DIMS, state), tokens))
    assert found.dims == DIMS
    assert found.alignment_heads == {0: [0]}
    assert_equal(found.state, state, dtype)


def test_ctranslate2_with_aliases_and_an_old_vocabulary(tmp_path: Path, tokens: list[str]) -> None:
    """Equal tensors are stored once; older folders list their tokens as lines."""
    variables = ct2_variables(DIMS, STATE)
    first, second = (f"encoder/layer_{i}/self_attention/layer_norm/gamma" for i in range(2))
    aliases = {second: first}
    del variables[second]
    folder = save_ct2(tmp_path / "m", variables, tokens, aliases, version=5)
    (folder / "vocabulary.json").unlink()
    (folder / "vocabulary.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    equal = STATE["encoder.blocks.0.attn_ln.weight"]
    expected = STATE | {"encoder.blocks.1.attn_ln.weight": equal}
    assert_equal(load_checkpoint(folder).state, expected)


@pytest.mark.parametrize(
    ("dims", "dtype"), [(DIMS, torch.float32), (ENGLISH, torch.float16), (LARGE, torch.bfloat16)]
)
def test_ggml_is_read_exactly(tmp_path: Path, dims: Dims, dtype: torch.dtype) -> None:
    """Matrices in any dtype, the rest in float32, as whisper.cpp's script writes them."""
    state = {
        name: tensor.to(dtype) if tensor.dim() > 1 and "positional" not in name else tensor
        for name, tensor in random_state(dims, seed=4).items()
    }
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(ggml_bytes(dims, state, file_type=2001))
    found = load_checkpoint(path)
    assert found.dims == dims
    assert {name: t.dtype for name, t in found.state.items()} == {
        name: t.dtype for name, t in state.items()
    }
    assert all(torch.equal(found.state[name], tensor) for name, tensor in state.items())


HEADER, FILTERS = 44, 56  # where the type of the weights stands, and the mel filters


def number(offset: int, value: int) -> Callable[[bytes], bytes]:
    """The int32 at an offset replaced."""
    return lambda data: data[:offset] + struct.pack("<i", value) + data[offset + 4 :]


def more(content: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data + content


GGML_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "quantised weights, q8_0": number(HEADER, 2007),
    "quantised weights, type 99": number(HEADER, 99),
    "not of a Whisper model": lambda data: number(40, 8)(number(HEADER, 3)(data)),
    "q5_0": more(ggml_tensor("x", torch.zeros(32), kind=6)),
    "mel filters": number(FILTERS, 0x41000000),
    "twice": more(ggml_tensor("decoder.ln.bias", torch.zeros(8))),
    "unknown tensor x": more(ggml_tensor("x", torch.zeros(8))),
    "9 dimensions": more(struct.pack("<3i", 9, 1, 0)),
    "the table of filters has shape [-1, -1]": lambda data: number(48, -1)(number(52, -1)(data)),
    "x has shape [0]": more(struct.pack("<4i", 1, 1, 0, 0) + b"x"),
    "GGUF": lambda d: b"GGUF" + d[4:],
    "not OpenAI's": lambda _: ggml_bytes(DIMS, STATE, tokens=1000),
}


@pytest.mark.parametrize("words", GGML_DAMAGE)
def test_ggml_that_cannot_be_read(tmp_path: Path, words: str) -> None:
    path = tmp_path / "ggml.bin"
    path.write_bytes(GGML_DAMAGE[words](ggml_bytes(DIMS, STATE, file_type=0)))
    message = refusal(path)
    assert words in message and str(path) in message, message


def ct2(**changes: Any) -> d.Damage:
    """Other arguments of `save_ct2`."""
    usual = {"variables": ct2_variables(DIMS, STATE), "tokens": []}
    return lambda folder: save_ct2(folder, **(usual | changes))


CT2_DAMAGE: dict[str, d.Damage] = {
    "int8": ct2(variables={"encoder/conv1/weight": torch.zeros(2, 2).char()}),
    "'TransformerSpec'": ct2(kind="TransformerSpec"),
    "file version 3": ct2(version=3),
    "file version 7": ct2(version=7),
    "a is an alias of b": ct2(variables={}, aliases={"a": "b"}),
    "no vocabulary.json": d.remove("vocabulary.json"),
    "cannot be read": d.write("vocabulary.json", "{"),
    "not a list of tokens": d.write("vocabulary.json", "{}"),
}


@pytest.mark.parametrize("words", CT2_DAMAGE)
def test_ctranslate2_that_cannot_be_read(tmp_path: Path, words: str) -> None:
    folder = ct2()(tmp_path / "m")
    CT2_DAMAGE[words](folder)
    message = refusal(folder)
    assert words in message and str(folder) in message
    assert "folder" in refusal(folder / "model.bin"), "the weights alone"


Tokens = list[str]


def named(**names: str) -> Callable[[Tokens], Tokens]:
    """Special tokens of other names."""
    spelled = {f"<|{old}|>": new for old, new in names.items()}
    return lambda tokens: [spelled.get(token, token) for token in tokens]


def swapped(a: str, b: str) -> Callable[[Tokens], Tokens]:
    return named(**{a: f"<|{b}|>", b: f"<|{a}|>"})


def stamped(form: str) -> Callable[[Tokens], Tokens]:
    """Timestamps of other names; "": left out."""

    def change(tokens: Tokens) -> Tokens:
        names = [form.format(i * 0.02) for i in range(1501)]
        return tokens[:-1501] + (names if form else [])

    return change


def at(index: int, token: str) -> Callable[[Tokens], Tokens]:
    return lambda tokens: [*tokens[:index], token, *tokens[index + 1 :]]


# what a folder's list has instead of openai-whisper's tokens; read with English, with all languages
LISTS: dict[str, tuple[Callable[[Tokens], Tokens], bool, bool]] = {
    "whisper's": (lambda tokens: tokens, True, True),
    "nocaptions": (named(nospeech="<|nocaptions|>"), True, True),
    "iw": (named(he="<|iw|>"), True, True),
    "jv": (named(jw="<|jv|>", he="<|iw|>", nospeech="<|nocaptions|>"), True, True),
    "startoflm": (named(startoflm="<|startoflanguagemodel|>"), True, True),
    "no timestamps": (stamped(""), True, True),
    "other timestamps": (stamped("<|ts_{:.3f}|>"), True, True),
    "padding for timestamps": (stamped("<pad>"), True, True),
    "some timestamps": (lambda tokens: tokens[:-600], True, True),
    "other names of languages": (named(de="<|german|>", fr="<|unused_1|>"), True, False),
    "swapped languages": (swapped("de", "fr"), True, False),
    "two tokens of a language": (named(de="<|en|>"), True, False),
    "another text": (at(1000, "Ġslimwhisper"), False, False),
    "swapped texts": (lambda t: [*t[:500], t[501], t[500], *t[502:]], False, False),
    "a text in place of <|endoftext|>": (at(50_256, "Ġslimwhisper"), False, False),
    "too few": (lambda tokens: tokens[:50_000], False, False),
    "no <|nospeech|>": (named(nospeech="<|extra|>"), False, False),
    "no <|notimestamps|>": (named(notimestamps="<|extra|>"), False, False),
    "no <|startofprev|>": (named(startofprev="<|extra|>"), False, False),
    "no <|startoftranscript|>": (named(startoftranscript="<|extra|>"), False, False),
    "swapped tasks": (swapped("transcribe", "translate"), False, False),
    "swapped marks": (swapped("startofprev", "startoftranscript"), False, False),
    "shifted timestamps": (lambda t: [*t[:-1501], "<|x|>", *t[-1501:-1]], False, False),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "dims",
    [ENGLISH, DIMS, pytest.param(LARGE, marks=pytest.mark.slow)],
    ids=["51864", "51865", "51866"],
)
def test_which_lists_of_tokens_are_whispers(tmp_path: Path, dims: Dims) -> None:
    """By the tokens that decide a text, in both files that folders have had, with any ends of
    lines; and the same for the tokens of a Hugging Face folder.
    """
    folder = save_ct2(tmp_path / "m", ct2_variables(dims, random_state(dims, seed=3)), [])
    listed, lines = folder / "vocabulary.json", folder / "vocabulary.txt"
    listed.unlink()
    plain, loaded = tokens_of(dims), re.compile("^[jntw]|padding|too few|swapped")  # some folders
    for case, (change, *read) in LISTS.items():
        tokens, is_read = change(plain), read[dims.is_multilingual]
        ids = {token: i for i, token in enumerate(tokens)}
        if "padding" not in case:  # a name of several tokens is none there
            assert is_openai_table(ids, foreign.tokenizer_of(dims)) is is_read, case
            if dims is not DIMS or not loaded.search(case):
                continue
        lines.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        if not is_read:
            assert "not OpenAI's" in refusal(folder), case
            continue
        found = load_checkpoint(folder).tokens
        assert found.is_whispers and found.timestamps == get_vocabulary(dims).timestamps, case
    for text in ("\n".join(plain), "\r\n".join([*plain, ""]), "\ufeff" + "\n".join(plain)):
        lines.write_bytes(text.encode())
        assert load_checkpoint(folder).tokens.is_whispers
    listed.write_text(json.dumps(plain))
    assert load_checkpoint(folder).tokens.is_whispers


def test_ctranslate2_with_other_tokens_is_read_by_its_tokenizer(tmp_path: Path) -> None:
    """As faster-whisper does."""
    table = trained_table()
    dims = dims_of(table)
    state = weights_of(table, dims)
    folder = save_ct2(tmp_path / "m", ct2_variables(dims, state), list(table.ids))
    assert "no tokenizer.json" in refusal(folder)
    table.save(folder)
    tokens = load_checkpoint(folder).tokens
    assert not tokens.is_whispers and [*tokens.languages.values()] == ["en", "de", "xx"]


def test_faster_whispers_id_on_the_hub(tmp_path: Path, tokens: list[str], monkeypatch: Any) -> None:
    """From the hub's cache, as it lies there, without the network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    source = save_ct2(tmp_path / "m", ct2_variables(DIMS, STATE), tokens)
    folder = fill_cache(tmp_path, "Systran/faster-whisper-tiny", source)
    found = load_checkpoint("Systran/faster-whisper-tiny", local_files_only=True)
    assert_equal(found.state, STATE)
    (folder / "vocabulary.json").unlink()
    assert "vocabulary.json" in refusal("Systran/faster-whisper-tiny", local_files_only=True)


@pytest.mark.slow
def test_ctranslate2_own_converter(tmp_path: Path) -> None:
    """A folder that CTranslate2 made of ours reads as what it was made from."""
    oracle.transformers()
    converters = pytest.importorskip("ctranslate2.converters", reason="needs ctranslate2")
    from slimwhisper.commands.convert import convert

    ours = convert("digits", tmp_path / "digits").path
    made = converters.TransformersConverter(str(ours)).convert(str(tmp_path / "ct2"))
    found, expected = load_checkpoint(made), load_checkpoint("digits")
    assert found.dims == expected.dims
    assert_equal(found.state, dict(expected.state), torch.float16)
