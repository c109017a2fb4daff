"""Models of other projects, recognised by their content: CTranslate2, ggml and GGUF."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.formats import ctranslate2, ggml
from slimwhisper.types import Dims

Reader = Callable[[Path], tuple[Dims, Mapping[str, Tensor]]]

_HEAD = 128  # bytes that tell what a file is


def foreign_reader(path: Path) -> Reader | None:
    """What reads this file or folder of faster-whisper or whisper.cpp; None if it is neither.

    Raises CheckpointError for formats of theirs that cannot be read, by name.
    """
    if path.is_dir():
        theirs = path / ctranslate2.CTRANSLATE2
        is_theirs = not any(path.glob("*.safetensors*")) and _is_ctranslate2(theirs)
        return ctranslate2.read_ctranslate2 if is_theirs else None
    head = _head(path)
    if head.startswith(ggml.MAGIC):
        return ggml.read_ggml
    if head.startswith(b"GGUF"):
        raise problem(f"{path}: GGUF files cannot be read; {ggml.HINT}")
    if _is_ctranslate2(path):
        raise problem(f"{path}: CTranslate2 weights; give the folder that holds them")
    return None


def _is_ctranslate2(path: Path) -> bool:
    return path.is_file() and re.match(ctranslate2.HEAD, _head(path), re.DOTALL) is not None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""  # the reader of its kind says why
