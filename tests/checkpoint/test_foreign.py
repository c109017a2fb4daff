"""Models of faster-whisper and whisper.cpp: read exactly, or refused by name in one line."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from slimwhisper.checkpoint.load import load_checkpoint
from tests.support import oracle
from tests.support.checkpoints import assert_equal, random_state, refusal, tiny_dims
from tests.support.foreign import (
    ct2_variables,
    ggml_bytes,
    ggml_tensor,
    save_ct2,
    tokenizer_of,
)
from tests.support.hf_folders import visible

DIMS = tiny_dims(width=8, heads=2, audio_layers=2, text_layers=3)
STATE = random_state(DIMS, seed=3)
ENGLISH = tiny_dims(width=8, multilingual=False, text_layers=1)
LARGE = tiny_dims(width=8, n_mels=128, text_layers=1)


@pytest.fixture(scope="module")
def tokens() -> list[str]:
    """The vocabulary as CTranslate2's converter writes it, by the rule of GPT-2's own encoder."""
    tokenizer = tokenizer_of(DIMS)
    found = [visible(tokenizer.encoding.decode_single_token_bytes(i)) for i in range(tokenizer.eot)]
    special = sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
    return found + [name.replace("nospeech", "nocaptions") for name, _ in special]


@pytest.fixture(scope="module")
def ggml() -> bytes:
    return ggml_bytes(DIMS, STATE, file_type=0)


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
    second = "encoder/layer_1/self_attention/layer_norm/gamma"
    aliases = {second: "encoder/layer_0/self_attention/layer_norm/gamma"}
    del variables[second]
    folder = save_ct2(tmp_path / "m", variables, tokens, aliases, version=5)
    (folder / "vocabulary.json").unlink()
    (folder / "vocabulary.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    found = load_checkpoint(folder)
    same = "encoder.blocks.0.attn_ln.weight"
    expected = {**STATE, "encoder.blocks.1.attn_ln.weight": STATE[same]}
    assert_equal(found.state, expected)


@pytest.mark.parametrize("dims", [DIMS, ENGLISH, LARGE], ids=["51865", "51864", "51866"])
def test_ggml_is_read_exactly(tmp_path: Path, dims: object) -> None:
    state = random_state(dims, seed=4)  # type: ignore[arg-type]
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(ggml_bytes(dims, state, file_type=0))  # type: ignore[arg-type]
    found = load_checkpoint(path)
    assert found.dims == dims
    assert_equal(found.state, state)


def test_ggml_of_half_precision(tmp_path: Path) -> None:
    """Matrices in float16 or bfloat16, the rest in float32, as whisper.cpp's script writes them."""
    for dtype in (torch.float16, torch.bfloat16):
        state = {
            name: tensor.to(dtype) if tensor.dim() > 1 and "positional" not in name else tensor
            for name, tensor in STATE.items()
        }
        path = tmp_path / "ggml.bin"
        path.write_bytes(ggml_bytes(DIMS, state, file_type=2001))
        found = load_checkpoint(path).state
        assert {name: tensor.dtype for name, tensor in found.items()} == {
            name: tensor.dtype for name, tensor in state.items()
        }
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def number(offset: int, value: int) -> Callable[[bytes], bytes]:
    """The int32 at an offset replaced."""
    return lambda data: data[:offset] + struct.pack("<i", value) + data[offset + 4 :]


HEADER = 48  # bytes; the filters' shape follows
FILTERS = HEADER + 8
COUNT = FILTERS + 80 * 201 * 4  # where the number of tokens stands

