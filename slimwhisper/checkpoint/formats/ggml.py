"""Reads whisper.cpp's models: ggml files of float32 and float16 weights.

The format, all little-endian (whisper.cpp, models/convert-pt-to-ggml.py and src/whisper.cpp): a
magic number, eleven int32 of dimensions and type, the mel filters, the tokens of text, and tensors
under OpenAI's names until the file ends. A tensor is preceded by its number of dimensions, the
length of its name, its type, its dimensions (the fastest first), and its name.
"""

from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import BinaryFile, Contents, head_of, load_error
from slimwhisper.checkpoint.settings import OTHER_TABLE
from slimwhisper.tokens.vocabulary import openai_tokenizer, text_tokens
from slimwhisper.types import Dims

MAGIC, GGUF = b"lmgg", b"GGUF"  # the first is 0x67676d6c
KIND = "ggml file"
HINT = "use the file without -q in its name, or the model that it was made from"

_FILE_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1"}
_TENSOR_TYPES = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
_QUANTISED = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"}
_MAX_DIMS = 4
_DIMS = (9, 1, 2, 3, 4, 0, 5, 6, 7, 8)  # index in the header of each number of `Dims`


def detect(path: Path) -> bool:
    """Whether it is a file in this format, or in its successor, which cannot be read."""
    return head_of(path).startswith((MAGIC, GGUF))


def read(path: Path) -> Contents:
    """OpenAI's name -> tensor, matrices [out, in], in the file's dtypes, small ones in float32.

    Raises CheckpointError for quantised weights, for a vocabulary or for mel filters that are not
    OpenAI's, and for damaged files.
    """
    file = BinaryFile(path, KIND)
    if file.read(len(MAGIC)) == GGUF:
        raise load_error(f"{path}: GGUF files cannot be read; {HINT}")
    numbers = file.numbers("11i")
    dims = Dims(*(numbers[i] for i in _DIMS))
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
    from slimwhisper.mel_filters import mel_filters

    shape = file.numbers("2i")
    filters = file.tensor(shape, torch.float32)  # [n_mels, 201]
    if n_mels not in (80, 128):
        return  # `validate` reports it
    expected = mel_filters("cpu", n_mels)
    if filters.shape != expected.shape or not torch.allclose(filters, expected, atol=1e-6):
        raise load_error(f"{file.path}: its mel filters are not Whisper's; {HINT}")


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
    if min(shape) < 1:
        raise file.damaged(f"{name} has shape {list(shape)}")
    if kind not in _TENSOR_TYPES:
        raise _quantised(file.path, _QUANTISED.get(kind, f"type {kind}"))
    tensor = file.tensor(shape, _TENSOR_TYPES[kind])
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        tensor = tensor.flatten()  # [n, 1] in the file
    return name, tensor


def _quantised(path: Path, kind: str) -> Exception:
    only = f"cannot be read, only f16 and f32; {HINT}"
    return load_error(f"{path}: whisper.cpp's quantised weights, {kind}, {only}")
