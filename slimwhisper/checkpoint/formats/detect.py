"""Which format a file or folder has, by its content, and what reads it."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.formats.ctranslate2 import CTRANSLATE2, HEAD, read_ctranslate2
from slimwhisper.checkpoint.formats.ggml import HINT, MAGIC, read_ggml
from slimwhisper.checkpoint.formats.hugging_face import read_folder
from slimwhisper.checkpoint.formats.openai import read_openai
from slimwhisper.types import Dims

Reader = Callable[[Path], tuple[Dims, Mapping[str, Tensor]]]

_HEAD_BYTES = 128  # that tell what a file is


def reader_of(path: Path) -> Reader:
    """The function that reads it: dimensions, and OpenAI's name -> tensor, matrices [out, in].

    Raises CheckpointError for formats that cannot be read, by name.
    """
    if path.is_dir():
        theirs = not any(path.glob("*.safetensors*")) and _is_ctranslate2(path / CTRANSLATE2)
        return read_ctranslate2 if theirs else read_folder
    if not path.is_file():
        raise problem(f"{path}: is no regular file; give a .pt file or a Hugging Face folder")
    head = _head(path)
    if head.startswith(MAGIC):
        return read_ggml
    if head.startswith(b"GGUF"):
        raise problem(f"{path}: GGUF files cannot be read; {HINT}")
    if _is_ctranslate2(path):
        raise problem(f"{path}: CTranslate2 weights; give the folder that holds them")
    if path.suffix == ".safetensors":
        raise problem(f"{path}: give the folder with its config.json, not the .safetensors file")
    return read_openai


def _is_ctranslate2(path: Path) -> bool:
    return path.is_file() and re.match(HEAD, _head(path), re.DOTALL) is not None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""  # the reader of its kind says why
