"""Detects the format of a file or folder by its content, and chooses its reader."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.formats.ctranslate2 import CTRANSLATE2, HEAD, read_ctranslate2
from slimwhisper.checkpoint.formats.ggml import HINT, MAGIC, read_ggml
from slimwhisper.checkpoint.formats.hugging_face import read_folder
from slimwhisper.checkpoint.formats.openai import read_openai
from slimwhisper.types import Dims

Reader = Callable[[Path], tuple[Dims, Mapping[str, Tensor]]]

_HEAD_BYTES = 128  # enough to recognise a format


def reader_of(path: Path) -> Reader:
    """The function that reads it: dimensions, and OpenAI's name -> tensor, matrices [out, in].

    Raises CheckpointError, which names the format, for formats that cannot be read.
    """
    if path.is_dir():
        if any(path.glob("*.safetensors*")) or not _is_ctranslate2(path / CTRANSLATE2):
            return read_folder
        return read_ctranslate2
    if not path.is_file():
        raise load_error(f"{path}: not a regular file; give a .pt file or a Hugging Face folder")
    head = _head(path)
    if head.startswith(MAGIC):
        return read_ggml
    if head.startswith(b"GGUF"):
        raise load_error(f"{path}: GGUF files cannot be read; {HINT}")
    if _is_ctranslate2(path):
        raise load_error(f"{path}: these are CTranslate2 weights; give the folder that has them")
    if path.suffix == ".safetensors":
        raise load_error(f"{path}: give the folder with its config.json, not the .safetensors file")
    return read_openai


def _is_ctranslate2(path: Path) -> bool:
    return path.is_file() and re.match(HEAD, _head(path), re.DOTALL) is not None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""  # the reader of its kind says why