GGML_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a quantised file": (number(44, 2007), "quantised weights, q8_0"),
    "an unknown type": (number(44, 99), "quantised weights, type 99"),
    "a quantised tensor": (
        lambda d: d + ggml_tensor("x", torch.zeros(32), kind=6),
        "quantised weights, q5_0",
    ),
    "no tensors": (lambda d: d[: COUNT + 4], "truncated or damaged ggml file"),
    "cut in the header": (lambda d: d[:20], "truncated or damaged ggml file"),
    "cut in the filters": (lambda d: d[:FILTERS], "truncated or damaged ggml file"),
    "cut in a tensor": (lambda d: d[:-3], "bytes are left where"),
    "no width": (number(12, 0), "its dimensions are"),
    "negative layers": (number(20, -4), "its dimensions are"),
    "a billion layers": (number(20, 10**9), "too few for its"),
    "other filters": (number(FILTERS, 0x41000000), "mel filters"),
    "more tokens than bytes": (number(COUNT, 10**9), "truncated or damaged ggml file"),
    "a token without end": (number(COUNT + 4, 10**9), "truncated or damaged ggml file"),
    "a negative token": (number(COUNT + 4, -1), "truncated or damaged ggml file"),
    "a tensor twice": (
        lambda d: d + ggml_tensor("decoder.ln.bias", torch.zeros(8)),
        "has decoder.ln.bias twice",
    ),
    "a surplus tensor": (lambda d: d + ggml_tensor("x", torch.zeros(8)), "unknown tensor x"),
    "nine dimensions": (lambda d: d + struct.pack("<3i", 9, 1, 0), "has 9 dimensions"),
    "an empty tensor": (
        lambda d: d + struct.pack("<3i", 1, 1, 0) + struct.pack("<i", 0) + b"x",
        "has the shape [0]",
    ),
    "a name of no text": (
        lambda d: d + struct.pack("<3i", 1, 1, 0) + struct.pack("<i", 1) + b"\xff" + b"\0" * 4,
        "not UTF-8",
    ),
    "NaN": (lambda d: d[:-4] + struct.pack("<f", float("nan")), "NaN or infinity"),
    "GGUF": (lambda d: b"GGUF" + d[4:], "GGUF files cannot be read"),
}


@pytest.mark.parametrize("case", GGML_DAMAGE)
def test_ggml_that_cannot_be_read(tmp_path: Path, ggml: bytes, case: str) -> None:
    damage, words = GGML_DAMAGE[case]
    path = tmp_path / "ggml.bin"
    path.write_bytes(damage(ggml))
    message = refusal(path)
    assert words in message, message
    assert str(path) in message


def test_ggml_with_another_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "ggml.bin"
    path.write_bytes(ggml_bytes(DIMS, STATE, tokens=1000))
    assert "its vocabulary is not OpenAI's; take the Hugging Face folder" in refusal(path)


def test_weights_named_without_their_folder(tmp_path: Path, tokens: list[str]) -> None:
    folder = save_ct2(tmp_path / "m", {}, tokens)
    assert "give the folder that holds them" in refusal(folder / "model.bin")


CT2_DAMAGE = {
    "int8": ({"variables": {"encoder/conv1/weight": torch.zeros(2, 2).char()}}, "int8"),
    "another model": ({"kind": "TransformerSpec"}, "'TransformerSpec' in file version 6"),
    "an old file": ({"version": 3}, "file version 3"),
    "a new file": ({"version": 7}, "file version 7"),
    "an alias of nothing": ({"aliases": {"a": "b"}}, "stands for b, which it lacks"),
}


@pytest.mark.parametrize("case", CT2_DAMAGE)
def test_ctranslate2_of_other_kinds(tmp_path: Path, case: str) -> None:
    arguments, words = CT2_DAMAGE[case]
    folder = save_ct2(tmp_path / "m", **{"variables": {}, "tokens": []} | arguments)
    assert words in refusal(folder)


CT2_VARIABLES: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "no heads": ({"encoder/num_heads": None}, "num_heads"),
    "zero heads": ({"decoder/num_heads": torch.tensor(0)}, "num_heads"),
    "no positions": (
        {"decoder/position_encodings/encodings": None},
        "decoder.positional_embedding",
    ),
    "a vector for a kernel": ({"encoder/conv1/weight": torch.zeros(8)}, "dimensions"),
    "a missing matrix": ({"decoder/layer_1/ffn/linear_1/weight": None}, "misses tensor"),
    "a foreign variable": ({"decoder/layer_0/relative/bias": torch.zeros(4)}, "is not one of"),
    "QKV of odd length": (
        {"encoder/layer_0/self_attention/linear_0/bias": torch.zeros(25)},
        "is not one of Whisper's",
    ),
    "infinity": ({"encoder/conv1/bias": torch.full((8,), torch.inf)}, "NaN or infinity"),
}


