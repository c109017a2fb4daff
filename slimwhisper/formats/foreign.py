"""Reads the models of other programs: whisper.cpp's ggml files, and faster-whisper's folders.

Weights are float32, float16 or bfloat16; quantised ones are refused. All numbers are little-endian.
"""

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import Contents, head_of, inside, load_error, no_model, reading
from slimwhisper.checkpoint.hugging_face import tie_output
from slimwhisper.tokens.vocabulary import is_openai_table, openai_tokenizer, text_tokens
from slimwhisper.types import Dims

OTHER_TABLE = "its vocabulary is not OpenAI's; use the Hugging Face folder that it was made from"


class BinaryFile:
    """A little-endian file, read from its start. Every error is a CheckpointError of one line."""

    def __init__(self, path: Path, kind: str) -> None:
        """kind: what the file is, for messages, such as "ggml file"."""
        self.path, self.kind = path, kind
        with reading(path, "cannot be read"), path.open("rb") as file:
            self._data = mmap(file.fileno(), 0, access=ACCESS_READ)

    @property
    def remaining(self) -> int:
        """Bytes that have not been read yet."""
        return len(self._data) - self._data.tell()

    def read(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= self.remaining:
            raise self.damaged(f"{count} bytes expected, {self.remaining} remain")
        return self._data.read(count)

    def numbers(self, form: str) -> tuple[Any, ...]:
        """The next numbers, in `struct`'s letters."""
        form = f"<{form}"
        return struct.unpack(form, self.read(struct.calcsize(form)))

    def text(self, count: int) -> str:
        """The next bytes, as UTF-8."""
        try:
            return self.read(count).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("a name is not UTF-8") from error

    def tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next numbers as a tensor [*shape], a copy. name: of it, for an error."""
        if min(shape, default=1) < 1:
            raise self.damaged(f"{name} has shape {list(shape)}")
        data = self.read(math.prod(shape) * dtype.itemsize)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(tuple(shape))

    def damaged(self, what: str) -> Exception:
        """The error for a file with damaged content."""
        problem = f"truncated or damaged {self.kind}: {what}; copy it again"
        return load_error(f"{self.path}: {no_model(self.path) or problem}")


MAGIC, GGUF = b"lmgg", b"GGUF"  # the first is 0x67676d6c
GGML_HINT = "use the file without -q in its name, or the model that it was made from"

_FILE_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1"}
_TENSOR_TYPES = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
_QUANTISED = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"}
_MAX_DIMS = 4
_ORDER = (9, 1, 2, 3, 4, 0, 5, 6, 7, 8)  # index in the header of each number of `Dims`


class Ggml:
    """A `Reader` of whisper.cpp's models.

    The format (whisper.cpp, models/convert-pt-to-ggml.py and src/whisper.cpp): a magic number,
    eleven int32 of dimensions and type, the mel filters, the tokens of text, and tensors under
    OpenAI's names until the file ends. A tensor is preceded by its number of dimensions, the length
    of its name, its type, its dimensions (the fastest first), and its name.
    """

    def detect(self, path: Path) -> bool:
        """Whether it is a file in this format, or in its successor, which cannot be read."""
        return head_of(path).startswith((MAGIC, GGUF))

    def read(self, path: Path) -> Contents:
        """OpenAI's name -> tensor, matrices [out, in], in the file's dtypes, small ones in float32.

        Raises CheckpointError for quantised weights, for a vocabulary or for mel filters that are
        not OpenAI's, and for damaged files.
        """
        file = BinaryFile(path, "ggml file")
        if file.read(len(MAGIC)) == GGUF:
            raise load_error(f"{path}: GGUF files cannot be read; {GGML_HINT}")
        numbers = file.numbers("11i")
        dims = Dims(*(numbers[i] for i in _ORDER))
        kind = numbers[10] % 1000  # the thousands count versions of the quantised layouts
        if kind not in (0, 1):
            if dims.n_mels not in (80, 128):
                what = "a ggml file, but not of a Whisper model"
                raise load_error(f"{path}: {what}; give one, such as whisper.cpp's ggml-base.bin")
            raise _quantised(path, _FILE_TYPES.get(kind, f"type {kind}"))
        _check_filters(file, dims.n_mels)
        _check_tokens(file, dims)
        state: dict[str, Tensor] = {}
        while file.remaining:
            name, tensor = _read_tensor(file)
            if name in state:
                raise file.damaged(f"{name} is in it twice")
            state[name] = tensor
        return Contents(dims, state)


def _check_filters(file: BinaryFile, n_mels: int) -> None:
    from slimwhisper.audio.mel import mel_filters

    shape = file.numbers("2i")
    filters = file.tensor("the table of filters", shape, torch.float32)  # [n_mels, 201]
    if n_mels not in (80, 128):
        return  # `validate` reports it
    expected = mel_filters("cpu", n_mels)
    if filters.shape != expected.shape or not torch.allclose(filters, expected, atol=1e-6):
        raise load_error(f"{file.path}: its mel filters are not Whisper's; {GGML_HINT}")


def _check_tokens(file: BinaryFile, dims: Dims) -> None:
    (count,) = file.numbers("i")
    tokens = [file.read(*file.numbers("i")) for _ in range(count)]
    tokenizer = openai_tokenizer(dims)
    expected = [] if tokenizer is None else text_tokens(tokenizer)
    # the table of a Hugging Face vocabulary ends with <|endoftext|>
    special = tokens[len(expected) :] in ([], [b"<|endoftext|>"])
    if expected and not (tokens[: len(expected)] == expected and special):
        raise load_error(f"{file.path}: {OTHER_TABLE}")


def _read_tensor(file: BinaryFile) -> tuple[str, Tensor]:
    rank, length, kind = file.numbers("3i")
    if not 1 <= rank <= _MAX_DIMS:
        raise file.damaged(f"a tensor has {rank} dimensions")
    shape = tuple(reversed(file.numbers(f"{rank}i")))
    name = file.text(length)
    if kind not in _TENSOR_TYPES:
        raise _quantised(file.path, _QUANTISED.get(kind, f"type {kind}"))
    tensor = file.tensor(name, shape, _TENSOR_TYPES[kind])
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        tensor = tensor.flatten()  # [n, 1] in the file
    return name, tensor


def _quantised(path: Path, kind: str) -> Exception:
    only = f"cannot be read, only f16 and f32; {GGML_HINT}"
    return load_error(f"{path}: whisper.cpp's quantised weights, {kind}, {only}")


CTRANSLATE2 = "model.bin"  # the weights
CTRANSLATE2_TOKENS = ("vocabulary.json", "vocabulary.txt")
SPECIFICATION = "WhisperSpec"
HEAD = rb".\0{3}.\0\w+Spec\0"  # a small version, and a specification's name
VERSIONS = (4, 5, 6)  # of the file, with a type for every variable
CTRANSLATE2_HINT = "use its float16 version, or the Hugging Face folder that it was made from"

# by their code
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)

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


class CTranslate2:
    """A `Reader` of faster-whisper's models, which are CTranslate2's folders.

    model.bin (CTranslate2, python/ctranslate2/specs/model_spec.py): version, name and revision of
    the specification, then the variables, each with name, shape, type and size, then aliases of
    variables. Strings have a uint16 length that counts the zero byte at their end.
    """

    def detect(self, path: Path) -> bool:
        """Whether it is a folder with a model.bin and no weights of another format, or such a file,
        by its first bytes.
        """
        if path.is_dir():
            return (path / CTRANSLATE2).is_file() and not any(path.glob("*.safetensors*"))
        return re.match(HEAD, head_of(path), re.DOTALL) is not None

    def read(self, path: Path) -> Contents:
        """OpenAI's name -> tensor, matrices [out, in], in the file's dtype.

        Raises CheckpointError for int8 and int16 weights, for another model than Whisper, for a
        vocabulary that is neither OpenAI's nor that of a tokenizer.json, and for damaged files.
        """
        if not path.is_dir():
            what = "these are CTranslate2 weights; give the folder that has them"
            raise load_error(f"{path}: {what}")
        file = inside(path, CTRANSLATE2)
        variables = _read_variables(file)
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
        with reading(file, "a tensor is missing, or has other dimensions than Whisper's"):
            dims = _dims(variables, state)
        _check_vocabulary(path, dims)
        return Contents(dims, state)


def _read_variables(path: Path) -> dict[str, Tensor]:
    file = BinaryFile(path, "CTranslate2 file")

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
        if rank and not dtype.is_floating_point:
            kind = f"{dtype}".removeprefix("torch.")
            only = f"cannot be read, only float16, bfloat16 and float32; {CTRANSLATE2_HINT}"
            raise load_error(f"{path}: CTranslate2's quantised weights, {kind}, {only}")
        variables[name] = file.tensor(name, shape, dtype)
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
    if openai is None or inside(folder, "tokenizer.json").is_file():
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
