"""faster-whisper's models: CTranslate2 folders of float32, float16 and bfloat16 weights.

model.bin, all little-endian (CTranslate2, python/ctranslate2/specs/model_spec.py): version, name
and revision of the specification, then the variables, each with name, shape, type and size, then
aliases of variables. Strings have a uint16 length that counts the zero byte at their end.
"""

import json
import re
from collections.abc import Iterator, Mapping
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

_WHOLE = {  # theirs: ours
    "encoder/position_encodings/encodings": "encoder.positional_embedding",
    "decoder/position_encodings/encodings": "decoder.positional_embedding",
    "decoder/embeddings/weight": "decoder.token_embedding.weight",
    "decoder/projection/weight": "proj_out.weight",
}
_TOP = {
    "encoder/conv1": ("encoder.conv1",),
    "encoder/conv2": ("encoder.conv2",),
    "encoder/layer_norm": ("encoder.ln_post",),
    "decoder/layer_norm": ("decoder.ln",),
}
_BLOCK = {  # inside a layer; several names where matrices are one below the other
    "self_attention/layer_norm": ("attn_ln",),
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
    "attention/layer_norm": ("cross_attn_ln",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
    "ffn/layer_norm": ("mlp_ln",),
    "ffn/linear_0": ("mlp.0",),
    "ffn/linear_1": ("mlp.2",),
}
_PARTS = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}


def read_ctranslate2(folder: Path) -> tuple[Dims, Mapping[str, Tensor]]:
    """OpenAI's name -> tensor, matrices [out, in], in the file's dtype.

    Raises CheckpointError for int8 and int16 weights, for another model than Whisper, for a
    vocabulary that is not OpenAI's, and for damaged files.
    """
    path = inside(folder, CTRANSLATE2)
    variables = _read_variables(path)
    state: dict[str, Tensor] = {}
    for name, tensor in variables.items():
        for ours, part in _translated(path, name, tensor):
            if not (ours.endswith(".key.bias") and not part.any()):  # Whisper has none
                state[ours] = part
    tie_output(state)
    dims = _dims(path, variables, state)
    _check_vocabulary(folder, dims)
    return dims, state


def _read_variables(path: Path) -> dict[str, Tensor]:
    with BinaryFile(path, KIND) as file:

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


def _translated(path: Path, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """OpenAI's names and tensors of one variable; numbers, which are settings, have none."""
    if not tensor.dim():
        return
    if name in _WHOLE:
        yield _WHOLE[name], tensor
        return
    scope, _, last = name.rpartition("/")
    match = re.fullmatch(r"(encoder|decoder)/layer_(\d+)/(\w+/\w+)", scope)
    names = _BLOCK.get(match[3], ()) if match else _TOP.get(scope, ())
    before = f"{match[1]}.blocks.{match[2]}." if match else ""
    if last in _PARTS and names and tensor.shape[0] % len(names) == 0:
        for ours, piece in zip(names, tensor.chunk(len(names)), strict=True):
            yield f"{before}{ours}.{_PARTS[last]}", piece.clone()
        return
    raise problem(f"{path}: variable {name} is not one of Whisper's; {HINT}")


def _dims(path: Path, variables: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Dims:
    def layers(side: str) -> int:
        return len({n.split(".")[2] for n in state if n.startswith(f"{side}.blocks.")})

    try:
        _, n_mels, _ = state["encoder.conv1.weight"].shape
        sizes = {}  # of each side: context, width, heads, layers
        for side in ("encoder", "decoder"):
            context, width = state[f"{side}.positional_embedding"].shape
            heads = variables[f"{side}/num_heads"]
            if heads.dim() or heads.is_floating_point() or heads < 1:
                raise problem(f"{path}: {side}/num_heads is no number; {HINT}")
            sizes[side] = (context, width, int(heads), layers(side))
        n_vocab = len(state["decoder.token_embedding.weight"])
    except KeyError as error:
        raise problem(f"{path}: misses tensor {error}; convert the original again") from error
    except ValueError as error:  # how many values a shape has
        raise problem(f"{path}: a tensor has other dimensions than Whisper's; {HINT}") from error
    return Dims(n_mels, *sizes["encoder"], n_vocab, *sizes["decoder"])


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