@pytest.mark.parametrize("case", CT2_VARIABLES)
def test_ctranslate2_with_other_variables(tmp_path: Path, tokens: list[str], case: str) -> None:
    changes, words = CT2_VARIABLES[case]
    variables = {**ct2_variables(DIMS, STATE), **changes}
    kept = {
        name: t.to(torch.int16) if t.dtype == torch.int64 else t
        for name, t in variables.items()
        if t is not None
    }
    assert words in refusal(save_ct2(tmp_path / "m", kept, tokens))


def test_ctranslate2_cut_anywhere(tmp_path: Path, tokens: list[str]) -> None:
    folder = save_ct2(tmp_path / "m", ct2_variables(DIMS, STATE), tokens)
    data = (folder / "model.bin").read_bytes()
    for cut in (19, 25, 60, len(data) // 2, len(data) - 1):
        (folder / "model.bin").write_bytes(data[:cut])
        assert "truncated or damaged CTranslate2 file" in refusal(folder), cut
    (folder / "model.bin").write_bytes(data + b"more")
    assert "4 bytes follow the last variable" in refusal(folder)


@pytest.mark.parametrize(
    "vocabulary, words",
    [
        (None, "no vocabulary.json"),
        ("{", "cannot be read"),
        ("{}", "no list of tokens"),
        (json.dumps(["a", "b"]), "not OpenAI's"),
    ],
)
def test_ctranslate2_with_another_vocabulary(
    tmp_path: Path, vocabulary: str | None, words: str
) -> None:
    folder = save_ct2(tmp_path / "m", ct2_variables(DIMS, STATE), [])
    (folder / "vocabulary.json").unlink()
    if vocabulary is not None:
        (folder / "vocabulary.json").write_text(vocabulary)
    assert words in refusal(folder)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, tokens: list[str]) -> None:
    folder = save_ct2(tmp_path / "m", ct2_variables(DIMS, STATE), tokens)
    for name in ("vocabulary.json", "model.bin"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        assert "is a link out of its folder" in refusal(folder)


def test_faster_whispers_id_on_the_hub(
    tmp_path: Path, tokens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the hub's cache, as it lies there, without the network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--Systran--faster-whisper-tiny"
    folder = repository / "snapshots" / "abc"
    save_ct2(folder, ct2_variables(DIMS, STATE), tokens)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (repository / "blobs").mkdir()
    (folder / "model.bin").rename(repository / "blobs" / "1")
    (folder / "model.bin").symlink_to(Path("../../blobs/1"))
    found = load_checkpoint("Systran/faster-whisper-tiny", local_files_only=True)
    assert_equal(found.state, STATE)
    (folder / "vocabulary.json").unlink()
    message = refusal("Systran/faster-whisper-tiny", local_files_only=True)
    assert "no vocabulary.json or vocabulary.txt in its cache" in message


@pytest.mark.slow
def test_ctranslate2_own_converter(tmp_path: Path) -> None:
    """A folder that CTranslate2 made of ours reads as what it was made from."""
    oracle.transformers()
    converters = pytest.importorskip("ctranslate2.converters", reason="needs ctranslate2")
    from slimwhisper.commands.conversion.convert import convert

    ours = convert("digits", tmp_path / "digits").path
    made = converters.TransformersConverter(str(ours)).convert(str(tmp_path / "ct2"))
    found, expected = load_checkpoint(made), load_checkpoint("digits")
    assert found.dims == expected.dims
    assert_equal(found.state, dict(expected.state), torch.float16)
