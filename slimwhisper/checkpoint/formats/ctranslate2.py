"""faster-whisper's models: CTranslate2 folders of float32, float16 and bfloat16 weights.

model.bin, all little-endian (CTranslate2, python/ctranslate2/specs/model_spec.py): version, name
and revision of the specification, then the variables, each with name, shape, type and size, then
aliases of variables. Strings have a uint16 length that counts the zero byte at their end.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import inside, reading
from slimwhisper.checkpoint.formats.binary import BinaryFile
from slimwhisper.checkpoint.formats.hugging_face import tie_output
from slimwhisper.tokens.openai import full_table, is_openai_table, openai_tokenizer
from slimwhisper.types import Dims

CTRANSLATE2 = "model.bin"  # the weights
CTRANSLATE2_TOKENS = ("vocabulary.json", "vocabulary.txt")
KIND = "CTranslate2 file"
SPECIFICATION = "WhisperSpec"
HEAD = rb".\0{3}.\0\w+Spec\0"  # a small version, and a specification's name
VERSIONS = (4, 5, 6)  # of the file, with a type for every variable
HINT = (
    "take its float16 version, such as Systran/faster-whisper-small, or "
    "the Hugging Face folder that it was made from, such as openai/whisper-small"
)

# by their code
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

_RENAMED = (  # a part of their name, ours; "+" where matrices are one below the other
    ("self_attention/layer_norm", "attn_ln"),
    ("self_attention/linear_0", "attn/query+key+value"),
    ("self_attention/linear_1", "attn/out"),
    ("attention/layer_norm", "cross_attn_ln"),
    ("attention/linear_0", "cross_attn/query"),
    ("attention/linear_1", "cross_attn/key+value"),
    ("attention/linear_2", "cross_attn/out"),
    ("ffn/layer_norm", "mlp_ln"),
    ("ffn/linear_0", "mlp/0"),
    ("ffn/linear_1", "mlp/2"),
    ("encoder/layer_norm", "encoder/ln_post"),
    ("decoder/layer_norm", "decoder/ln"),
    ("/layer_", "/blocks/"),
    ("position_encodings/encodings", "positional_embedding"),
    ("decoder/embeddings", "decoder/token_embedding"),
    ("decoder/projection", "proj_out"),
    ("/gamma", "/weight"),
    ("/beta", "/bias"),
)


def read_ctranslate2(folder: Path) -> tuple[Dims, Mapping[str, Tensor]]:
    """OpenAI's name -> tensor, matrices [out, in], in the file's dtype.

    Raises CheckpointError for int8 and int16 weights, for another model than Whisper, for a
    vocabulary that is not OpenAI's, and for damaged files.
    """
    path = inside(folder, CTRANSLATE2)
    variables = _read_variables(path)
    state: dict[str, Tensor] = {}
    for name, tensor in variables.items():
        if tensor.dim():  # else it is a setting
            for theirs, ours in _RENAMED:
                name = name.replace(theirs, ours)
            *scope, parts, last = ["", *name.split("/")]
            names = [".".join([*scope[1:], part, last]) for part in parts.split("+")]
            pieces = (piece.clone() for piece in tensor.tensor_split(len(names)))
            state |= zip(names, pieces, strict=True)
    for name in [n for n in state if n.endswith(".key.bias") and not state[n].any()]:
        del state[name]  # Whisper has none
    tie_output(state)
    with reading(path, "a tensor is missing, or has other dimensions than Whisper's"):
        dims = _dims(variables, state)
    _check_vocabulary(folder, dims)
    return dims, state


def _read_variables(path: Path) -> dict[str, Tensor]:
    file = BinaryFile(path, KIND)

    def string() -> str:
        (length,) = file.numbers("H")
        return file.text(length).rstrip("\0")

    (version,) = file.numbers("I")
    kind = string()
    if version not in VERSIONS or kind != SPECIFICATION:
        raise problem(
            f"{path}: CTranslate2 {kind!r} in file version {version}, not a {SPECIFICATION} of "
            f"version {VERSIONS[0]} to {VERSIONS[-1]}; convert the original again"
        )
    file.numbers("I")  # the specification's revision; missing variables say more
    found: dict[str, Tensor] = {}
    for _ in range(*file.numbers("I")):
        name = string()
        (rank,) = file.numbers("B")
        shape = file.numbers(f"{rank}I")
        code, size = file.numbers("BI")
        if code >= len(_DTYPES):
            raise file.damaged(f"{name} has the type {code}")
        dtype = _DTYPES[code]
        if rank and dtype not in _FLOATS:
            raise problem(
                f"{path}: CTranslate2's quantised weights, {dtype}, cannot be read, only "
                f"float16, bfloat16 and float32; {HINT}".replace("torch.", "")
            )
        found[name] = file.tensor(shape, dtype)
        if found[name].nbytes != size:
            raise file.damaged(f"{name} has {size} bytes for {list(shape)}")
    for _ in range(*file.numbers("I")):
        alias, name = string(), string()
        if name not in found:
            raise file.damaged(f"{alias} stands for {name}, which it lacks")
        found[alias] = found[name]
    if file.left:
        raise file.damaged(f"{file.left} bytes follow the last variable")
    return found


def _dims(variables: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Dims:
    """Raises Exception where something is missing, or is not what it should be."""

    def sizes(side: str) -> tuple[int, int, int, int]:
        """Context, width, heads, layers."""
        context, width = state[f"{side}.positional_embedding"].shape
        layers = {n.split(".")[2] for n in state if n.startswith(f"{side}.blocks.")}
        return context, width, int(variables[f"{side}/num_heads"]), len(layers)

    _, n_mels, _ = state["encoder.conv1.weight"].shape
    n_vocab = len(state["decoder.token_embedding.weight"])
    return Dims(n_mels, *sizes("encoder"), n_vocab, *sizes("decoder"))


def _check_vocabulary(folder: Path, dims: Dims) -> None:
    """Whether the folder's tokens are OpenAI's; a size that OpenAI lacks is left to `validate`."""
    tokenizer = openai_tokenizer(dims)
    if tokenizer is None:
        return
    listed, lines = (inside(folder, name) for name in CTRANSLATE2_TOKENS)
    file = listed if listed.is_file() else lines
    if not file.is_file():
        raise problem(f"{folder}: no vocabulary.json; copy the whole folder again")
    with reading(file, "the vocabulary cannot be read"):
        text = file.read_text(encoding="utf-8")
        tokens = json.loads(text) if file is listed else text.removesuffix("\n").split("\n")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise problem(f"{listed}: is no list of tokens; copy it again")
    if not is_openai_table({t: i for i, t in enumerate(tokens)}, full_table(tokenizer)):
        raise problem(
            f"{folder}: its vocabulary is not OpenAI's; take the Hugging Face folder that it was "
            "made from, which has the tokenizer"
        )
