"""Reads faster-whisper's models: CTranslate2 folders of float32, float16 and bfloat16 weights.

model.bin, all little-endian (CTranslate2, python/ctranslate2/specs/model_spec.py): version, name
and revision of the specification, then the variables, each with name, shape, type and size, then
aliases of variables. Strings have a uint16 length that counts the zero byte at their end.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import BinaryFile, Contents, head_of, inside, load_error, reading
from slimwhisper.checkpoint.formats.hugging_face import tie_output
from slimwhisper.checkpoint.settings import OTHER_TABLE, TOKENIZER
from slimwhisper.tokens.vocabulary import is_openai_table, openai_tokenizer
from slimwhisper.types import Dims

CTRANSLATE2 = "model.bin"  # the weights
CTRANSLATE2_TOKENS = ("vocabulary.json", "vocabulary.txt")
KIND = "CTranslate2 file"
SPECIFICATION = "WhisperSpec"
HEAD = rb".\0{3}.\0\w+Spec\0"  # a small version, and a specification's name
VERSIONS = (4, 5, 6)  # of the file, with a type for every variable
HINT = "use its float16 version, or the Hugging Face folder that it was made from"

# by their code
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

_RENAMED = (  # CTranslate2's part of a name, OpenAI's; "+" where matrices are stacked
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


def detect(path: Path) -> bool:
    """Whether it is such a folder without the weights of another format, or its model.bin."""
    file = path / CTRANSLATE2 if path.is_dir() else path
    is_ours = re.match(HEAD, head_of(file), re.DOTALL) is not None
    return is_ours and not any(path.glob("*.safetensors*"))


def read(folder: Path) -> Contents:
    """OpenAI's name -> tensor, matrices [out, in], in the file's dtype.

    Raises CheckpointError for int8 and int16 weights, for another model than Whisper, for a
    vocabulary that is neither OpenAI's nor that of a tokenizer.json, and for damaged files.
    """
    if not folder.is_dir():
        raise load_error(f"{folder}: these are CTranslate2 weights; give the folder that has them")
    path = inside(folder, CTRANSLATE2)
    variables = _read_variables(path)
    state: dict[str, Tensor] = {}
    for its_name, tensor in variables.items():
        if tensor.dim():  # else it is a setting
            name = its_name
            for foreign, openai in _RENAMED:
                name = name.replace(foreign, openai)
            *scope, parts, leaf = ["", *name.split("/")]
            names = [".".join([*scope[1:], part, leaf]) for part in parts.split("+")]
            pieces = (piece.clone() for piece in tensor.tensor_split(len(names)))
            state |= zip(names, pieces, strict=True)
    for name in [n for n in state if n.endswith(".key.bias") and not state[n].any()]:
        del state[name]  # Whisper has none
    tie_output(state)
    with reading(path, "a tensor is missing, or has other dimensions than Whisper's"):
        dims = _dims(variables, state)
    _check_vocabulary(folder, dims)
    return Contents(dims, state)


def _read_variables(path: Path) -> dict[str, Tensor]:
    file = BinaryFile(path, KIND)

    def string() -> str:
        (length,) = file.numbers("H")
        return file.text(length).rstrip("\0")

    (version,) = file.numbers("I")
    kind = string()
    if version not in VERSIONS or kind != SPECIFICATION:
        allowed = f"{SPECIFICATION} of version {VERSIONS[0]} to {VERSIONS[-1]}"
        found = f"CTranslate2 {kind!r}, file version {version}, cannot be read"
        raise load_error(f"{path}: {found}, only {allowed}; convert the original model again")
    file.numbers("I")  # the specification's revision; missing variables say more
    variables: dict[str, Tensor] = {}
    for _ in range(*file.numbers("I")):
        name = string()
        (rank,) = file.numbers("B")
        shape = file.numbers(f"{rank}I")
        code, size = file.numbers("BI")
        if code >= len(_DTYPES):
            raise file.damaged(f"{name} has type {code}")
        dtype = _DTYPES[code]
        if rank and dtype not in _FLOATS:
            kind = f"{dtype}".removeprefix("torch.")
            only = f"cannot be read, only float16, bfloat16 and float32; {HINT}"
            raise load_error(f"{path}: CTranslate2's quantised weights, {kind}, {only}")
        variables[name] = file.tensor(shape, dtype)
        if variables[name].nbytes != size:
            raise file.damaged(f"{name} has {size} bytes for {list(shape)}")
    for _ in range(*file.numbers("I")):
        alias, name = string(), string()
        if name not in variables:
            raise file.damaged(f"{alias} is an alias of {name}, which is missing")
        variables[alias] = variables[name]
    if file.remaining:
        raise file.damaged(f"{file.remaining} bytes follow the last variable")
    return variables


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
    """Raise unless the folder has a tokenizer.json, or its tokens are OpenAI's; `validate` refuses
    other sizes of a vocabulary without one.
    """
    listed, lines = (inside(folder, name) for name in CTRANSLATE2_TOKENS)
    file, openai = listed if listed.is_file() else lines, openai_tokenizer(dims)
    if openai is None or inside(folder, TOKENIZER).is_file():
        return
    if not file.is_file():
        raise load_error(f"{folder}: has no vocabulary.json; copy the whole folder again")
    with reading(file, "the vocabulary cannot be read"):
        text = file.read_text(encoding="utf-8-sig")
        tokens = json.loads(text) if file is listed else text.removesuffix("\n").split("\n")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise load_error(f"{listed}: is not a list of tokens; copy it again")
    if not is_openai_table({t: i for i, t in reversed([*enumerate(tokens)])}, openai):
        raise load_error(f"{folder}: {OTHER_TABLE}")
